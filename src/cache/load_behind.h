// Loading from the end while computing from the beginning: for a disk that gives pages slower than
// they are computed, so that a load from the beginning would only lose time.
//
// The pages that the disk has of a prompt are read last one first. Whoever computes meets them
// somewhere, and goes on behind them. Source: Cake, arXiv:2410.03065.
#pragma once

#include <memory>
#include <span>

#include "base/types.h"
#include "cache/cache.h"

namespace kvasir::cache {

/// Threads: the engine's. Must go before its cache.
class LoadBehind {
 public:
  ~LoadBehind();

  /// Takes what has come, and asks for more, but for no token before `wanted_from`: those will be
  /// computed first. Returns the token from which on all pages are here that the disk had.
  Position poll(Position wanted_from);

  /// Puts the pages from the end of `sequence` on into the prefix tree, where the next open finds
  /// them. False: they do not join on to what the sequence has published.
  /// Requires: poll() <= sequence.n_tokens().
  bool adopt(Sequence& sequence);

 private:
  friend class KvCache;
  struct State;
  explicit LoadBehind(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvasir::cache
