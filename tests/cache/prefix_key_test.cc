#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cache/prefix/page_key.h"

namespace kvasir::cache {
namespace {

Fingerprint counting(int first, int step) {
  Fingerprint fingerprint;
  for (int i = 0; i < 32; ++i) {
    fingerprint[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(first + step * i);
  }
  return fingerprint;
}

KeyScope full_scope() {
  return {.salt = "tenant-7",
          .model = counting(0, 1),
          .tokenizer = counting(255, -1),
          .rope = "theta=10000 halves",
          .adapter = "lora@3",
          .codec_k = CodecId::kBF16,
          .codec_v = CodecId::kF32,
          .page_tokens = 16,
          .head_order = HeadOrder::kInterleaved,
          .geometry_version = 2,
          .activations = "int8"};
}

// Every expected key was computed with Python's hashlib from the format in page_key.h.
TEST(PageKey, IsTheSha256ThatTheHeaderDescribes) {
  EXPECT_EQ(root_key({}).to_hex(),
            "d93e0deeff7e496ea98d048e7480beeb8daa94931f5128be66c3ed0da2159e8f");
  const PageKey root = root_key(full_scope());
  EXPECT_EQ(root.to_hex(), "787a7aab97e89bfada2f739043f0d8c143e8accb25ccf2fb1fb270c72de318df");
  const PageKey first = next_key(root, std::vector<TokenId>{1, 2, 300, -1, 2147483647});
  EXPECT_EQ(first.to_hex(), "37b438f802205df6e2a2c23c9f7f2c994b3dcaedda575925a5d1d14a0785c57e");
  const PageKey second = next_key(first, std::vector<TokenId>{0});
  EXPECT_EQ(second.to_hex(), "a3082ca0c0f1344ee075eafbdea7b615ebe4111ddbaced96eade4a99d690eb2e");
  EXPECT_EQ(next_key(PageKey{}, {}).to_hex(),
            "2c34ce1df23b838c5abf2a7f6437cca3d3067ed509ff25f11df6b11b582b51eb");
}

TEST(PageKey, EveryFieldOfTheScopeChangesItAndIsNamed) {
  using Change = std::function<void(KeyScope&)>;
  // In the order in which first_difference looks.
  const std::vector<std::pair<std::string, Change>> changes = {
      {"salt", [](KeyScope& scope) { scope.salt += "x"; }},
      {"model", [](KeyScope& scope) { scope.model[31] ^= 1; }},
      {"tokenizer", [](KeyScope& scope) { scope.tokenizer[0] ^= 128; }},
      {"rope", [](KeyScope& scope) { scope.rope = "theta=10000 neighbours"; }},
      {"adapter", [](KeyScope& scope) { scope.adapter.clear(); }},
      {"codec_k", [](KeyScope& scope) { scope.codec_k = CodecId::kF16; }},
      {"codec_v", [](KeyScope& scope) { scope.codec_v = CodecId::kF16; }},
      {"codec_layers", [](KeyScope& scope) { scope.codec_layers = "tail 1"; }},
      {"page_tokens", [](KeyScope& scope) { scope.page_tokens = 32; }},
      {"head_order", [](KeyScope& scope) { scope.head_order = HeadOrder::kSplit; }},
      {"geometry_version", [](KeyScope& scope) { scope.geometry_version = 3; }},
      {"activations", [](KeyScope& scope) { scope.activations = "f32"; }},
      {"arithmetic_version", [](KeyScope& scope) { scope.arithmetic_version = 2; }}};
  const KeyScope scope = full_scope();
  EXPECT_EQ(first_difference(scope, scope), "");
  std::set<std::string> keys = {root_key(scope).to_hex()};
  KeyScope all_later = scope;  // this change and all that stand after it
  for (auto change = changes.rbegin(); change != changes.rend(); ++change) {
    KeyScope one = scope;
    change->second(one);
    change->second(all_later);
    EXPECT_EQ(first_difference(scope, one), change->first);
    EXPECT_EQ(first_difference(one, scope), change->first);
    EXPECT_EQ(first_difference(scope, all_later), change->first) << "the first one counts";
    EXPECT_TRUE(keys.insert(root_key(one).to_hex()).second) << change->first;
  }
  EXPECT_EQ(keys.size(), 14u);
}

TEST(PageKey, LengthsKeepNeighboursApart) {
  KeyScope a, b;
  a.rope = "ab";
  a.adapter = "c";
  b.rope = "a";
  b.adapter = "bc";
  EXPECT_NE(root_key(a), root_key(b));
  // The same bytes, cut into pages elsewhere.
  const PageKey root = root_key({});
  const std::vector<TokenId> tokens = {1, 2, 3};
  const std::span<const TokenId> all = tokens;
  EXPECT_NE(next_key(next_key(root, all.first(1)), all.subspan(1)),
            next_key(next_key(root, all.first(2)), all.subspan(2)));
  EXPECT_NE(next_key(root, all), next_key(root, all.first(2)));
  const std::string zero("\0", 1);
  a = b = {};
  a.salt = zero;
  EXPECT_NE(root_key(a), root_key(b)) << "a zero byte is not nothing";
}

TEST(PageKey, DependsOnTheOrderOfTokensAndOnAllBefore) {
  const PageKey root = root_key({});
  const std::vector<TokenId> ab = {1, 2}, ba = {2, 1};
  EXPECT_NE(next_key(root, ab), next_key(root, ba));
  EXPECT_NE(next_key(next_key(root, ab), ab), next_key(next_key(root, ba), ab));
  EXPECT_EQ(next_key(next_key(root, ab), ba), next_key(next_key(root, ab), ba));
}

TEST(PageKey, HexIsReadBackAndNothingElse) {
  const PageKey key = root_key(full_scope());
  const std::string hex = key.to_hex();
  ASSERT_TRUE(PageKey::from_hex(hex));
  EXPECT_EQ(*PageKey::from_hex(hex), key);
  EXPECT_FALSE(PageKey::from_hex(""));
  EXPECT_FALSE(PageKey::from_hex(hex.substr(1)));
  EXPECT_FALSE(PageKey::from_hex(hex + "0"));
  for (const char bad : {'g', 'A', ' ', '\0', '/', ':'}) {
    std::string text = hex;
    text[63] = bad;
    EXPECT_FALSE(PageKey::from_hex(text)) << static_cast<int>(bad);
  }
}

}  // namespace
}  // namespace kvasir::cache
