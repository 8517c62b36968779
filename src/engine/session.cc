#include "engine/session.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/clock.h"
#include "cache/load_behind.h"
#include "engine/known_histories.h"

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

int Session::recall_own(std::span<const TokenId> tokens, PromptReport& report) {
  const int n_prompt = static_cast<int>(tokens.size());
  const auto [old_end, new_end] =
      std::mismatch(tokens_.begin(), tokens_.end(), tokens.begin(), tokens.end());
  int n_common = static_cast<int>(new_end - tokens.begin());
  if (n_common >= n_prompt - 1) {  // something must be computed to have logits
    n_common = n_prompt - 1;
    report.end = cache::MatchEnd::kLastToken;
  } else if (old_end != tokens_.end()) {
    report.end = cache::MatchEnd::kFirstDifference;
    report.cached = *old_end;
    report.wanted = *new_end;
  }
  const auto give_up = [&](int n_kept, cache::MatchEnd end) {
    n_common = n_kept;
    report.end = end;
    report.cached = report.wanted = -1;
  };
  // Rows that were moved are kept as a whole: inside, a window group may have gaps.
  if (approximate_ && approximate_->begin < n_common &&
      (!shifted_ || n_common < approximate_->end)) {
    give_up(approximate_->begin, cache::MatchEnd::kEndOfCache);
  }
  // A window group may no longer have what a query there would see.
  if (!sequence_.truncate(n_common)) {
    KVASIR_CHECK(sequence_.truncate(0).has_value());
    give_up(0, cache::MatchEnd::kEvicted);
  }
  if (approximate_ && n_common <= approximate_->begin) approximate_.reset();
  return n_common;
}

PromptReport Session::recall(std::span<const TokenId> tokens) {
  const int n_prompt = static_cast<int>(tokens.size());
  PromptReport report;
  report.n_prompt = n_prompt;
  int n_common = recall_own(tokens, report);
  if (n_common < n_prompt - 1) {
    cache::Match match;
    cache::Sequence other =
        engine_.cache().open(engine_.root_key(), tokens, match,
                             engine_.options().always_load ? 0 : engine_.seconds_per_token());
    // What is exact goes before what is not.
    const bool is_longer =
        match.position > n_common || (approximate_ && match.position == n_common);
    // Where both end at one token, our own reason stands if there is one.
    if (is_longer || (match.position == n_common && report.end == cache::MatchEnd::kEndOfCache)) {
      report.end = match.end;
      report.cached = match.cached;
      report.wanted = match.wanted;
    }
    if (is_longer) {
      sequence_ = std::move(other);
      approximate_.reset();
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

std::span<const TokenId> Session::exact_tokens() const {
  const std::span tokens(tokens_);
  return approximate_ ? tokens.first(static_cast<std::size_t>(approximate_->begin)) : tokens;
}

void Session::publish(double seconds_per_token) {
  sequence_.publish(engine_.root_key(), exact_tokens(), seconds_per_token);
}

Status Session::move(const ShiftedRows& rows, std::span<const TokenId> tokens) {
  KVASIR_RETURN_IF_ERROR(move_shifted(engine_, rows, tokens, sequence_));
  tokens_.assign(tokens.begin(), tokens.begin() + rows.end);
  if (!approximate_) approximate_ = {.begin = rows.begin, .end = rows.end};
  approximate_->end = rows.end;
  return {};
}

int Session::meet(cache::LoadBehind& behind, std::span<const TokenId> tokens, int n_chunk,
                  PromptReport& report) {
  const int begin = behind.poll(n_tokens() + n_chunk);
  if (begin > n_tokens()) {
    // Whole pages, and none that is here: that is where the two join.
    n_chunk = std::min(n_chunk, begin - n_tokens());
    const int n_over = (n_tokens() + n_chunk) % engine_.options().page_tokens;
    return n_over < n_chunk ? n_chunk - n_over : n_chunk;
  }
  if (!behind.adopt(sequence_)) return 0;
  cache::Match match;
  cache::Sequence longer =
      engine_.cache().open(engine_.root_key(), tokens, match, engine_.seconds_per_token());
  if (match.position > n_tokens()) {  // a window group may lack what it needs there
    report.n_behind = match.position - n_tokens();
    sequence_ = std::move(longer);
    tokens_.assign(tokens.begin(), tokens.begin() + match.position);
  }
  return 0;
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
  cache::Sequence own;  // what recall cuts off is still there to be moved
  std::vector<TokenId> own_tokens;
  if (shifted_) {
    own_tokens.assign(exact_tokens().begin(), exact_tokens().end());
    engine_.known_histories().note(own_tokens);
    KVASIR_ASSIGN_OR_RETURN(own, sequence_.fork());
  }
  PromptReport report = recall(tokens);
  std::vector<ShiftedRows> plan;
  if (shifted_) plan = plan_shifted(engine_, *shifted_, tokens, n_tokens(), own, own_tokens);
  own.close();
  std::unique_ptr<cache::LoadBehind> behind;
  if (plan.empty() && report.end == cache::MatchEnd::kLoadSlowerThanRecompute) {
    behind = engine_.cache().load_behind(engine_.root_key(), tokens, engine_.seconds_per_token());
  }
  const double recalled = clock.now_seconds();
  for (auto rows = plan.begin(); n_tokens() < n_prompt;) {
    if (stop != nullptr && stop->load()) {
      return Error{
          ErrorCode::kCancelled,
          fmt::format("prompt: interrupted; {} of {} tokens computed", n_tokens(), n_prompt)};
    }
    if (rows != plan.end() && rows->begin == n_tokens()) {
      if (move(*rows, tokens)) {
        report.n_shifted += rows->n_moved();
        report.n_computed += rows->n_computed();
        *rows++ = {};  // the source's pages may go
        continue;
      }
      plan.clear();  // there is no room for both: compute
      rows = plan.end();
    }
    const int n_left = (rows == plan.end() ? n_prompt : rows->begin) - n_tokens();
    int n_chunk = std::min(engine_.options().n_batch, n_left);
    if (behind != nullptr) {
      n_chunk = meet(*behind, tokens, n_chunk, report);
      if (n_chunk == 0) {
        behind.reset();
        continue;
      }
    }
    const auto chunk = tokens.subspan(tokens_.size(), static_cast<std::size_t>(n_chunk));
    const bool is_last = n_tokens() + n_chunk == n_prompt;
    const Engine::Step step{&sequence_, chunk, is_last ? 1 : 0};
    const double begin = clock.now_seconds();
    if (const Status status = engine_.forward({&step, 1}, logits_); !status) {
      if (behind != nullptr && status.error().code == ErrorCode::kExhausted) {
        behind.reset();  // its pages may be what is missing
        continue;
      }
      if (rows == plan.end() || status.error().code != ErrorCode::kExhausted) return status.error();
      plan.clear();  // the sources' pages may be what is missing
      rows = plan.end();
      continue;
    }
    tokens_.insert(tokens_.end(), chunk.begin(), chunk.end());
    publish((clock.now_seconds() - begin) / n_chunk);
    report.n_computed += n_chunk;
    if (progress) progress(n_tokens(), n_prompt);
  }
  if (shifted_) engine_.known_histories().note(exact_tokens());
  report.first_approximate = first_approximate();
  report.seconds = clock.now_seconds() - start;
  if (plan.empty()) engine_.note_prefill(clock.now_seconds() - recalled, report.n_computed);
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
  approximate_.reset();
}

Result<Session> Session::fork() const {
  Session child(engine_);
  KVASIR_ASSIGN_OR_RETURN(child.sequence_, sequence_.fork());
  child.tokens_ = tokens_;
  child.logits_ = logits_;
  child.shifted_ = shifted_;
  child.approximate_ = approximate_;
  return child;
}

}  // namespace kvasir::engine
