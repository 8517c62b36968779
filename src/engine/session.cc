#include "engine/session.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/clock.h"

namespace kvasir::engine {

namespace {

/// The reason that stands for a field of cache::KeyScope.
cache::MatchEnd scope_end(std::string_view field) {
  if (field == "salt") return cache::MatchEnd::kNamespace;
  for (const std::string_view of_model : {"model", "tokenizer", "rope", "adapter"}) {
    if (field == of_model) return cache::MatchEnd::kOtherModel;
  }
  return cache::MatchEnd::kOtherCodec;
}

}  // namespace

PromptReport Session::recall(std::span<const TokenId> tokens) {
  const int n_prompt = static_cast<int>(tokens.size());
  const auto [old_end, new_end] =
      std::mismatch(tokens_.begin(), tokens_.end(), tokens.begin(), tokens.end());
  int n_common = static_cast<int>(new_end - tokens.begin());
  PromptReport report;
  report.n_prompt = n_prompt;
  if (n_common >= n_prompt - 1) {  // something must be computed to have logits
    n_common = n_prompt - 1;
    report.end = cache::MatchEnd::kLastToken;
  } else if (old_end != tokens_.end()) {
    report.end = cache::MatchEnd::kFirstDifference;
    report.cached = *old_end;
    report.wanted = *new_end;
  }
  // A window group may no longer have what a query there would see.
  if (!sequence_.truncate(n_common)) {
    KVASIR_CHECK(sequence_.truncate(0).has_value());
    n_common = 0;
    report.end = cache::MatchEnd::kEvicted;
    report.cached = report.wanted = -1;
  }
  if (n_common < n_prompt - 1) {
    cache::Match match;
    cache::Sequence other =
        engine_.cache().open(engine_.root_key(), tokens, match,
                             engine_.options().always_load ? 0 : engine_.seconds_per_token());
    const bool is_longer = match.position > n_common;
    // Where both end at one token, our own reason stands if there is one.
    if (is_longer || (match.position == n_common && report.end == cache::MatchEnd::kEndOfCache)) {
      report.end = match.end;
      report.cached = match.cached;
      report.wanted = match.wanted;
    }
    if (is_longer) {
      sequence_ = std::move(other);
      n_common = match.position;
      report.n_loaded = match.n_loaded;
    }
  }
  if (n_common == 0 && report.end == cache::MatchEnd::kEndOfCache) {
    report.scope_difference = engine_.scope_difference();
    if (!report.scope_difference.empty()) report.end = scope_end(report.scope_difference);
  }
  report.n_reused = n_common;
  tokens_.assign(tokens.begin(), tokens.begin() + n_common);
  return report;
}

void Session::publish(double seconds_per_token) {
  sequence_.publish(engine_.root_key(), tokens_, seconds_per_token);
}

Result<PromptReport> Session::prompt(std::span<const TokenId> tokens,
                                     const std::function<void(int, int)>& progress,
                                     const std::atomic<bool>* stop) {
  if (tokens.empty()) {
    return Error{ErrorCode::kInvalidArgument, "prompt: got 0 tokens, want at least 1"};
  }
  const int n_prompt = static_cast<int>(tokens.size());
  if (n_prompt > engine_.n_ctx()) {
    return Error{ErrorCode::kExhausted,
                 fmt::format("prompt: does not fit the context; got {} tokens, want at most {}",
                             n_prompt, engine_.n_ctx())};
  }
  const SteadyClock clock;
  const double start = clock.now_seconds();
  PromptReport report = recall(tokens);
  const double recalled = clock.now_seconds();
  while (n_tokens() < n_prompt) {
    if (stop != nullptr && stop->load()) {
      return Error{
          ErrorCode::kCancelled,
          fmt::format("prompt: interrupted; {} of {} tokens computed", n_tokens(), n_prompt)};
    }
    const int n_chunk = std::min(engine_.options().n_batch, n_prompt - n_tokens());
    const auto chunk = tokens.subspan(tokens_.size(), static_cast<std::size_t>(n_chunk));
    const bool is_last = n_tokens() + n_chunk == n_prompt;
    const Engine::Step step{&sequence_, chunk, is_last ? 1 : 0};
    const double begin = clock.now_seconds();
    KVASIR_RETURN_IF_ERROR(engine_.forward({&step, 1}, logits_));
    tokens_.insert(tokens_.end(), chunk.begin(), chunk.end());
    publish((clock.now_seconds() - begin) / n_chunk);
    report.n_computed += n_chunk;
    if (progress) progress(n_tokens(), n_prompt);
  }
  report.seconds = clock.now_seconds() - start;
  engine_.note_prefill(clock.now_seconds() - recalled, report.n_computed);
  return report;
}

Status Session::push(TokenId token) {
  const Engine::Step step{&sequence_, {&token, 1}, 1};
  const SteadyClock clock;
  const double begin = clock.now_seconds();
  KVASIR_RETURN_IF_ERROR(engine_.forward({&step, 1}, logits_));
  tokens_.push_back(token);
  publish(clock.now_seconds() - begin);
  return {};
}

void Session::clear() {
  sequence_.close();
  sequence_ = engine_.cache().open();
  tokens_.clear();
  logits_.clear();
}

Result<Session> Session::fork() const {
  Session child(engine_);
  KVASIR_ASSIGN_OR_RETURN(child.sequence_, sequence_.fork());
  child.tokens_ = tokens_;
  child.logits_ = logits_;
  return child;
}

}  // namespace kvasir::engine
