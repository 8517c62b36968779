// Matmul kernels of the 8-bit weight formats, one instance each.
#include "model/matmul_kernels.h"
#include "simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/matmul_w8.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "model/matmul_integer-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::model {
namespace HWY_NAMESPACE {

// clang-format off
template <template <int, int> class Dot>
using W8Formats = FormatList<
    IntegerFormat<Dot, 8, 32, false, false, 128>,  // Q5_0, Q8_0, IQ4_NL
    IntegerFormat<Dot, 8, 32, false, true, 128>,   // Q5_1
    IntegerFormat<Dot, 8, 32, true, true, 128>,    // Q5_K
    IntegerFormat<Dot, 8, 32, true, false, 128>,   // IQ4_XS
    IntegerFormat<Dot, 8, 16, true, false, 128>    // Q6_K
    >;
// clang-format on

void MatmulW8(const MatmulOperands& operands, const MatmulRange& range) {
  DispatchDot<W8Formats>(operands, range);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvasir::model
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::model {
HWY_EXPORT(MatmulW8);
void matmul_w8(const MatmulOperands& operands, const MatmulRange& range) {
  HWY_DYNAMIC_DISPATCH(MatmulW8)(operands, range);
}
}  // namespace kvasir::model
#endif  // HWY_ONCE
