// Matmul kernels of the 4-bit weight formats, one instance each.
#include "model/matmul_kernels.h"
#include "simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/matmul_w4.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "model/matmul_integer-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::model {
namespace HWY_NAMESPACE {

// clang-format off
template <template <int, int> class Dot>
using W4Formats = FormatList<
    IntegerFormat<Dot, 4, 32, false, false, 8>,  // Q4_0
    IntegerFormat<Dot, 4, 32, false, true, 0>,   // Q4_1
    IntegerFormat<Dot, 4, 32, true, true, 0>,    // Q4_K
    IntegerFormat<Dot, 4, 16, true, true, 0>,    // Q2_K
    IntegerFormat<Dot, 4, 16, true, false, 4>    // Q3_K
    >;
// clang-format on

void MatmulW4(const MatmulOperands& operands, const MatmulRange& range) {
  DispatchDot<W4Formats>(operands, range);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvasir::model
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::model {
HWY_EXPORT(MatmulW4);
void matmul_w4(const MatmulOperands& operands, const MatmulRange& range) {
  HWY_DYNAMIC_DISPATCH(MatmulW4)(operands, range);
}
}  // namespace kvasir::model
#endif  // HWY_ONCE
