// A session: one conversation's tokens and their KV, kept in step.
//
// Invariant: the sequence holds K/V for exactly `tokens()`, whatever failed or was interrupted.
// They are those that computing every token gives, to the bit, up to `first_approximate()`; what
// follows is never published.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "cache/cache.h"
#include "engine/engine.h"
#include "engine/shifted_reuse.h"

namespace kvasir::engine {

/// What became of a prompt.
struct PromptReport {
  int n_prompt = 0;  ///< tokens of the prompt
  int n_reused = 0;  ///< of them, found in the session's own history or in the prefix tree
  /// Of them, approximated: found in other histories, and moved here from other positions.
  int n_shifted = 0;
  /// Of them, exact and from the disk too, but from their end on while those before were computed
  /// (cache/load_behind.h). With the three others they sum to n_prompt.
  int n_behind = 0;
  int n_computed = 0;
  /// The first token whose K and V are no longer exact, of this prompt or of an earlier one that
  /// this one goes on; -1: all are.
  int first_approximate = -1;
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

  /// From the next prompt on, tokens that are cached at other positions are taken from there: an
  /// approximation (shifted_reuse.h). Absent, as at first: never, and what was approximated before
  /// is computed anew.
  void set_shifted_reuse(const std::optional<ShiftedReuse>& options) { shifted_ = options; }

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
  /// See PromptReport.
  int first_approximate() const { return approximate_ ? approximate_->begin : -1; }
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
  /// Cuts the session's own history to what it has in common with `tokens`.
  int recall_own(std::span<const TokenId> tokens, PromptReport& report);
  /// Publishes what has been computed and is exact.
  void publish(double seconds_per_token);
  /// The tokens whose K and V are exact.
  std::span<const TokenId> exact_tokens() const;
  /// The tokens to compute next, at most `n_chunk`, so that they meet what comes from the disk's
  /// end. 0: they have met, or will not.
  int meet(cache::LoadBehind& behind, std::span<const TokenId> tokens, int n_chunk,
           PromptReport& report);
  /// Moves rows here from another sequence. Errors: kExhausted; nothing has changed.
  Status move(const ShiftedRows& rows, std::span<const TokenId> tokens);

  Engine& engine_;
  cache::Sequence sequence_;
  std::vector<TokenId> tokens_;
  std::vector<float> logits_;
  std::optional<ShiftedReuse> shifted_;
  /// From the first token that was moved here to behind the last one. What follows was computed,
  /// from these.
  struct Approximate {
    int begin = 0, end = 0;
  };
  std::optional<Approximate> approximate_;
};

}  // namespace kvasir::engine
