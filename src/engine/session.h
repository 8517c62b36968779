// A session: one conversation's tokens and their KV, kept in step.
//
// Invariant: the sequence holds K/V for exactly `tokens()`, whatever failed or was interrupted.
#pragma once

#include <atomic>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "cache/cache.h"
#include "engine/engine.h"

namespace kvasir::engine {

/// What became of a prompt.
struct PromptReport {
  int n_prompt = 0;  ///< tokens of the prompt
  int n_reused = 0;  ///< of them, found in the session's own history or in the prefix tree
  int n_computed = 0;
  /// Why no more was reused, at token n_reused.
  cache::MatchEnd end = cache::MatchEnd::kEndOfCache;
  int n_loaded = 0;  ///< of n_reused, brought back from the disk
  /// What differs, for kOtherModel, kOtherCodec, kNamespace: a field of cache::KeyScope.
  std::string scope_difference;
  /// The tokens there, for kFirstDifference.
  TokenId cached = -1, wanted = -1;
  double seconds = 0;  ///< of finding, loading and computing
};

class Session {
 public:
  /// `engine` must outlive the session.
  explicit Session(Engine& engine) : engine_(engine), sequence_(engine.cache().open()) {}

  /// Makes the history equal `tokens`: keeps the K/V of the longest prefix that this session or,
  /// with EngineOptions::prefix_bytes, any earlier one has computed, computes the rest in chunks of
  /// n_batch, and leaves the logits of the last token. At least one token is always computed.
  /// `progress(done, total)` runs after each chunk; when `stop` becomes true the work ends after
  /// the running chunk with kCancelled, and the same call later resumes there. Errors:
  /// kInvalidArgument (no tokens, an id out of range), kExhausted (context, budget).
  Result<PromptReport> prompt(std::span<const TokenId> tokens,
                              const std::function<void(int, int)>& progress = {},
                              const std::atomic<bool>* stop = nullptr);

  /// Appends one token, computes it and leaves its logits. Errors: kExhausted; nothing changes.
  Status push(TokenId token);

  /// Logits of the last token computed, [vocab_size]. Empty before the first.
  std::span<const float> logits() const { return logits_; }
  std::span<const TokenId> tokens() const { return tokens_; }
  int n_tokens() const { return static_cast<int>(tokens_.size()); }
  /// One model layer's K/V, for `trace` and tests. Valid until the next non-const call.
  cache::PagedKvView view(int layer) const {
    return sequence_.views()[static_cast<std::size_t>(layer)];
  }

  /// Gives every page back: the end of a generation's life.
  void clear();
  /// A session with the same history, sharing all pages.
  Result<Session> fork() const;

 private:
  /// Cuts the history, or begins it anew, so that it is the longest known prefix of `tokens`.
  PromptReport recall(std::span<const TokenId> tokens);
  /// Publishes what has been computed.
  void publish(double seconds_per_token);

  Engine& engine_;
  cache::Sequence sequence_;
  std::vector<TokenId> tokens_;
  std::vector<float> logits_;
};

}  // namespace kvasir::engine
