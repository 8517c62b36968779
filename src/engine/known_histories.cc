#include "engine/known_histories.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/check.h"

namespace kvasir::engine {
namespace {

/// Places of one block of tokens that are compared.
constexpr std::size_t kCopiesMost = 8;

bool begins_with(std::span<const TokenId> tokens, std::span<const TokenId> beginning) {
  return tokens.size() >= beginning.size() &&
         std::equal(beginning.begin(), beginning.end(), tokens.begin());
}

std::size_t hash_of(std::span<const TokenId> tokens) {
  const auto bytes = std::as_bytes(tokens);
  return std::hash<std::string_view>()({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

/// Where a history has a block of tokens.
struct Place {
  std::size_t history_idx = 0;
  std::size_t begin = 0;
};

/// Every run of `2 * block - 1` tokens holds a whole block of those that are listed.
std::unordered_map<std::size_t, std::vector<Place>> list_blocks(
    std::span<const std::span<const TokenId>> histories, std::size_t block) {
  std::unordered_map<std::size_t, std::vector<Place>> places;
  for (std::size_t i = 0; i < histories.size(); ++i) {
    for (std::size_t begin = 0; begin + block <= histories[i].size(); begin += block) {
      std::vector<Place>& copies = places[hash_of(histories[i].subspan(begin, block))];
      if (copies.size() < kCopiesMost) copies.push_back({i, begin});
    }
  }
  return places;
}

/// As far as the tokens around prompt[at] and the place agree, but not before prompt[first].
TokenRun extend(std::span<const TokenId> prompt, std::size_t first, std::size_t at,
                std::span<const TokenId> history, const Place& place) {
  std::size_t n_before = 0;
  while (n_before < place.begin && first + n_before < at &&
         prompt[at - n_before - 1] == history[place.begin - n_before - 1]) {
    ++n_before;
  }
  const auto end =
      std::mismatch(prompt.begin() + static_cast<std::ptrdiff_t>(at), prompt.end(),
                    history.begin() + static_cast<std::ptrdiff_t>(place.begin), history.end());
  return {.begin = static_cast<int>(at - n_before),
          .end = static_cast<int>(end.first - prompt.begin()),
          .history_idx = place.history_idx,
          .history_begin = static_cast<int>(place.begin - n_before)};
}

}  // namespace

void KnownHistories::note(std::span<const TokenId> tokens) {
  if (tokens.empty()) return;
  for (const auto& history : histories_) {
    if (begins_with(history, tokens)) return;
  }
  std::erase_if(histories_, [&](const auto& history) { return begins_with(tokens, history); });
  if (histories_.size() == kMost) histories_.erase(histories_.begin());
  histories_.emplace_back(tokens.begin(), tokens.end());
}

void KnownHistories::note_disk(const cache::DiskTier& disk, const cache::PageKey& root) {
  std::vector<cache::PageInfo> ends = disk.list();  // the least recently used first
  std::erase_if(ends, [&](const cache::PageInfo& page) { return page.root != root; });
  // Keys come from files' names: a tree, which no choice of names makes slow.
  std::map<std::array<std::uint8_t, 32>, cache::PageKey> parents;
  std::set<std::array<std::uint8_t, 32>> followed;
  for (const cache::PageInfo& page : ends) {
    parents.emplace(page.key.bytes, page.parent);
    followed.insert(page.parent.bytes);
  }
  std::erase_if(ends, [&](const auto& page) { return followed.contains(page.key.bytes); });
  const std::size_t n_passed_over = ends.size() - std::min(ends.size(), kMost);
  for (const cache::PageInfo& end : std::span(ends).subspan(n_passed_over)) {
    std::vector<std::vector<TokenId>> chain;  // last page first
    cache::PageKey at = end.key;
    while (at != root && chain.size() <= parents.size()) {  // a file may say that it follows itself
      const auto parent = parents.find(at.bytes);
      auto page = disk.known(at);
      if (parent == parents.end() || !page) break;
      chain.push_back(std::move(page->tokens));
      at = parent->second;
    }
    if (at != root) continue;
    std::vector<TokenId> tokens;
    for (auto page = chain.rbegin(); page != chain.rend(); ++page) {
      tokens.insert(tokens.end(), page->begin(), page->end());
    }
    note(tokens);
  }
}

std::vector<TokenRun> find_token_runs(std::span<const TokenId> prompt, int first,
                                      std::span<const std::span<const TokenId>> histories,
                                      int min_tokens) {
  KVASIR_CHECK(first >= 0 && min_tokens >= 2);
  const auto block = static_cast<std::size_t>(min_tokens) / 2;
  const auto places = list_blocks(histories, block);
  std::vector<TokenRun> runs;
  auto unused = static_cast<std::size_t>(first);  // no token before it may be in a run
  for (std::size_t at = unused; at + block <= prompt.size();) {
    TokenRun longest;
    if (const auto found = places.find(hash_of(prompt.subspan(at, block))); found != places.end()) {
      for (const Place& place : found->second) {
        const TokenRun run = extend(prompt, unused, at, histories[place.history_idx], place);
        if (run.end - static_cast<int>(at) < static_cast<int>(block))
          continue;  // equal hashes only
        if (run.n_tokens() > longest.n_tokens()) longest = run;
      }
    }
    if (longest.n_tokens() < min_tokens) {
      ++at;
      continue;
    }
    runs.push_back(longest);
    at = unused = static_cast<std::size_t>(longest.end);
  }
  return runs;
}

}  // namespace kvasir::engine
