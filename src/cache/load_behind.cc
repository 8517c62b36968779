#include "cache/load_behind.h"

#include <cstddef>
#include <deque>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cache/impl.h"

namespace kvasir::cache {
namespace {

/// Pages on their way at a time: about what is computed between two polls. They are memory beyond
/// what the prompt takes anyway.
constexpr std::size_t kPagesOnTheWay = 16;

}  // namespace

struct LoadBehind::State {
  using PageLoad = KvCache::Impl::PageLoad;
  struct Reading {
    PageLoad load;
    DiskTier::Read read;
  };

  State(KvCache::Impl& impl, const PageKey& root_key, std::span<const TokenId> prompt,
        double seconds);

  std::size_t page_tokens() const { return static_cast<std::size_t>(cache.options.page_tokens); }
  std::span<const TokenId> tokens_of(std::size_t page) const {
    return tokens.subspan(page * page_tokens(), page_tokens());
  }
  bool start_next();
  void give_up_reading();

  KvCache::Impl& cache;
  const PageKey root;
  const std::span<const TokenId> tokens;
  const double seconds_per_token;
  std::vector<PageKey> keys;     ///< of the pages up to the last one that the disk has
  std::size_t next = 0;          ///< pages before it have not been asked for
  std::deque<Reading> reading;   ///< last page first
  std::vector<PageLoad> loaded;  ///< last page first, without a gap
};

LoadBehind::State::State(KvCache::Impl& impl, const PageKey& root_key,
                         std::span<const TokenId> prompt, double seconds)
    : cache(impl), root(root_key), tokens(prompt), seconds_per_token(seconds) {
  PageKey key = root;
  for (std::size_t page = 0; (page + 1) * page_tokens() < tokens.size(); ++page) {
    key = next_key(key, tokens_of(page));
    keys.push_back(key);
    if (cache.options.disk->contains(key)) next = keys.size();
  }
  keys.resize(next);
}

/// False: there is no room.
bool LoadBehind::State::start_next() {
  PageLoad load;
  load.key = keys[next - 1];
  if (!cache.prepare(load, tokens_of(next - 1))) return false;
  --next;
  DiskTier::Read read = cache.options.disk->start_read(cache.request_of(load));
  reading.push_back({std::move(load), std::move(read)});
  return true;
}

void LoadBehind::State::give_up_reading() {
  while (!reading.empty()) {
    PageLoad load = std::move(reading.front().load);
    reading.pop_front();  // the read goes before its pages
    cache.drop(load);
  }
}

LoadBehind::LoadBehind(std::unique_ptr<State> state) : state_(std::move(state)) {}

LoadBehind::~LoadBehind() {
  state_->give_up_reading();
  for (State::PageLoad& load : state_->loaded) state_->cache.drop(load);
}

Position LoadBehind::poll(Position wanted_from) {
  State& s = *state_;
  while (!s.reading.empty()) {
    const auto outcome = s.reading.front().read.outcome();
    if (!outcome) break;
    if (*outcome != GetOutcome::kHit) {  // what lies before it would not join on
      s.give_up_reading();
      s.next = 0;
      break;
    }
    s.loaded.push_back(std::move(s.reading.front().load));
    s.reading.pop_front();
  }
  while (s.next > 0 && s.reading.size() < kPagesOnTheWay) {
    const auto begin = static_cast<Position>((s.next - 1) * s.page_tokens());
    if (begin < wanted_from || !s.start_next()) break;
  }
  return static_cast<Position>((s.keys.size() - s.loaded.size()) * s.page_tokens());
}

bool LoadBehind::adopt(Sequence& sequence) {
  State& s = *state_;
  Sequence::State& target = *sequence.state_;
  const std::size_t first = target.path.size();
  if (static_cast<std::size_t>(target.n_tokens) != first * s.page_tokens()) return false;
  if (first >= s.keys.size()) return false;
  KVASIR_CHECK(first + s.loaded.size() >= s.keys.size());
  const double page_seconds = s.seconds_per_token * s.cache.options.page_tokens;
  for (std::size_t page = first; page < s.keys.size(); ++page) {
    State::PageLoad& load = s.loaded[s.keys.size() - 1 - page];
    const NodeId node = s.cache.adopt(load, s.root, page_seconds, target);
    if (node.is_none()) return page > first;
    target.extend_path(node);
  }
  return true;
}

std::unique_ptr<LoadBehind> KvCache::load_behind(const PageKey& root,
                                                 std::span<const TokenId> tokens,
                                                 double seconds_per_token) {
  if (impl_->writer == nullptr) return nullptr;
  auto state = std::make_unique<LoadBehind::State>(*impl_, root, tokens, seconds_per_token);
  if (state->next == 0) return nullptr;
  return std::unique_ptr<LoadBehind>(new LoadBehind(std::move(state)));
}

}  // namespace kvasir::cache
