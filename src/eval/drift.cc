#include "eval/drift.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <set>
#include <string>

#include "base/check.h"
#include "base/clock.h"
#include "eval/chunks.h"

namespace kvasir::eval {

namespace {

constexpr std::size_t kGram = 4;

Error refuse(std::string message) {
  return Error{ErrorCode::kInvalidArgument, "drift: " + std::move(message)};
}

Status check(const engine::Engine& engine, const DriftOptions& options) {
  if (options.n_prompts < 1 || options.n_prompts > kMaxDriftPrompts) {
    return refuse(
        fmt::format("prompts; got {}, want 1 to {}", options.n_prompts, kMaxDriftPrompts));
  }
  if (options.n_prompt_tokens < 1 || options.n_generate < 1) {
    return refuse(fmt::format("tokens of a prompt, of an answer; got {} and {}, want 1 or more",
                              options.n_prompt_tokens, options.n_generate));
  }
  const std::int64_t n_most = std::int64_t{options.n_prompt_tokens} + options.n_generate;
  if (n_most > engine.n_ctx()) {
    return Error{ErrorCode::kExhausted,
                 fmt::format("drift: does not fit the context; got {} tokens, want at most {}",
                             n_most, engine.n_ctx())};
  }
  if (options.candidates.empty()) return refuse("nothing to compare; got 0 candidates, want 1");
  return {};
}

/// Prompts from the text's beginning to its end, as far apart as they can be.
Result<Answers> cut_prompts(const engine::Engine& engine, std::string_view text,
                            const DriftOptions& options) {
  const text::Tokenizer& tokenizer = engine.tokenizer();
  const std::vector<TokenId> ids =
      tokenizer.encode(text, text::AddSpecial::kNo, text::ParseSpecial::kNo);
  const auto n_prompts = static_cast<std::size_t>(options.n_prompts);
  const auto n_tokens = static_cast<std::size_t>(options.n_prompt_tokens);
  if (ids.size() < n_prompts * n_tokens) {
    return refuse(fmt::format("text too short; got {} tokens, want at least {}", ids.size(),
                              n_prompts * n_tokens));
  }
  Answers prompts;
  for (std::size_t i = 0; i < n_prompts; ++i) {
    const std::size_t start = n_prompts == 1 ? 0 : (ids.size() - n_tokens) * i / (n_prompts - 1);
    const auto prompt = std::span(ids).subspan(start, n_tokens);
    prompts.emplace_back(prompt.begin(), prompt.end());
    if (tokenizer.add_bos() && tokenizer.bos()) prompts.back()[0] = *tokenizer.bos();
  }
  return prompts;
}

/// The answers of all prompts over one type of K and V.
class Writer {
 public:
  Writer(engine::Engine& engine, const Answers& prompts, int n_generate,
         const std::atomic<bool>* stop, const std::function<void(std::int64_t)>& progress)
      : engine_(engine),
        prompts_(prompts),
        n_generate_(static_cast<std::size_t>(n_generate)),
        stop_(stop),
        progress_(progress) {}

  Result<Answers> write(const KvFormat& format) {
    const auto cache = engine_.make_cache(format.choice);
    if (!cache) {
      return Error{cache.error().code, fmt::format("{}: {}", format.name, cache.error().message)};
    }
    Answers answers(prompts_.size());
    std::vector<cache::Sequence> sequences;
    for (std::size_t i = 0; i < prompts_.size(); ++i) {
      sequences.push_back((*cache)->open());
      KVASIR_RETURN_IF_ERROR(read_prompt(sequences[i], prompts_[i], answers[i]));
    }
    std::vector<std::size_t> open(prompts_.size());
    std::iota(open.begin(), open.end(), std::size_t{0});
    while (true) {
      std::erase_if(open, [&](std::size_t i) { return is_whole(answers[i]); });
      if (open.empty()) return answers;
      const auto n_slice = static_cast<std::size_t>(rows_per_step(engine_));
      for (std::size_t begin = 0; begin < open.size(); begin += n_slice) {
        const auto slice = std::span(open).subspan(begin, std::min(n_slice, open.size() - begin));
        KVASIR_RETURN_IF_ERROR(step(sequences, slice, answers));
      }
      progress_(static_cast<std::int64_t>(open.size()));
    }
  }

 private:
  bool is_whole(const std::vector<TokenId>& answer) const {
    return answer.size() == n_generate_ || engine_.tokenizer().is_eog(answer.back());
  }

  Status check_stop() const {
    if (stop_ == nullptr || !stop_->load()) return {};
    return Error{ErrorCode::kCancelled, "drift: interrupted"};
  }

  TokenId likeliest(std::size_t row) const {
    const auto vocab_size = static_cast<std::size_t>(engine_.model().config().vocab_size);
    const auto begin = logits_.begin() + static_cast<std::ptrdiff_t>(row * vocab_size);
    return static_cast<TokenId>(
        std::max_element(begin, begin + static_cast<std::ptrdiff_t>(vocab_size)) - begin);
  }

  Status read_prompt(cache::Sequence& sequence, std::span<const TokenId> tokens,
                     std::vector<TokenId>& answer) {
    while (!tokens.empty()) {
      KVASIR_RETURN_IF_ERROR(check_stop());
      const auto n = std::min(tokens.size(), static_cast<std::size_t>(engine_.options().n_batch));
      const engine::Engine::Step step{&sequence, tokens.first(n), n == tokens.size() ? 1 : 0};
      KVASIR_RETURN_IF_ERROR(engine_.forward({&step, 1}, logits_));
      tokens = tokens.subspan(n);
    }
    answer.push_back(likeliest(0));
    progress_(1);
    return {};
  }

  /// One more token of each answer in `which`.
  Status step(std::vector<cache::Sequence>& sequences, std::span<const std::size_t> which,
              Answers& answers) {
    KVASIR_RETURN_IF_ERROR(check_stop());
    std::vector<engine::Engine::Step> steps;
    for (const std::size_t i : which) {
      steps.push_back({&sequences[i], std::span(answers[i]).last(1), 1});
    }
    KVASIR_RETURN_IF_ERROR(engine_.forward(steps, logits_));
    const auto n_rows = static_cast<std::int64_t>(which.size());
    engine_.pool().parallel_for(n_rows, 1, [&](std::int64_t begin, std::int64_t end) {
      for (auto row = static_cast<std::size_t>(begin); row < static_cast<std::size_t>(end); ++row) {
        answers[which[row]].push_back(likeliest(row));
      }
    });
    return {};
  }

  engine::Engine& engine_;
  const Answers& prompts_;
  std::size_t n_generate_;
  const std::atomic<bool>* stop_;
  const std::function<void(std::int64_t)>& progress_;  ///< gets tokens written
  std::vector<float> logits_;
};

double mean_length(const Answers& answers) {
  std::size_t sum = 0;
  for (const auto& answer : answers) sum += answer.size();
  return static_cast<double>(sum) / static_cast<double>(answers.size());
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
}

}  // namespace

double repetition_rate(const Answers& answers) {
  std::size_t n_grams = 0, n_repeated = 0;
  for (const auto& answer : answers) {
    std::set<std::vector<TokenId>> seen;
    for (std::size_t i = 0; i + kGram <= answer.size(); ++i) {
      const auto gram = std::span(answer).subspan(i, kGram);
      n_repeated += !seen.emplace(gram.begin(), gram.end()).second;
      ++n_grams;
    }
  }
  return n_grams == 0 ? 0 : static_cast<double>(n_repeated) / static_cast<double>(n_grams);
}

DriftFigures compare_answers(const Answers& base, const Answers& answers) {
  KVASIR_CHECK(!base.empty() && base.size() == answers.size());
  DriftFigures out;
  std::vector<double> equal;
  std::size_t n_positions = 0, n_matching = 0, n_never = 0;
  for (std::size_t i = 0; i < base.size(); ++i) {
    const auto &one = base[i], &other = answers[i];
    const std::size_t n_both = std::min(one.size(), other.size());
    const auto first =
        std::mismatch(one.begin(), one.begin() + static_cast<std::ptrdiff_t>(n_both), other.begin())
            .first;
    equal.push_back(static_cast<double>(first - one.begin()));
    n_never += one == other;
    n_positions += std::max(one.size(), other.size());
    for (std::size_t k = 0; k < n_both; ++k) n_matching += one[k] == other[k];
  }
  const auto n = static_cast<double>(base.size());
  out.equal_mean = std::accumulate(equal.begin(), equal.end(), 0.0) / n;
  out.equal_median = median(std::move(equal));
  out.matching = static_cast<double>(n_matching) / static_cast<double>(n_positions);
  out.never_differs = static_cast<double>(n_never) / n;
  out.repetition = repetition_rate(answers);
  return out;
}

Result<DriftReport> drift(engine::Engine& engine, std::string_view text,
                          const DriftOptions& options,
                          const std::function<void(std::int64_t, std::int64_t)>& progress,
                          const std::atomic<bool>* stop) {
  KVASIR_RETURN_IF_ERROR(check(engine, options));
  KVASIR_ASSIGN_OR_RETURN(const Answers prompts, cut_prompts(engine, text, options));
  const SteadyClock clock;
  const double start = clock.now_seconds();
  const std::int64_t n_answers = std::int64_t{options.n_prompts} * options.n_generate;
  const std::int64_t n_most =
      n_answers * (1 + static_cast<std::int64_t>(options.candidates.size()));
  std::int64_t n_whole = 0, n_done = 0;  // answers may end early: types count as whole
  const std::function<void(std::int64_t)> count = [&](std::int64_t n_written) {
    n_done += n_written;
    if (progress) progress(n_done, n_most);
  };
  Writer writer(engine, prompts, options.n_generate, stop, count);
  KVASIR_ASSIGN_OR_RETURN(const Answers base, writer.write(options.base));
  DriftReport report;
  report.n_prompts = options.n_prompts;
  report.base_repetition = repetition_rate(base);
  report.base_tokens_mean = mean_length(base);
  for (const KvFormat& candidate : options.candidates) {
    n_done = n_whole += n_answers;
    const auto answers = writer.write(candidate);
    const bool is_stopped = !answers && answers.error().code == ErrorCode::kCancelled;
    if (is_stopped && !report.figures.empty()) break;
    if (!answers) return answers.error();
    report.figures.push_back(compare_answers(base, *answers));
  }
  report.seconds = clock.now_seconds() - start;
  return report;
}

}  // namespace kvasir::eval
