// K and V in codes: the same tokens give the same bits, however they are chunked, paged, batched or
// threaded, although tiles are sealed on the way.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "model/harness.h"

namespace kvasir::model {
namespace {

using cache::CodecId;
using cache::HeadOrder;
using testing::Grouping;
using testing::Harness;
using testing::Layout;
using testing::random_tokens;
using testing::run_in_chunks;

constexpr int kTokens = 330;  // five tiles and some, two segments of 256

struct Case {
  const char* name;
  const char* file;
  std::vector<cache::LayerCodecs> codecs;  ///< one: of all layers
  int n_sink_tiles, n_tail_tiles;
  bool has_basis = false;
};

const char* const kLlama = "arch_vectors/llama_9q3kv_hd64.gguf";
const char* const kGemma2 = "arch_vectors/gemma2_b.gguf";
const char* const kGemma3 = "arch_vectors/gemma3.gguf";

const Case kCases[] = {
    {"LlamaInt8", kLlama, {{CodecId::kInt8, CodecId::kInt8}}, 1, 1},
    {"LlamaInt8G64", kLlama, {{CodecId::kInt8G64, CodecId::kInt8G64}}, 1, 1},
    {"LlamaTile4", kLlama, {{CodecId::kTile4, CodecId::kTile4}}, 1, 1},
    {"LlamaTile4InABasis", kLlama, {{CodecId::kTile4, CodecId::kTile4}}, 1, 1, true},
    {"LlamaTile4Tile3", kLlama, {{CodecId::kTile4, CodecId::kTile3}}, 0, 0},
    {"LlamaByLayer",
     kLlama,
     {{CodecId::kInt8, CodecId::kTile4}, {CodecId::kTile5, CodecId::kInt8G64}},
     2,
     0},
    {"Gemma2Int8", kGemma2, {{CodecId::kInt8, CodecId::kInt8}}, 1, 1},
    {"Gemma2Tile4", kGemma2, {{CodecId::kTile4, CodecId::kTile4}}, 0, 0},
    {"Gemma2Tile5F16", kGemma2, {{CodecId::kTile5, CodecId::kF16}}, 1, 1},
    {"Gemma3ByLayer",
     kGemma3,
     {{CodecId::kTile4, CodecId::kTile4},
      {CodecId::kInt8, CodecId::kInt8},
      {CodecId::kF16, CodecId::kF16},
      {CodecId::kTile4, CodecId::kInt8},
      {CodecId::kBF16, CodecId::kInt8G64},
      {CodecId::kTile5, CodecId::kTile3},
      {CodecId::kF16, CodecId::kF16}},
     0,
     0},
    {"Gemma3Tile5InABasis", kGemma3, {{CodecId::kTile5, CodecId::kInt8}}, 1, 0, true},
    {"Gemma3Int8Tile4", kGemma3, {{CodecId::kInt8, CodecId::kTile4}}, 1, 0},
};

class CodedKv : public ::testing::TestWithParam<Case> {
 protected:
  static Layout layout(int page_tokens, HeadOrder order = HeadOrder::kSplit,
                       Grouping grouping = Grouping::kModel) {
    const Case& c = GetParam();
    Layout made;
    made.page_tokens = page_tokens;
    made.head_order = order;
    made.grouping = grouping;
    made.codecs = c.codecs[0];
    if (c.codecs.size() > 1) made.layer_codecs = c.codecs;
    made.n_sink_tiles = c.n_sink_tiles;
    made.n_tail_tiles = c.n_tail_tiles;
    made.has_basis = c.has_basis;
    return made;
  }

  void SetUp() override {
    harness_ = Harness::load(GetParam().file);
    ASSERT_NE(harness_, nullptr);
    tokens_ = random_tokens(kTokens, harness_->vocab_size(), 7);
    want_ = run(*harness_, layout(512), {kTokens});
  }

  std::vector<float> run(Harness& harness, const Layout& layout, const std::vector<int>& chunks) {
    return run_in_chunks(harness, layout, tokens_, chunks);
  }

  ::testing::AssertionResult as_wanted(const std::vector<float>& got, std::size_t first = 0) const {
    return testing::same_bits(got, std::span(want_).subspan(first));
  }

  std::unique_ptr<Harness> harness_;
  std::vector<TokenId> tokens_;
  std::vector<float> want_;
};

TEST_P(CodedKv, OverChunkingsAndPages) {
  const std::vector<int> chunkings[] = {{1}, {64}, {97, 3}, {255, 1}, {63, 2}, {kTokens}};
  const Layout layouts[] = {layout(64),
                            layout(128),
                            layout(256, HeadOrder::kInterleaved),
                            layout(64, HeadOrder::kInterleaved),
                            layout(64, HeadOrder::kSplit, Grouping::kPerLayer),
                            layout(512)};
  for (std::size_t i = 0; i < std::size(layouts); ++i) {
    for (const std::size_t j : {i, (i + 1) % std::size(chunkings)}) {
      EXPECT_TRUE(as_wanted(run(*harness_, layouts[i], chunkings[j])))
          << "chunks of " << chunkings[j][0] << ", page " << layouts[i].page_tokens;
    }
  }
}

TEST_P(CodedKv, OverThreads) {
  auto threaded = Harness::load(GetParam().file, 3);
  ASSERT_NE(threaded, nullptr);
  for (const std::vector<int>& chunks : {std::vector<int>{kTokens}, {1}, {100, 28}}) {
    EXPECT_TRUE(as_wanted(run(*threaded, layout(64), chunks))) << "chunks of " << chunks[0];
  }
}

/// A fork in the middle of a page, of whose tiles some are sealed; and going back.
TEST_P(CodedKv, ForksAndTruncatesEqualRecomputing) {
  const auto n_vocab = static_cast<std::size_t>(harness_->vocab_size());
  for (const int page_tokens : {64, 128, 256}) {
    for (const int n_first : {64, 150, 192, 250}) {
      const auto n = static_cast<std::size_t>(n_first);
      auto kv = harness_->make_cache(layout(page_tokens));
      cache::Sequence sequence = kv->open();
      harness_->forward(sequence, std::span(tokens_).first(n), 0);
      auto fork = sequence.fork();
      ASSERT_TRUE(fork.has_value());
      const auto noise = random_tokens(70, harness_->vocab_size(), 99);
      harness_->forward(sequence, noise, 0);  // the parent writes on in its own copy
      const auto rest = std::span(tokens_).subspan(n);
      EXPECT_TRUE(
          as_wanted(harness_->forward(*fork, rest, static_cast<int>(rest.size())), n * n_vocab))
          << "fork at " << n_first << ", page " << page_tokens;
      const Status status = sequence.truncate(n_first);
      if (!status) {  // a window, or the rows beside tiles, have passed
        EXPECT_EQ(status.error().code, ErrorCode::kUnsupported);
        continue;
      }
      EXPECT_TRUE(
          as_wanted(harness_->forward(sequence, rest, static_cast<int>(rest.size())), n * n_vocab))
          << "truncated to " << n_first << ", page " << page_tokens;
      kv->check_invariants();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CodedKv, ::testing::ValuesIn(kCases),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace kvasir::model
