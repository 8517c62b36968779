// Matmul: every format on every SIMD target, against a double oracle with a derived bound, and bit
// for bit the same alone, in a batch, on any number of threads and on every target.
#include "model/matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "model/weight_blocks.h"
#include "support/random_weights.h"
#include "support/simd_targets.h"

namespace kvasir::model {
namespace {

using gguf::TensorType;

std::string name_of(TensorType type) { return std::string(gguf::type_traits(type)->name); }
bool is_float(TensorType type) { return gguf::type_traits(type)->block_values == 1; }

// A matrix and, for the bound, |scale * code| + |minimum| of each weight.
struct Weights {
  OwnedTensor tensor;
  Matrix matrix;
  std::vector<float> magnitudes;
};

Weights make_weights(TensorType type, int n_rows, int n_cols, int fill = -1) {
  Weights w;
  w.tensor =
      random_weights(type, n_rows, n_cols, static_cast<unsigned>(n_rows * 1000 + n_cols), fill);
  ThreadPool pool(1);
  const gguf::TensorInfo* tensors[] = {&w.tensor.info};
  w.matrix = Matrix::pack(gguf::File(), tensors, pool).value();
  w.magnitudes.resize(w.tensor.info.n_values());
  EXPECT_TRUE(dequantize(type, w.tensor.bytes, w.magnitudes.size(), w.magnitudes.data()));
  for (float& m : w.magnitudes) m = std::fabs(m);
  const BlockUnpacker unpacker = block_unpacker(type);
  if (unpacker.unpack == nullptr) return w;
  UnpackedBlock block;
  const gguf::TypeTraits& traits = *gguf::type_traits(type);
  for (std::size_t i = 0; i < w.magnitudes.size(); ++i) {
    const std::size_t within = i % traits.block_values;
    if (within == 0) {
      unpacker.unpack(w.tensor.bytes.data() + i / traits.block_values * traits.block_bytes, block);
    }
    const std::size_t g = within / static_cast<std::size_t>(unpacker.group_cols);
    w.magnitudes[i] = std::fabs(block.scales[g] * static_cast<float>(block.codes[within])) +
                      std::fabs(block.minima[g]);
  }
  return w;
}

std::vector<float> random_activations(int n_tokens, int n_cols, unsigned seed) {
  std::vector<float> x(static_cast<std::size_t>(n_tokens) * static_cast<std::size_t>(n_cols));
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (float& v : x) v = normal(random);
  return x;
}

std::vector<float> multiply(ThreadPool& pool, const Matrix& w, ActivationMode mode, const float* x,
                            int n_tokens) {
  Activations activations;
  activations.prepare(pool, mode, x, n_tokens, w.n_cols(), static_cast<std::size_t>(w.n_cols()));
  const std::size_t stride = static_cast<std::size_t>(w.n_rows()) + 3;
  const float untouched = -12345.0f;
  std::vector<float> y(stride * static_cast<std::size_t>(n_tokens), untouched);
  matmul(pool, w, activations, y.data(), stride);
  std::vector<float> dense;
  for (int t = 0; t < n_tokens; ++t) {
    const float* row = y.data() + static_cast<std::size_t>(t) * stride;
    dense.insert(dense.end(), row, row + w.n_rows());
    for (std::size_t i = stride - 3; i < stride; ++i)
      EXPECT_EQ(row[i], untouched) << "wrote past a row";
  }
  return dense;
}

// |y - oracle| <= roundings * 2^-24 * sum |x| (|scale code| + |minimum|), and the oracle's own
// rounding. Integer: a group adds two products with 2 + 2 roundings and takes part in n_groups
// later sums of two roundings each, plus one each for sa and da * dot. Float: 32 sums within a
// group, one for the product's fused add, n_groups sums of groups.
void expect_close(const Weights& w, ActivationMode mode, const float* x, int n_tokens,
                  const std::vector<float>& y, const std::string& what) {
  ThreadPool pool(1);
  const Matrix& m = w.matrix;
  Activations activations;
  activations.prepare(pool, mode, x, n_tokens, m.n_cols(), static_cast<std::size_t>(m.n_cols()));
  std::vector<float> want(y.size());
  matmul_reference(m, activations, want.data(), static_cast<std::size_t>(m.n_rows()));
  const bool integer = mode == ActivationMode::kInt8 && !is_float(w.tensor.info.type);
  const int n_groups = (m.n_cols() + 15) / m.format().group_cols;
  const double roundings = integer ? 2 * n_groups + 4 : 34 + n_groups;
  for (int t = 0; t < n_tokens; ++t) {
    for (int r = 0; r < m.n_rows(); ++r) {
      double magnitude = 0;
      for (int c = 0; c < m.n_cols(); ++c) {
        double value = x[t * m.n_cols() + c];
        if (integer) {
          const ActivationGroup& group = activations.rows().groups(t)[c / 32];
          value = static_cast<double>(group.scale) * group.codes[c % 32];
        }
        magnitude +=
            std::fabs(value) *
            static_cast<double>(w.magnitudes[static_cast<std::size_t>(r * m.n_cols() + c)]);
      }
      const std::size_t i = static_cast<std::size_t>(t * m.n_rows() + r);
      const double bound =
          0x1p-24 * (roundings * magnitude + std::fabs(static_cast<double>(want[i])));
      ASSERT_LE(std::fabs(static_cast<double>(y[i]) - static_cast<double>(want[i])), bound)
          << what << " token " << t << " row " << r;
    }
  }
}

void expect_same_bits(const std::vector<float>& a, const float* b, const std::string& what) {
  ASSERT_EQ(std::memcmp(a.data(), b, a.size() * sizeof(float)), 0) << what;
}

// All checks of one matrix: the oracle once, then bits across targets, threads and batches.
void check(TensorType type, ActivationMode mode, int n_rows, int n_cols, int n_tokens) {
  const Weights w = make_weights(type, n_rows, n_cols);
  const std::vector<float> x = random_activations(n_tokens, n_cols, 5);
  std::vector<float> first;
  for_each_target([&](const char* target) {
    const std::string what = name_of(type) + (mode == ActivationMode::kInt8 ? " int8 " : " f32 ") +
                             std::to_string(n_rows) + "x" + std::to_string(n_cols) + " tokens " +
                             std::to_string(n_tokens) + " on " + target;
    ThreadPool one(1);
    const std::vector<float> y = multiply(one, w.matrix, mode, x.data(), n_tokens);
    if (first.empty()) {
      first = y;
      expect_close(w, mode, x.data(), n_tokens, y, what);
    }
    expect_same_bits(first, y.data(), what + ": differs from the first target");
    for (int t = 0; t < n_tokens; t += 1 + n_tokens / 5) {
      const std::vector<float> alone = multiply(one, w.matrix, mode, x.data() + t * n_cols, 1);
      expect_same_bits(alone, y.data() + t * n_rows,
                       what + ": row alone differs, token " + std::to_string(t));
    }
  });
}

int columns_for(TensorType type, int n) {
  return gguf::type_traits(type)->block_values == 256 ? (n + 255) / 256 * 256 : n;
}

TEST(Matmul, EveryFormatAtEveryRowCount) {
  for (const TensorType type : kWeightTypes) {
    for (int n_rows = 1; n_rows <= 33; ++n_rows)
      check(type, ActivationMode::kInt8, n_rows, columns_for(type, 64), 2);
    check(type, ActivationMode::kInt8, 64, columns_for(type, 64), 5);
  }
}

TEST(Matmul, EveryFormatAtEveryTokenCount) {
  for (const TensorType type : kWeightTypes) {
    for (const int n_tokens : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33}) {
      check(type, ActivationMode::kInt8, 35, columns_for(type, 96), n_tokens);
    }
  }
}

TEST(Matmul, EveryFormatInFloatMode) {
  for (const TensorType type : kWeightTypes) {
    for (const int n_rows : {1, 15, 16, 17, 33, 64})
      check(type, ActivationMode::kFloat32, n_rows, columns_for(type, 32), 3);
    for (const int n_tokens : {1, 2, 4, 5, 6, 7, 8, 9, 13, 16, 17, 33}) {
      check(type, ActivationMode::kFloat32, 35, columns_for(type, 160), n_tokens);
    }
  }
}

TEST(Matmul, EveryFormatAtSeveralWidths) {
  for (const TensorType type : kWeightTypes) {
    for (const int n_cols : {32, 64, 128, 192, 288, 576, 1536}) {
      if (columns_for(type, n_cols) != n_cols) continue;
      check(type, ActivationMode::kInt8, 18, n_cols, 5);
      check(type, ActivationMode::kFloat32, 18, n_cols, 7);
    }
  }
}

TEST(Matmul, FloatFormatsTakeAnyWidthInBothModes) {
  for (const TensorType type : {TensorType::kF32, TensorType::kF16, TensorType::kBF16}) {
    for (const int n_cols : {1, 7, 31, 33, 172, 300}) {
      check(type, ActivationMode::kInt8, 17, n_cols, 9);
      check(type, ActivationMode::kFloat32, 17, n_cols, 2);
    }
  }
}

TEST(Matmul, ThreadsAndLargeBatchesDoNotChangeBits) {
  // 600 tokens make several tasks of tokens, 700 rows several of rows.
  const int n_rows = 700, n_cols = 256, n_tokens = 600;
  for (const TensorType type : {TensorType::kQ4_1, TensorType::kQ6_K, TensorType::kF16}) {
    const Weights w = make_weights(type, n_rows, n_cols);
    const std::vector<float> x = random_activations(n_tokens, n_cols, 6);
    for (const ActivationMode mode : {ActivationMode::kInt8, ActivationMode::kFloat32}) {
      ThreadPool one(1), two(2), three(3);
      const std::vector<float> y = multiply(one, w.matrix, mode, x.data(), n_tokens);
      expect_same_bits(y, multiply(two, w.matrix, mode, x.data(), n_tokens).data(),
                       name_of(type) + " 2 threads");
      expect_same_bits(y, multiply(three, w.matrix, mode, x.data(), n_tokens).data(),
                       name_of(type) + " 3 threads");
      for (const int t : {0, 1, 191, 192, 239, 240, 241, 480, 599}) {
        for (ThreadPool* pool : {&one, &two, &three}) {
          const std::vector<float> alone =
              multiply(*pool, w.matrix, mode, x.data() + t * n_cols, 1);
          expect_same_bits(alone, y.data() + t * n_rows,
                           name_of(type) + " token " + std::to_string(t));
        }
      }
    }
  }
}

TEST(Matmul, ExtremesDoNotSaturate) {
  for (const TensorType type : kWeightTypes) {
    if (is_float(type)) continue;
    const int n_cols = 512;
    // 0x80 is code -128 in Q8_0; 0x7F and 0xFF the largest codes of the others.
    for (const int fill : {0x00, 0x7F, 0x80, 0xFF}) {
      const Weights w = make_weights(type, 18, n_cols, fill);
      for (const float sign : {1.0f, -1.0f}) {
        const std::vector<float> x(static_cast<std::size_t>(5 * n_cols),
                                   sign);  // every code is +-127
        for_each_target([&](const char* target) {
          ThreadPool pool(1);
          const std::vector<float> y = multiply(pool, w.matrix, ActivationMode::kInt8, x.data(), 5);
          expect_close(w, ActivationMode::kInt8, x.data(), 5, y,
                       name_of(type) + " fill " + std::to_string(fill) + " on " + target);
        });
      }
    }
  }
}

TEST(Activations, CodesAreNearestAndSumsAreTheirs) {
  const int n_cols = 96, n_tokens = 3;
  std::vector<float> x = random_activations(n_tokens + 1, n_cols, 8);
  const float* misaligned = x.data() + 1;
  ThreadPool pool(2);
  std::vector<ActivationGroup> first;
  for_each_target([&](const char* target) {
    Activations activations;
    activations.prepare(pool, ActivationMode::kInt8, misaligned, n_tokens, n_cols, n_cols);
    ASSERT_TRUE(activations.has_groups());
    for (int t = 0; t < n_tokens; ++t) {
      for (int g = 0; g < n_cols / 32; ++g) {
        const ActivationGroup& group = activations.rows().groups(t)[g];
        const float* values = misaligned + t * n_cols + 32 * g;
        float magnitude = 0;
        int sums[2] = {0, 0};
        for (int i = 0; i < 32; ++i) {
          magnitude = std::fmax(magnitude, std::fabs(values[i]));
          sums[i / 16] += group.codes[i];
          const double exact = static_cast<double>(values[i]) / static_cast<double>(group.scale);
          EXPECT_LE(std::fabs(exact - group.codes[i]), 0.5 + 1e-4) << target;
        }
        EXPECT_EQ(group.scale, magnitude / 127.0f) << target;
        EXPECT_EQ(group.minus_code_sum, -(sums[0] + sums[1])) << target;
        EXPECT_EQ(group.sum, group.scale * static_cast<float>(sums[0] + sums[1])) << target;
        for (int h = 0; h < 2; ++h) {
          EXPECT_EQ(group.minus_half_code_sums[h], -sums[h]) << target;
          EXPECT_EQ(group.half_sums[h], group.scale * static_cast<float>(sums[h])) << target;
        }
      }
    }
    std::vector<ActivationGroup> all(activations.rows().groups(0),
                                     activations.rows().groups(0) + 9);
    if (first.empty()) first = all;
    EXPECT_EQ(std::memcmp(all.data(), first.data(), all.size() * sizeof(ActivationGroup)), 0)
        << target;
  });
}

TEST(Activations, ZeroTinyAndNanGroups) {
  std::vector<float> x(128, 0.0f);
  x[32] = 1e-39f;
  x[64] = std::numeric_limits<float>::quiet_NaN();
  x[96] = std::numeric_limits<float>::infinity();
  ThreadPool pool(1);
  for_each_target([&](const char* target) {
    Activations activations;
    activations.prepare(pool, ActivationMode::kInt8, x.data(), 1, 128, 128);
    const ActivationGroup* groups = activations.rows().groups(0);
    EXPECT_EQ(groups[0].scale, 0.0f) << target;
    EXPECT_EQ(groups[1].scale, 0.0f) << target;
    EXPECT_EQ(groups[1].codes[0], 0) << target;
    EXPECT_TRUE(std::isnan(groups[2].scale)) << target;
    EXPECT_TRUE(std::isinf(groups[3].scale)) << target;
    for (int i = 0; i < 128; ++i) EXPECT_GE(groups[i / 32].codes[i % 32], -127) << target;
  });
}

TEST(Activations, ANanReachesTheResult) {
  const Weights w = make_weights(TensorType::kQ4_1, 16, 64);
  std::vector<float> x(64, 1.0f);
  x[40] = std::numeric_limits<float>::quiet_NaN();
  ThreadPool pool(1);
  for (const ActivationMode mode : {ActivationMode::kInt8, ActivationMode::kFloat32}) {
    for (const float y : multiply(pool, w.matrix, mode, x.data(), 1)) EXPECT_TRUE(std::isnan(y));
  }
}

TEST(Activations, BufferGrowsAndIsKept) {
  ThreadPool pool(1);
  const std::vector<float> x(64 * 9, 1.0f);
  Activations activations;
  activations.prepare(pool, ActivationMode::kFloat32, x.data(), 9, 64, 64);
  EXPECT_EQ(activations.scratch_bytes(), 0u);
  activations.prepare(pool, ActivationMode::kInt8, x.data(), 9, 64, 64);
  EXPECT_EQ(activations.scratch_bytes(), 9u * 2u * sizeof(ActivationGroup));
  activations.prepare(pool, ActivationMode::kInt8, x.data(), 2, 64, 64);
  EXPECT_EQ(activations.scratch_bytes(), 9u * 2u * sizeof(ActivationGroup));
  activations.prepare(pool, ActivationMode::kInt8, x.data(), 2, 48, 48);
  EXPECT_FALSE(activations.has_groups());
}

}  // namespace
}  // namespace kvasir::model
