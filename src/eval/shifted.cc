#include "eval/shifted.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <span>

#include "base/check.h"
#include "engine/session.h"

namespace kvasir::eval {
namespace {

using Tokens = std::vector<TokenId>;
/// Logarithms of a next-token distribution.
using LogRow = std::vector<float>;

/// Tokens before every change.
constexpr std::size_t kBeforeChange = 16;

struct Case {
  Tokens before, after;  ///< the prompt, and with its change
  Tokens forced;         ///< the text that follows both
};

void make_log_row(std::span<const float> logits, LogRow& row) {
  const float maximum = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += static_cast<double>(std::exp(logit - maximum));
  const auto offset = static_cast<float>(std::log(sum)) + maximum;
  row.resize(logits.size());
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = logits[i] - offset;
}

double divergence(const LogRow& exact, const LogRow& other) {
  double sum = 0.0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    sum += std::exp(static_cast<double>(exact[i])) * static_cast<double>(exact[i] - other[i]);
  }
  return sum;
}

auto top(const LogRow& row) { return std::max_element(row.begin(), row.end()) - row.begin(); }

/// What one setting has collected.
struct Sums {
  std::vector<double> kld, ratios;
  double nll = 0, seconds = 0, moved = 0;
  std::int64_t n_same = 0;

  void add(const LogRow& exact, const LogRow& other, TokenId next) {
    kld.push_back(divergence(exact, other));
    n_same += top(exact) == top(other);
    nll -= static_cast<double>(other[static_cast<std::size_t>(next)]);
  }
  ShiftedFigures figures() {
    ShiftedFigures out;
    const auto n = static_cast<double>(kld.size());
    std::sort(kld.begin(), kld.end());
    for (const double value : kld) out.kld_mean += value / n;
    const auto at = [](const std::vector<double>& sorted, double share) {
      const auto last = static_cast<double>(sorted.size() - 1);
      return sorted[static_cast<std::size_t>(std::lround(share * last))];
    };
    out.kld_median = at(kld, 0.5);
    out.kld_99 = at(kld, 0.99);
    out.kld_max = kld.back();
    out.same_top = static_cast<double>(n_same) / n;
    out.nll_mean = nll / n;
    if (ratios.empty()) return out;
    std::sort(ratios.begin(), ratios.end());
    const auto n_cases = static_cast<double>(ratios.size());
    out.seconds_ratio = at(ratios, 0.5);
    out.seconds = seconds / n_cases;
    out.moved = moved / n_cases;
    return out;
  }
};

Case make_case(std::span<const TokenId> text, const ShiftedOptions& options, int case_idx) {
  std::mt19937_64 random(options.seed * 1000003 + static_cast<std::uint64_t>(case_idx));
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const auto n_prompt = static_cast<std::size_t>(options.n_prompt);
  const auto n_scored = static_cast<std::size_t>(options.n_scored);
  const std::size_t n_spare = text.size() - n_prompt - n_scored;
  const std::size_t start = options.n_cases == 1
                                ? 0
                                : n_spare * static_cast<std::size_t>(case_idx) /
                                      static_cast<std::size_t>(options.n_cases - 1);
  const auto prompt = text.subspan(start, n_prompt);
  const auto forced = text.subspan(start + n_prompt, n_scored);
  Case made{{prompt.begin(), prompt.end()}, {}, {forced.begin(), forced.end()}};
  const std::size_t at = kBeforeChange + below(n_prompt / 10 - kBeforeChange);
  const std::size_t n_edit = 1 + below(static_cast<std::size_t>(options.n_edit_max));
  const std::size_t n_gone = case_idx % 3 == 0 ? 0 : n_edit;  // insert, replace, delete
  const std::size_t n_new = case_idx % 3 == 2 ? 0 : n_edit;
  const auto other = text.subspan(below(text.size() - n_new), n_new);
  const auto cut = [](std::size_t n) { return static_cast<std::ptrdiff_t>(n); };
  made.after.assign(prompt.begin(), prompt.begin() + cut(at));
  made.after.insert(made.after.end(), other.begin(), other.end());
  made.after.insert(made.after.end(), prompt.begin() + cut(at + n_gone), prompt.end());
  if (options.repeats_change) {
    const auto place = std::span(made.after).subspan(at - kBeforeChange);
    const auto repeated = place.first(std::min(place.size(), n_scored));
    made.forced.assign(repeated.begin(), repeated.end());
  }
  return made;
}

/// Feeds what follows, and hands over the distribution before each of its tokens.
template <class Take>
Status feed(engine::Session& session, const Tokens& forced, Take take) {
  LogRow row;
  for (std::size_t i = 0; i < forced.size(); ++i) {
    make_log_row(session.logits(), row);
    take(i, row);
    if (i + 1 < forced.size()) KVASIR_RETURN_IF_ERROR(session.push(forced[i]));
  }
  return {};
}

class Run {
 public:
  Run(engine::Engine& engine, const ShiftedOptions& options)
      : engine_(engine), options_(options), sums_(options.settings.size()) {}

  Status run(const Case& one, const std::atomic<bool>* stop) {
    engine::Session before(engine_);
    KVASIR_RETURN_IF_ERROR(before.prompt(one.before, {}, stop));
    std::vector<LogRow> exact(one.forced.size());
    KVASIR_ASSIGN_OR_RETURN(engine::Session session, before.fork());
    KVASIR_ASSIGN_OR_RETURN(const engine::PromptReport report, session.prompt(one.after, {}, stop));
    exact_.seconds += report.seconds;
    exact_.ratios.push_back(1);
    KVASIR_RETURN_IF_ERROR(feed(session, one.forced, [&](std::size_t i, const LogRow& row) {
      exact[i] = row;
      exact_.add(row, row, one.forced[i]);
    }));
    for (std::size_t i = 0; i < sums_.size(); ++i) {
      KVASIR_ASSIGN_OR_RETURN(engine::Session moving, before.fork());
      moving.set_shifted_reuse(options_.settings[i]);
      KVASIR_ASSIGN_OR_RETURN(const engine::PromptReport moved, moving.prompt(one.after, {}, stop));
      sums_[i].seconds += moved.seconds;
      sums_[i].ratios.push_back(moved.seconds / report.seconds);
      sums_[i].moved += static_cast<double>(moved.n_shifted) / moved.n_prompt;
      KVASIR_RETURN_IF_ERROR(compare(moving, one, exact, sums_[i]));
    }
    return compare(before, one, exact, unchanged_);
  }

  ShiftedReport report() {
    ShiftedReport report;
    report.n_cases = static_cast<int>(exact_.ratios.size());
    report.n_scored = static_cast<int>(exact_.kld.size());
    const ShiftedFigures exact = exact_.figures();
    report.exact_seconds = exact.seconds;
    report.exact_nll = exact.nll_mean;
    report.unchanged = unchanged_.figures();
    for (Sums& sums : sums_) report.settings.push_back(sums.figures());
    return report;
  }

 private:
  static Status compare(engine::Session& session, const Case& one, const std::vector<LogRow>& exact,
                        Sums& sums) {
    return feed(session, one.forced,
                [&](std::size_t i, const LogRow& row) { sums.add(exact[i], row, one.forced[i]); });
  }

  engine::Engine& engine_;
  const ShiftedOptions& options_;
  Sums exact_, unchanged_;
  std::vector<Sums> sums_;
};

Status check(const engine::Engine& engine, const ShiftedOptions& options, std::size_t n_text) {
  if (engine.kv_format().has_tiles(engine.model().config().n_layers)) {
    return Error{ErrorCode::kInvalidArgument,
                 "shifted: moves rows of K and V, and int4 and below keep few; want --kv-type int8 "
                 "or more"};
  }
  const auto refuse = [](std::string message) {
    return Error{ErrorCode::kInvalidArgument, "shifted: " + std::move(message)};
  };
  if (options.n_prompt < 256 || options.n_scored < 1 || options.n_cases < 1 ||
      options.n_edit_max < 1 || options.n_edit_max > options.n_prompt / 4) {
    return refuse(fmt::format(
        "got {} prompt tokens, {} scored, {} cases, changes of {}; want 256 or more, 1 or more, 1 "
        "or more, 1 to a quarter of the prompt",
        options.n_prompt, options.n_scored, options.n_cases, options.n_edit_max));
  }
  const int n_most = options.n_prompt + options.n_edit_max + options.n_scored;
  if (n_most > engine.n_ctx()) {
    return refuse(fmt::format("does not fit the context; got {} tokens, want at most {}", n_most,
                              engine.n_ctx()));
  }
  if (n_text < static_cast<std::size_t>(n_most)) {
    return refuse(fmt::format("text too short; got {} tokens, want at least {}", n_text, n_most));
  }
  return {};
}

}  // namespace

Result<ShiftedReport> shifted_reuse(engine::Engine& engine, std::string_view text,
                                    const ShiftedOptions& options,
                                    const std::function<void(int, int)>& progress,
                                    const std::atomic<bool>* stop) {
  KVASIR_CHECK(engine.options().prefix_bytes == 0);
  const Tokens tokens =
      engine.tokenizer().encode(text, text::AddSpecial::kNo, text::ParseSpecial::kNo);
  KVASIR_RETURN_IF_ERROR(check(engine, options, tokens.size()));
  Run run(engine, options);
  for (int i = 0; i < options.n_cases; ++i) {
    KVASIR_RETURN_IF_ERROR(run.run(make_case(tokens, options, i), stop));
    if (progress) progress(i + 1, options.n_cases);
  }
  return run.report();
}

}  // namespace kvasir::eval
