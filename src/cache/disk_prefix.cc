// The disk tier below the prefix tree: sealed pages written behind, and brought back.
//
// A page's payload is the frames of its cache groups, one after the other; groups whose window had
// passed when it was sealed are left out, and the description says which.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "cache/cache.h"
#include "cache/impl.h"

namespace kvasir::cache {
namespace {

constexpr std::string_view kDescription = "kvasir frames 1 groups ";
/// Pages of the first batch, which measures the disk; each further one has twice as many.
constexpr std::size_t kFirstBatch = 2;
constexpr std::size_t kLargestBatch = 32;
/// Of the time that computing everything would take: what the first batch may cost in vain.
constexpr double kShareAtRisk = 0.02;
/// Without an estimate of what computing takes.
constexpr double kPatienceSeconds = 10;

/// "101": which groups a page has.
std::string describe(std::span<const PageId> pages) {
  std::string text(kDescription);
  for (const PageId page : pages) text.push_back(page == kNoPage ? '0' : '1');
  return text;
}

}  // namespace

Status KvCache::Impl::put_after_parent(DiskTier& disk, const PageRecord& record) {
  if (record.first_token > 0 && !disk.contains(record.parent)) {
    return Error{ErrorCode::kExhausted, "disk tier: the page before it is not there"};
  }
  return disk.put(record);
}

void KvCache::Impl::write_behind(const PageKey& root, const PageKey& parent, NodeId node,
                                 std::size_t page_idx) {
  // Computed again because reading it is slow, say.
  if (options.disk->is_there(tree->key(node))) return;
  const std::span<const PageId> pages = tree->pages(node);
  std::vector<std::uint8_t> joined;
  std::span<const std::uint8_t> payload;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (pages[g] == kNoPage) continue;
    const PagePool& pool = groups[g]->pool;
    payload = {pool.frame(pages[g]), pool.frame_bytes()};
    if (groups.size() > 1) joined.insert(joined.end(), payload.begin(), payload.end());
  }
  const std::string description = describe(pages);
  PageRecord record;
  record.key = tree->key(node);
  record.parent = parent;
  record.root = root;
  record.first_token = static_cast<Position>(page_idx) * options.page_tokens;
  record.tokens = tree->tokens(node);
  record.description = description;
  record.payload = groups.size() > 1 ? std::span<const std::uint8_t>(joined) : payload;
  (void)writer->put(record);  // a page that is dropped will be computed again
}

void KvCache::Impl::drop(PageLoad& load) {
  for (std::size_t g = 0; g < load.pages.size(); ++g) {
    if (load.pages[g] != kNoPage) groups[g]->pool.drop_owner(load.pages[g]);
  }
  load.pages.clear();
}

/// Pages for what the file has. False: there is no room, or the file is none of ours.
bool KvCache::Impl::prepare(PageLoad& load, std::span<const TokenId> tokens) {
  load.tokens = tokens;
  std::string has(groups.size(), '1');
  if (groups.size() > 1) {
    std::string description;
    if (const auto known = options.disk->known(load.key)) {
      description = known->description;
    } else {  // another process wrote it
      const Result<PageHeader> header = options.disk->header(load.key);
      load.is_damaged = !header && header.error().code == ErrorCode::kCorruption;
      if (header) description = header->description;
    }
    if (description.rfind(kDescription, 0) != 0) return false;
    has = description.substr(kDescription.size());
    if (has.size() != groups.size()) return false;
  }
  std::size_t n_bytes = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    load.pages.push_back(kNoPage);
    if (has[g] != '1') continue;
    load.pages.pop_back();
    if (!allocate(g, 1, load.pages)) {
      drop(load);
      return false;
    }
    n_bytes += groups[g]->pool.frame_bytes();
  }
  if (groups.size() > 1) load.payload.resize(n_bytes);
  return n_bytes > 0;
}

GetRequest KvCache::Impl::request_of(PageLoad& load) {
  std::span<std::uint8_t> out = load.payload;
  if (groups.size() == 1) {
    out = {groups[0]->pool.frame(load.pages[0]), groups[0]->pool.frame_bytes()};
  }
  return {load.key, load.tokens, out};
}

/// Reads prepared pages, first ones first.
void KvCache::Impl::read(std::span<PageLoad> loads, double deadline_seconds) {
  std::vector<GetRequest> requests;
  for (PageLoad& load : loads) requests.push_back(request_of(load));
  options.disk->get_many(requests, deadline_seconds);
  for (std::size_t i = 0; i < loads.size(); ++i) loads[i].outcome = requests[i].outcome;
}

/// Puts a page that was read into the tree, after `state.path`. None: the page before it has left
/// the tree.
NodeId KvCache::Impl::adopt(PageLoad& load, const PageKey& root, double compute_seconds,
                            const Sequence::State& state) {
  const std::uint8_t* from = load.payload.data();
  SealedPage page;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (load.pages[g] == kNoPage) continue;
    const std::size_t n_bytes = groups[g]->pool.frame_bytes();
    page.bytes += n_bytes;
    if (groups.size() == 1) continue;
    std::memcpy(groups[g]->pool.frame(load.pages[g]), from, n_bytes);
    from += n_bytes;
  }
  page.tokens = load.tokens;
  page.pages = load.pages;
  page.compute_seconds = compute_seconds;
  const PrefixTree::Insert insert = state.path.empty()
                                        ? tree->insert(root, page, now())
                                        : tree->insert(state.path.back(), page, now());
  if (insert.is_new) add_tree_owner(load.pages);
  drop(load);  // the tree's now
  return insert.node;
}

std::vector<PageKey> KvCache::Impl::keys_on_disk(const PageKey& root,
                                                 std::span<const TokenId> tokens,
                                                 const Sequence::State& state) {
  const auto page_tokens = static_cast<std::size_t>(options.page_tokens);
  std::vector<PageKey> keys;
  PageKey previous = state.path.empty() ? root : tree->key(state.path.back());
  for (std::size_t page = state.path.size(); (page + 1) * page_tokens < tokens.size(); ++page) {
    previous = next_key(previous, tokens.subspan(page * page_tokens, page_tokens));
    if (!options.disk->contains(previous)) break;
    keys.push_back(previous);
  }
  return keys;
}

std::optional<MatchEnd> KvCache::Impl::disk_end() const {
  const bool is_down = options.disk->health().state == HealthState::kDown;
  return is_down ? std::optional(MatchEnd::kTierDown) : std::nullopt;
}

std::optional<MatchEnd> KvCache::Impl::load_pages(const PageKey& root,
                                                  std::span<const TokenId> tokens,
                                                  double seconds_per_token,
                                                  Sequence::State& state) {
  const auto page_tokens = static_cast<std::size_t>(options.page_tokens);
  const std::size_t first = state.path.size();
  const std::vector<PageKey> keys = keys_on_disk(root, tokens, state);
  if (keys.empty()) return disk_end();

  const double page_seconds = seconds_per_token * static_cast<double>(page_tokens);
  double deadline = kShareAtRisk * page_seconds * static_cast<double>(keys.size());
  for (std::size_t done = 0, size = kFirstBatch; done < keys.size();) {
    std::vector<PageLoad> loads;
    bool is_damaged = false;  // what stopped the batch
    for (; loads.size() < size && done + loads.size() < keys.size();) {
      PageLoad load;
      load.key = keys[done + loads.size()];
      const std::size_t page = first + done + loads.size();
      const bool is_ready = prepare(load, tokens.subspan(page * page_tokens, page_tokens));
      is_damaged = load.is_damaged;
      if (!is_ready) break;
      loads.push_back(std::move(load));
    }
    const double start = now();
    read(loads, seconds_per_token > 0 ? deadline : kPatienceSeconds);
    const double seconds_per_page = (now() - start) / std::max<double>(1, loads.size());

    std::size_t n_hits = 0;
    for (; n_hits < loads.size() && loads[n_hits].outcome == GetOutcome::kHit; ++n_hits) {
      const NodeId node = adopt(loads[n_hits], root, page_seconds, state);
      if (node.is_none()) break;
      state.extend_path(node);
    }
    for (PageLoad& load : loads) drop(load);
    done += n_hits;
    if (n_hits < loads.size()) {
      if (loads[n_hits].outcome == GetOutcome::kCorrupt) return MatchEnd::kCorrupt;
      if (const auto end = disk_end()) return end;
      const bool is_slow = seconds_per_token > 0 && now() - start >= deadline;
      return is_slow ? MatchEnd::kLoadSlowerThanRecompute : MatchEnd::kEvicted;
    }
    if (loads.size() < size && done < keys.size()) {
      return is_damaged ? std::optional(MatchEnd::kCorrupt) : disk_end();  // or no room for more
    }
    if (seconds_per_token > 0 && seconds_per_page > page_seconds) {
      return done < keys.size() ? std::optional(MatchEnd::kLoadSlowerThanRecompute) : std::nullopt;
    }
    size = std::min(2 * size, kLargestBatch);
    deadline = std::min(page_seconds, 4 * seconds_per_page) * static_cast<double>(size);
  }
  return std::nullopt;
}

std::optional<MatchEnd> KvCache::Impl::load_partial(const PageKey& root,
                                                    std::span<const TokenId> rest, int n_equal,
                                                    int n_prompt, double seconds_per_token,
                                                    const Sequence::State& state) {
  const PageKey parent = state.path.empty() ? root : tree->key(state.path.back());
  const double at_risk = kShareAtRisk * static_cast<double>(n_prompt);
  const auto patience = [&](double n_tokens) {
    return seconds_per_token > 0 ? seconds_per_token * std::min(n_tokens, at_risk)
                                 : kPatienceSeconds;
  };
  if (!options.disk->wait_until_scanned(patience(static_cast<double>(rest.size())))) {
    return std::nullopt;
  }
  const auto known = options.disk->nearest_follower(parent, rest);
  if (!known || known->tokens.size() != static_cast<std::size_t>(options.page_tokens)) {
    return std::nullopt;
  }
  const auto end =
      std::mismatch(rest.begin(), rest.end(), known->tokens.begin(), known->tokens.end()).first;
  const auto n_more = static_cast<int>(end - rest.begin()) - n_equal;
  PageLoad load;
  load.key = known->key;
  if (n_more <= 0 || !prepare(load, known->tokens)) return std::nullopt;
  // Late is what takes longer than computing the tokens would, or than may be lost of a prompt.
  read({&load, 1}, patience(n_more));
  if (load.outcome == GetOutcome::kHit) {
    adopt(load, root, seconds_per_token * options.page_tokens, state);
    return std::nullopt;
  }
  drop(load);
  if (load.outcome == GetOutcome::kCorrupt) return MatchEnd::kCorrupt;
  return seconds_per_token > 0 ? std::optional(MatchEnd::kLoadSlowerThanRecompute) : std::nullopt;
}

bool KvCache::flush(double deadline_seconds) {
  return impl_->writer == nullptr || impl_->writer->flush(deadline_seconds);
}

}  // namespace kvasir::cache
