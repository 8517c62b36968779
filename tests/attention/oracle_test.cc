// Accuracy: every SIMD target against the double-precision oracle, within a derived bound.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "attention/oracle_run.h"
#include "support/simd_targets.h"

namespace kvasir::attention {
namespace {

using cache::CodecId;
using cache::HeadOrder;

/// Largest |out - oracle| that f32 arithmetic in the canonical order may give. u = 2^-24:
///  score   |error| <= (D + 1) u scale sum|q k|  (D fused additions and the scale), and 8 u softcap
///          for its tanh and two roundings;
///  p       exp is within 2 ulp (4 u), x - max rounds once (|x| u with |x| <= 2 max|score|), and a
///          wrong score shifts both x and max: relative error e_p = 2 e_s + 2 max|score| u + 4 u;
///          V in bf16 adds 2^-9, the rounding of p;
///  values  relative to max|v|: 2 e_p (numerator and sum), 256 u for the additions of a segment,
///          20 u for the sum's lanes and tree, 12 u for each merge, 2 u for the last division.
double bound(const AttentionParams& params, const QueryRows& rows, const Floats& q,
             const Tokens& tokens) {
  constexpr double u = 0x1p-24;
  const auto head_dim = static_cast<std::size_t>(params.head_dim);
  const auto largest = [head_dim](const Floats& values) {
    double most = 0.0;
    for (std::size_t i = 0; i < values.size(); i += head_dim) {
      double norm = 0.0;
      for (std::size_t d = 0; d < head_dim; ++d) norm += double{values[i + d]} * values[i + d];
      most = std::max(most, norm);
    }
    return std::sqrt(most);
  };
  // sum|q k| <= |q| |k|; 1.01 covers the rounding of K and V to their codec.
  const double dot = 1.01 * largest(q) * largest(tokens.k) * params.scale;
  double v_max = 0.0;
  for (const float v : tokens.v) v_max = std::max(v_max, 1.01 * std::abs(double{v}));
  const double score_error = (params.head_dim + 1) * u * dot + 8 * u * params.softcap;
  const double p_rounding = rows.kv.rows.v.codec == CodecId::kBF16 ? 0x1p-9 : 0.0;
  const double p_error = 2 * score_error + 2 * dot * u + 4 * u + p_rounding;
  const double n_segments = (rows.first_pos + rows.n_rows) / kSegmentTokens + 1;
  return v_max * (2 * p_error + (256 + 20 + 12 * n_segments + 2) * u);
}

using Case = OracleCase;

/// Prefill of all rows and decode of each against the oracle. Returns the largest error / bound.
double expect_close(const Case& c, const std::string& what) {
  const OracleRun run(c);

  const double limit = bound(run.params, run.rows, run.q, run.tokens);
  double worst = 0.0;
  for (std::size_t i = 0; i < run.out.size(); ++i) {
    const double error = std::abs(double{run.out[i]} - run.expected[i]);
    if (!(error <= limit)) {
      ADD_FAILURE() << what << ": value " << i << " is " << run.out[i] << ", oracle "
                    << run.expected[i] << ", bound " << limit << "; kv heads " << c.n_kv_heads
                    << ", heads " << c.n_heads << ", head_dim " << c.head_dim << ", first_pos "
                    << c.first_pos << ", rows " << c.n_rows;
      return error / limit;
    }
    worst = std::max(worst, error / limit);
  }
  return worst;
}

HistoryOptions codecs(CodecId k, CodecId v, int page_tokens = 64) {
  HistoryOptions options;
  options.codec_k = k;
  options.codec_v = v;
  options.page_tokens = page_tokens;
  return options;
}

TEST(Oracle, EveryLengthAroundStripsAndSegments) {
  for_each_target([](const char* target) {
    double worst = 0.0;
    worst = std::max(worst, expect_close({2, 6, 64, 0, 70}, target));
    worst = std::max(worst, expect_close({2, 6, 64, 254, 5}, target));
    worst = std::max(worst, expect_close({2, 6, 64, 510, 5}, target));
    worst = std::max(worst, expect_close({1, 3, 64, 1029, 1}, target));
    worst = std::max(worst, expect_close({1, 3, 64, 1030, 2}, target));
    RecordProperty(std::string("worst_") + target, std::to_string(worst));
    EXPECT_GT(worst, 0.0) << "the oracle was compared with itself";
  });
}

TEST(Oracle, HeadDims) {
  for_each_target([](const char* target) {
    for (const int head_dim :
         {8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 96, 112, 120, 128, 256, 512}) {
      expect_close({2, 4, head_dim, 0, 20}, target);
      expect_close({1, 1, head_dim, 300, 1}, target);
      expect_close({1, 3, head_dim, 260, 1}, target);
    }
  });
}

TEST(Oracle, HeadsPerKvHead) {
  for_each_target([](const char* target) {
    for (const int ratio : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 71}) {
      expect_close({2, 2 * ratio, 48, 0, 19}, target);
      expect_close({2, 2 * ratio, 48, 270, 1}, target);
      expect_close({2, 2 * ratio, 48, 270, 3}, target);
    }
  });
}

TEST(Oracle, Codecs) {
  const CodecId all[] = {CodecId::kF32, CodecId::kF16, CodecId::kBF16};
  for_each_target([&](const char* target) {
    for (const CodecId k : all) {
      for (const CodecId v : all) {
        expect_close({2, 6, 64, 0, 18, codecs(k, v)}, target);
        expect_close({2, 6, 72, 300, 1, codecs(k, v, 16)}, target);
        expect_close({2, 4, 40, 250, 12, codecs(k, v, 512)}, target);
      }
    }
  });
}

TEST(Oracle, SoftcapAndWindow) {
  for_each_target([](const char* target) {
    expect_close({2, 6, 64, 500, 40, {}, 2.0f}, target);
    expect_close({2, 6, 64, 500, 1, {}, 50.0f}, target);
    for (const int window : {1, 2, 15, 16, 17, 100, 256, 300}) {
      expect_close({2, 6, 64, 500, 40, {}, 0.0f, window}, target);
      expect_close({2, 6, 64, 515, 1, {}, 30.0f, window}, target);
    }
  });
}

// Scores that differ by hundreds: exponents underflow, and the maximum moves from one segment to
// the next in both directions.
TEST(Oracle, LargeScores) {
  for_each_target([](const char* target) {
    for (const int n_rows : {1, 30}) {
      const Tokens tokens(700, 1, 64, 3);
      const History history(tokens, codecs(CodecId::kF32, CodecId::kF32));
      AttentionParams params = params_of(3, 64);
      params.scale = 5.0f;  // scores of several hundred
      const Floats q = random_floats(static_cast<std::size_t>(n_rows) * params.q_row_stride, 5);
      const QueryRows rows = rows_of(history, 700 - n_rows, n_rows);
      ThreadPool pool(1);
      const Floats out = run_attend(pool, params, {&rows, 1}, q);
      Floats expected(q.size());
      attend_reference(params, {&rows, 1}, q.data(), expected.data());
      const double limit = bound(params, rows, q, tokens);
      ASSERT_LT(limit, 0.05);
      for (std::size_t i = 0; i < out.size(); ++i) {
        ASSERT_NEAR(out[i], expected[i], limit) << target << " " << i;
      }
    }
  });
}

TEST(Oracle, OneTokenGivesItsValueExactly) {
  const Tokens tokens(1, 2, 64, 3);
  const History history(tokens, codecs(CodecId::kF32, CodecId::kF32));
  const AttentionParams params = params_of(6, 64);
  const Floats q = random_floats(params.q_row_stride, 5);
  const QueryRows rows = rows_of(history, 0, 1);
  for_each_target([&](const char* target) {
    ThreadPool pool(1);
    const Floats out = run_attend(pool, params, {&rows, 1}, q);
    for (std::size_t head = 0; head < 6; ++head) {
      for (std::size_t d = 0; d < 64; ++d) {
        ASSERT_EQ(out[head * 64 + d], tokens.v[head / 3 * 64 + d]) << target;
      }
    }
  });
}

}  // namespace
}  // namespace kvasir::attention
