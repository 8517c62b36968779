#include "eval/attention_error.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/clock.h"
#include "eval/chunks.h"

namespace kvasir::eval {

namespace {

/// Sums over tokens of one head, or of one layer.
struct Sums {
  double squared_error = 0, squared_base = 0, ratio = 0;

  void add(double error, double base) {
    squared_error += error;
    squared_base += base;
    if (base > 0) ratio += std::sqrt(error / base);
  }
  RelativeError over(std::int64_t n_tokens) const {
    return {squared_base > 0 ? std::sqrt(squared_error / squared_base) : 0.0,
            ratio / static_cast<double>(n_tokens)};
  }
};

/// A candidate's, of one chunk or of several.
struct ErrorSums {
  std::vector<Sums> heads, layers;

  ErrorSums(int n_layers, int n_heads)
      : heads(static_cast<std::size_t>(n_layers * n_heads)),
        layers(static_cast<std::size_t>(n_layers)) {}
  void add(const ErrorSums& other) {
    const auto add_all = [](const std::vector<Sums>& from, std::vector<Sums>& to) {
      for (std::size_t i = 0; i < from.size(); ++i) {
        to[i].squared_error += from[i].squared_error;
        to[i].squared_base += from[i].squared_base;
        to[i].ratio += from[i].ratio;
      }
    };
    add_all(other.heads, heads);
    add_all(other.layers, layers);
  }
};

/// Context vectors of a piece: [layers][rows][n_heads * head_dim].
class Contexts {
 public:
  void shape(int n_layers, int n_rows, int n_cols) {
    n_rows_ = static_cast<std::size_t>(n_rows);
    n_cols_ = static_cast<std::size_t>(n_cols);
    values_.resize(static_cast<std::size_t>(n_layers) * n_rows_ * n_cols_);
  }
  float* row(int layer_idx, int row_idx) {
    return values_.data() +
           (static_cast<std::size_t>(layer_idx) * n_rows_ + static_cast<std::size_t>(row_idx)) *
               n_cols_;
  }

 private:
  std::size_t n_rows_ = 0, n_cols_ = 0;
  std::vector<float> values_;
};

/// Observes one model while it lives.
class Observation {
 public:
  Observation(model::Model& model, model::RowObserver observer) : model_(model) {
    model_.set_observers({.qkv = {}, .attention = std::move(observer)});
  }
  ~Observation() { model_.set_observers({}); }
  Observation(const Observation&) = delete;
  Observation& operator=(const Observation&) = delete;

 private:
  model::Model& model_;
};

/// One chunk after the other, through the caches of one comparison, the base's first.
class Comparison {
 public:
  Comparison(engine::Engine& engine, int first_scored)
      : engine_(engine), config_(engine.model().config()), first_scored_(first_scored) {}

  Status add(const KvFormat& format) {
    auto cache = engine_.make_cache(format.choice);
    if (!cache) {
      return Error{cache.error().code, fmt::format("{}: {}", format.name, cache.error().message)};
    }
    caches_.push_back(std::move(*cache));
    return {};
  }

  /// By candidate. Errors: kCancelled, those of Engine::forward.
  Result<std::vector<ErrorSums>> run(const ChunkedText& text, int chunk_idx,
                                     const std::atomic<bool>* stop) {
    std::vector<cache::Sequence> sequences;
    for (const auto& cache : caches_) sequences.push_back(cache->open());
    std::vector<ErrorSums> sums(caches_.size() - 1, ErrorSums(config_.n_layers, config_.n_heads));
    const std::vector<TokenId> input = text.input(chunk_idx);
    const Observation observation(
        engine_.model(), [this](int layer, Position first, int n, const float* heads,
                                std::size_t stride) { keep(layer, first, n, heads, stride); });
    KVASIR_RETURN_IF_ERROR(run_in_pieces(engine_, sequences, input, first_scored_, stop,
                                         [&](std::size_t i, int, int n_rows, std::vector<float>&) {
                                           if (i == 0) {
                                             std::swap(base_, newest_);
                                           } else {
                                             compare(n_rows, sums[i - 1]);
                                           }
                                         }));
    return sums;
  }

 private:
  /// A pass of scored rows wants the logits of all, so the last layer has them all, too.
  void keep(int layer_idx, Position first_pos, int n_rows, const float* heads, std::size_t stride) {
    if (first_pos < first_scored_) return;
    const int n_cols = config_.n_heads * config_.head_dim;
    if (layer_idx == 0) newest_.shape(config_.n_layers, n_rows, n_cols);
    for (int row = 0; row < n_rows; ++row) {
      const float* from = heads + static_cast<std::size_t>(row) * stride;
      std::copy(from, from + n_cols, newest_.row(layer_idx, row));
    }
  }

  /// Rows are added one by one in their order: the sums do not depend on the pieces.
  void compare(int n_rows, ErrorSums& sums) {
    engine_.pool().parallel_for(config_.n_layers, 1, [&](std::int64_t begin, std::int64_t end) {
      for (int layer = static_cast<int>(begin); layer < end; ++layer) {
        for (int row = 0; row < n_rows; ++row) compare_row(layer, row, sums);
      }
    });
  }

  void compare_row(int layer, int row, ErrorSums& sums) {
    const float *base = base_.row(layer, row), *other = newest_.row(layer, row);
    double layer_error = 0, layer_base = 0;
    for (int head = 0; head < config_.n_heads; ++head) {
      double error = 0, square = 0;
      for (int i = 0; i < config_.head_dim; ++i, ++base, ++other) {
        const double difference = static_cast<double>(*other) - *base;
        error += difference * difference;
        square += static_cast<double>(*base) * *base;
      }
      sums.heads[static_cast<std::size_t>(layer * config_.n_heads + head)].add(error, square);
      layer_error += error;
      layer_base += square;
    }
    sums.layers[static_cast<std::size_t>(layer)].add(layer_error, layer_base);
  }

  engine::Engine& engine_;
  const model::ModelConfig& config_;
  const int first_scored_;
  std::vector<std::unique_ptr<cache::KvCache>> caches_;
  Contexts base_, newest_;
};

std::vector<RelativeError> errors_of(const std::vector<Sums>& sums, std::int64_t n_tokens) {
  std::vector<RelativeError> errors;
  for (const Sums& one : sums) errors.push_back(one.over(n_tokens));
  return errors;
}

}  // namespace

int AttentionErrors::worst_head(int layer_idx) const {
  int worst = 0;
  for (int i = 1; i < n_heads; ++i) {
    if (head(layer_idx, i).rms > head(layer_idx, worst).rms) worst = i;
  }
  return worst;
}

Result<AttentionErrorReport> attention_error(engine::Engine& engine, std::string_view text,
                                             const AttentionErrorOptions& options,
                                             const std::function<void(int, int)>& progress,
                                             const std::atomic<bool>* stop) {
  KVASIR_RETURN_IF_ERROR(check_chunk_length(engine, options.n_ctx, 4));
  if (options.candidates.empty()) {
    return Error{ErrorCode::kInvalidArgument,
                 "attention: nothing to compare; got 0 candidates, want 1 or more"};
  }
  const SteadyClock clock;
  const double start = clock.now_seconds();
  KVASIR_ASSIGN_OR_RETURN(
      const ChunkedText chunks,
      ChunkedText::cut(engine, text, options.n_ctx, options.n_chunks, "attention"));
  AttentionErrorReport report;
  report.n_layers = engine.model().config().n_layers;
  report.n_heads = engine.model().config().n_heads;
  report.first_scored = options.n_ctx / 2;
  Comparison comparison(engine, report.first_scored);
  KVASIR_RETURN_IF_ERROR(comparison.add(options.base));
  for (const KvFormat& one : options.candidates) KVASIR_RETURN_IF_ERROR(comparison.add(one));

  std::vector<ErrorSums> all(options.candidates.size(), ErrorSums(report.n_layers, report.n_heads));
  while (report.n_chunks < chunks.n_chunks()) {
    const auto sums = comparison.run(chunks, report.n_chunks, stop);
    const bool is_stopped = !sums && sums.error().code == ErrorCode::kCancelled;
    if (is_stopped && report.n_chunks > 0) break;
    if (!sums) return sums.error();
    for (std::size_t i = 0; i < all.size(); ++i) all[i].add((*sums)[i]);
    ++report.n_chunks;
    if (progress) progress(report.n_chunks, chunks.n_chunks());
  }
  report.n_scored = std::int64_t{report.n_chunks} * (options.n_ctx - 1 - report.first_scored);
  for (const ErrorSums& sums : all) {
    report.candidates.push_back({report.n_heads, errors_of(sums.heads, report.n_scored),
                                 errors_of(sums.layers, report.n_scored)});
  }
  report.seconds = clock.now_seconds() - start;
  return report;
}

}  // namespace kvasir::eval
