#include "engine/generation.h"

#include <algorithm>

#include "base/check.h"

namespace kvasir::engine {

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return "length";
    case FinishReason::kEndOfGeneration:
      return "eog";
    case FinishReason::kStopString:
      return "stop";
    case FinishReason::kContextFull:
      return "context_full";
  }
  return "unknown";
}

std::string StopMatcher::push(std::string_view text) {
  held_ += text;
  std::size_t first = std::string::npos;
  const std::string* first_stop = nullptr;
  for (const std::string& stop : stops_) {
    const std::size_t at = stop.empty() ? std::string::npos : held_.find(stop);
    if (at < first) {
      first = at;
      first_stop = &stop;
    }
  }
  if (first_stop != nullptr) {
    matched_ = *first_stop;
    std::string safe = held_.substr(0, first);
    held_.clear();
    return safe;
  }
  // Hold back the longest suffix that is a proper prefix of some stop string.
  std::size_t n_held = 0;
  for (const std::string& stop : stops_) {
    if (stop.empty()) continue;
    std::size_t n = std::min(held_.size(), stop.size() - 1);
    while (n > n_held && held_.compare(held_.size() - n, n, stop, 0, n) != 0) --n;
    n_held = std::max(n_held, n);
  }
  std::string safe = held_.substr(0, held_.size() - n_held);
  held_.erase(0, held_.size() - n_held);
  return safe;
}

std::string StopMatcher::finish() {
  std::string rest;
  rest.swap(held_);
  return rest;
}

namespace {

/// After text the answer continues it, leading space and all; after a control token (BOS, the end
/// of a turn) it begins a new one.
text::LeadingSpace leading_space(const Engine& engine, const Session& session) {
  const TokenId last = session.tokens().back();
  const bool is_text =
      last < engine.tokenizer().vocab_size() && !engine.tokenizer().is_control(last);
  return is_text ? text::LeadingSpace::kKeep : text::LeadingSpace::kStrip;
}

}  // namespace

Generation::Generation(Engine& engine, Session& session, const GenerationParams& params)
    : engine_(engine),
      session_(session),
      params_(params),
      sampler_(params.sampling),
      decoder_(engine.tokenizer(), leading_space(engine, session)),
      stop_matcher_(params.stops),
      history_(session.tokens().begin(), session.tokens().end()) {
  KVASIR_CHECK(!session.logits().empty());
}

std::string Generation::flush() {
  if (stop_matcher_.matched()) return {};
  std::string text = stop_matcher_.push(decoder_.finish());
  if (!stop_matcher_.matched()) text += stop_matcher_.finish();
  return text;
}

Result<Generation::Event> Generation::next() {
  if (params_.n_max >= 0 && static_cast<int>(tokens_.size()) >= params_.n_max) {
    return Event{-1, flush(), FinishReason::kLength};
  }
  if (uncomputed_) {
    if (session_.n_tokens() >= engine_.n_ctx())
      return Event{-1, flush(), FinishReason::kContextFull};
    KVASIR_RETURN_IF_ERROR(session_.push(*uncomputed_));
    uncomputed_.reset();
  }
  const std::optional<TokenId> sampled = sampler_.sample(session_.logits(), history_);
  if (!sampled) {
    return Error{ErrorCode::kInvalidArgument,
                 "sampling: every token is ruled out; want a logit bias that leaves one"};
  }
  const TokenId token = *sampled;
  if (engine_.tokenizer().is_eog(token) && !params_.ignore_eog) {
    return Event{-1, flush(), FinishReason::kEndOfGeneration};
  }
  tokens_.push_back(token);
  history_.push_back(token);
  uncomputed_ = token;
  std::string text;
  // Padded vocabularies have rows without a token: they stand for no text.
  if (token < engine_.tokenizer().vocab_size()) text = stop_matcher_.push(decoder_.push(token));
  if (stop_matcher_.matched()) return Event{token, std::move(text), FinishReason::kStopString};
  return Event{token, std::move(text), std::nullopt};
}

}  // namespace kvasir::engine
