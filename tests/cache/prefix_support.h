// What a token stores in tests of sharing: values derived from the hash of all tokens up to it. A
// page shared by mistake, a missed copy or a slot too many shows as a wrong value.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache/cache.h"
#include "cache/codec/row_codec.h"

namespace kvasir::cache::testing {

using Tokens = std::vector<TokenId>;

inline std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9E3779B97F4A7C15u + b + 0x7F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  return x ^ (x >> 29);
}

/// A sequence with the tokens it ought to hold.
struct Twin {
  Sequence sequence;
  Tokens tokens;
  PageKey root;
};

/// Hash of the root and the tokens up to and including each position.
inline std::vector<std::uint64_t> histories(const Twin& twin) {
  std::vector<std::uint64_t> hashes;
  std::uint64_t hash = std::hash<PageKey>()(twin.root);
  for (const TokenId token : twin.tokens) {
    hash = mix(hash, static_cast<std::uint64_t>(token));
    hashes.push_back(hash);
  }
  return hashes;
}

enum class Kind : std::uint64_t { kK = 1, kV = 2 };

/// A value that every codec stores exactly.
inline float content(std::uint64_t history, int layer, Kind kind, int head, int dim) {
  const auto where = static_cast<std::uint64_t>((layer * 64 + head) * 1024 + dim);
  return static_cast<float>(mix(history, where * 4 + static_cast<std::uint64_t>(kind)) % 255) - 127;
}

/// Writes K and V of the tokens from `first` on, in every layer, as a model would.
inline void write_tokens(const Twin& twin, int first) {
  const std::vector<std::uint64_t> hashes = histories(twin);
  const auto views = twin.sequence.views();
  for (int layer = 0; layer < static_cast<int>(views.size()); ++layer) {
    const PagedKvView& view = views[static_cast<std::size_t>(layer)];
    const auto row = static_cast<std::size_t>(view.n_kv_heads * view.head_dim);
    std::vector<float> k(row), v(row);
    for (auto pos = static_cast<std::size_t>(first); pos < hashes.size(); ++pos) {
      for (std::size_t j = 0; j < row; ++j) {
        const int head = static_cast<int>(j) / view.head_dim;
        const int dim = static_cast<int>(j) % view.head_dim;
        k[j] = content(hashes[pos], layer, Kind::kK, head, dim);
        v[j] = content(hashes[pos], layer, Kind::kV, head, dim);
      }
      write_kv(view, static_cast<Position>(pos), 1, k.data(), v.data(), row);
    }
  }
}

/// Every slot of every live page holds what its own history says, and every page is live that a
/// query at the end sees.
inline ::testing::AssertionResult holds(const CacheOptions& options, const Twin& twin) {
  const int n_tokens = static_cast<int>(twin.tokens.size());
  if (twin.sequence.n_tokens() != n_tokens) {
    return ::testing::AssertionFailure()
           << twin.sequence.n_tokens() << " tokens, want " << n_tokens;
  }
  const std::vector<std::uint64_t> hashes = histories(twin);
  const auto views = twin.sequence.views();
  for (const GroupSpec& group : options.groups) {
    for (const int layer : group.layers) {
      const PagedKvView& view = views[static_cast<std::size_t>(layer)];
      std::vector<float> k(static_cast<std::size_t>(view.head_dim)), v(k.size());
      for (int pos = 0; pos < n_tokens; ++pos) {
        const bool is_visible = group.window == 0 || pos > n_tokens - group.window;
        const auto where = [&](const char* what) {
          return ::testing::AssertionFailure()
                 << what << ": layer " << layer << " pos " << pos << " of " << n_tokens;
        };
        if (view.rows.frames[pos / options.page_tokens] == nullptr) {
          if (is_visible) return where("page freed that is seen");
          continue;
        }
        const std::uint64_t hash = hashes[static_cast<std::size_t>(pos)];
        for (int head = 0; head < view.n_kv_heads; ++head) {
          read_k(view, pos, head, k.data());
          read_v(view, pos, head, v.data());
          for (int d = 0; d < view.head_dim; ++d) {
            const auto at = static_cast<std::size_t>(d);
            if (k[at] != content(hash, layer, Kind::kK, head, d)) return where("K differs");
            if (v[at] != content(hash, layer, Kind::kV, head, d)) return where("V differs");
          }
        }
      }
    }
  }
  return ::testing::AssertionSuccess();
}

/// What the cache has of `prompt`.
inline Twin open_twin(KvCache& cache, const PageKey& root, std::span<const TokenId> prompt,
                      Match& match) {
  Twin twin{.sequence = cache.open(root, prompt, match), .tokens = {}, .root = root};
  twin.tokens.assign(prompt.begin(), prompt.begin() + match.position);
  return twin;
}

/// Computes the rest of `prompt` in one step, as the engine does. Requires: it begins with the
/// twin's tokens.
inline Status compute(Twin& twin, std::span<const TokenId> prompt, double seconds_per_token = 1) {
  const int first = static_cast<int>(twin.tokens.size());
  KVASIR_RETURN_IF_ERROR(twin.sequence.append(static_cast<int>(prompt.size()) - first));
  twin.tokens.assign(prompt.begin(), prompt.end());
  write_tokens(twin, first);
  twin.sequence.free_below_windows();
  twin.sequence.publish(twin.root, twin.tokens, seconds_per_token);
  return {};
}

/// Pages of the examples.
inline constexpr int kPage = 16;

inline PageKey root_of(const std::string& salt) {
  KeyScope scope;
  scope.salt = salt;
  return root_key(scope);
}

inline const PageKey kRoot = root_of("");

inline CacheOptions one_group() {
  return {.groups = {{.layers = {0, 1}, .n_kv_heads = 1, .head_dim = 16}},
          .codec_k = CodecId::kF32,
          .codec_v = CodecId::kF32,
          .page_tokens = kPage,
          .prefix_bytes = std::uint64_t{1} << 30};
}

/// `n` tokens from `first` on.
inline Tokens run_of(int n, TokenId first = 0) {
  Tokens tokens(static_cast<std::size_t>(n));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

/// The first `n` tokens of `tokens`, and others after them.
inline Tokens branch(const Tokens& tokens, int n, int n_others, TokenId first_other = 5000) {
  Tokens out(tokens.begin(), tokens.begin() + n);
  for (int i = 0; i < n_others; ++i) out.push_back(first_other + i);
  return out;
}

/// A cache under test. Sequences of a test must end before it.
struct Cache {
  explicit Cache(CacheOptions cache_options, std::uint64_t budget_bytes = 0)
      : options(std::move(cache_options)),
        budget(budget_bytes),
        kv(KvCache::create(options, budget).value()) {}

  /// A sequence that has computed `prompt`, from what `match` tells on.
  Twin run(const Tokens& prompt) {
    Twin twin = open_twin(*kv, kRoot, prompt, match);
    EXPECT_TRUE(holds(options, twin));
    const Status status = compute(twin, prompt);
    EXPECT_TRUE(status) << status.error().message;
    EXPECT_TRUE(holds(options, twin));
    kv->check_invariants();
    return twin;
  }
  /// The same, closed at once. Returns how many tokens were reused.
  int visit(const Tokens& prompt) {
    run(prompt);
    return match.position;
  }
  /// How many tokens a prompt would find; changes the order of eviction.
  Match find(const Tokens& prompt) {
    const Twin twin = open_twin(*kv, kRoot, prompt, match);
    EXPECT_TRUE(holds(options, twin));
    return match;
  }
  std::uint64_t frame() const { return kv->memory_summary().groups[0].frame_bytes; }

  const CacheOptions options;
  ByteBudget budget;
  std::unique_ptr<KvCache> kv;
  Match match;  ///< of the last prompt
};

}  // namespace kvasir::cache::testing
