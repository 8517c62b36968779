#include "eval/kld.h"

#include <fmt/core.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "cache/page/geometry.h"
#include "cache/page/pool.h"
#include "cache/prefix/page_key.h"
#include "eval/chunks.h"
#include "eval/divergence.h"
#include "eval/kld_checkpoint.h"

namespace kvasir::eval {

namespace {

constexpr std::int64_t kRowsPerTask = 4;

/// Rows of logits [n_rows][vocab] of one piece.
class Rows {
 public:
  Rows(const std::vector<float>& logits, int vocab_size)
      : logits_(logits), vocab_size_(static_cast<std::size_t>(vocab_size)) {}
  std::span<const float> row(std::int64_t row_idx) const {
    return {logits_.data() + static_cast<std::size_t>(row_idx) * vocab_size_, vocab_size_};
  }

 private:
  const std::vector<float>& logits_;
  std::size_t vocab_size_;
};

/// Bytes of frames in use and of the tables that name them. Requires: one open sequence of
/// `n_tokens` tokens.
std::uint64_t bytes_in_use(const cache::KvCache& cache, int n_tokens) {
  constexpr std::uint64_t kEntryBytes = sizeof(std::uint8_t*) + sizeof(cache::PageId);
  const cache::MemorySummary summary = cache.memory_summary();
  std::uint64_t bytes = summary.used;
  for (const auto& group : summary.groups) {
    const int n_pages = cache::pages_for(n_tokens, group.page_tokens);
    bytes += kEntryBytes * static_cast<std::uint64_t>(n_pages);
  }
  return bytes;
}

std::int64_t values_of(const cache::KvCache& cache, int n_tokens) {
  std::int64_t per_token = 0;
  for (const cache::GroupSpec& group : cache.options().groups) {
    per_token += static_cast<std::int64_t>(group.layers.size()) * group.n_kv_heads * group.head_dim;
  }
  return 2 * per_token * n_tokens;
}

/// One chunk while it runs, row by row.
class ChunkScores {
 public:
  ChunkScores(engine::Engine& engine, std::span<const TokenId> chunk, int first_scored,
              std::size_t n_candidates)
      : engine_(engine), chunk_(chunk), first_scored_(first_scored) {
    n_scored_ = static_cast<std::size_t>(static_cast<int>(chunk.size()) - 1 - first_scored);
    base_log_p_.resize(n_scored_);
    delta_p_.resize(n_scored_);
    is_same_top_.resize(n_scored_);
    scores_.n_scored = static_cast<std::int64_t>(n_scored_);
    scores_.candidates.resize(n_candidates);
    for (CandidateChunk& one : scores_.candidates) {
      one.log_ratio.resize(n_scored_);
      one.kld.resize(n_scored_);
    }
  }

  void take_base(int first, int n_rows, std::vector<float>& logits) {
    base_logits_.swap(logits);
    softmaxes_.resize(static_cast<std::size_t>(n_rows));
    for_rows(n_rows, [&](std::int64_t row) {
      const auto base = rows(base_logits_).row(row);
      RowSoftmax& softmax = softmaxes_[static_cast<std::size_t>(row)];
      softmax = softmax_of(base);
      base_log_p_[index(first, row)] = softmax.log_probability(base[target(first, row)]);
    });
    for (int row = 0; row < n_rows; ++row) scores_.base_nll -= base_log_p_[index(first, row)];
  }

  /// Requires: take_base of the same piece came before.
  void take_candidate(std::size_t candidate_idx, int first, int n_rows,
                      const std::vector<float>& logits) {
    CandidateChunk& out = scores_.candidates[candidate_idx];
    for_rows(n_rows, [&](std::int64_t row) {
      const auto base = rows(base_logits_).row(row), other = rows(logits).row(row);
      const RowSoftmax& base_softmax = softmaxes_[static_cast<std::size_t>(row)];
      const RowSoftmax softmax = softmax_of(other);
      const std::size_t i = index(first, row);
      const double base_log_p = base_log_p_[i];
      const double log_p = softmax.log_probability(other[target(first, row)]);
      out.log_ratio[i] = static_cast<float>(base_log_p - log_p);
      out.kld[i] = static_cast<float>(divergence(base, base_softmax, other, softmax));
      delta_p_[i] = std::exp(log_p) - std::exp(base_log_p);
      is_same_top_[i] = softmax.top == base_softmax.top;
    });
    for (int row = 0; row < n_rows; ++row) {
      const std::size_t i = index(first, row);
      out.squared_delta_p += delta_p_[i] * delta_p_[i];
      out.n_same_top += is_same_top_[i];
    }
  }

  KldChunk& scores() { return scores_; }

 private:
  Rows rows(const std::vector<float>& logits) const {
    return {logits, engine_.model().config().vocab_size};
  }
  std::size_t index(int first, std::int64_t row) const {
    return static_cast<std::size_t>(first - first_scored_ + row);
  }
  std::size_t target(int first, std::int64_t row) const {
    return static_cast<std::size_t>(chunk_[static_cast<std::size_t>(first + row + 1)]);
  }
  template <class Body>
  void for_rows(int n_rows, const Body& body) {
    engine_.pool().parallel_for(n_rows, kRowsPerTask, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) body(row);
    });
  }

  engine::Engine& engine_;
  std::span<const TokenId> chunk_;
  int first_scored_;
  std::size_t n_scored_;
  std::vector<float> base_logits_;
  std::vector<RowSoftmax> softmaxes_;  ///< of the base, by row of the piece
  std::vector<double> base_log_p_, delta_p_;
  std::vector<std::uint8_t> is_same_top_;
  KldChunk scores_;
};

/// The caches of one comparison, the base's first.
class Caches {
 public:
  static Result<Caches> make(engine::Engine& engine, const KldOptions& options) {
    Caches made(engine);
    KVASIR_RETURN_IF_ERROR(made.add(options.base));
    for (const KvFormat& candidate : options.candidates) {
      KVASIR_RETURN_IF_ERROR(made.add(candidate));
    }
    return made;
  }

  const cache::KvCache& base() const { return *caches_[0]; }

  Result<KldChunk> score(const ChunkedText& text, int chunk_idx, int first_scored,
                         const std::atomic<bool>* stop) const {
    const std::vector<TokenId> input = text.input(chunk_idx);
    ChunkScores scores(engine_, text.chunk(chunk_idx), first_scored, caches_.size() - 1);
    std::vector<cache::Sequence> sequences;
    for (const auto& cache : caches_) sequences.push_back(cache->open());
    KVASIR_RETURN_IF_ERROR(
        run_in_pieces(engine_, sequences, input, first_scored, stop,
                      [&](std::size_t i, int first, int n_rows, std::vector<float>& logits) {
                        if (i == 0) {
                          scores.take_base(first, n_rows, logits);
                        } else {
                          scores.take_candidate(i - 1, first, n_rows, logits);
                        }
                      }));
    // What the next query reads, as after a decoded token; a prefill's last pass has left its rows.
    for (cache::Sequence& sequence : sequences) sequence.free_below_windows();
    for (std::size_t i = 1; i < caches_.size(); ++i) {
      scores.scores().candidates[i - 1].bytes =
          bytes_in_use(*caches_[i], static_cast<int>(input.size()));
    }
    return std::move(scores.scores());
  }

 private:
  explicit Caches(engine::Engine& engine) : engine_(engine) {}
  Status add(const KvFormat& format) {
    auto cache = engine_.make_cache(format.choice);
    if (!cache) {
      return Error{cache.error().code, fmt::format("{}: {}", format.name, cache.error().message)};
    }
    caches_.push_back(std::move(*cache));
    return {};
  }

  engine::Engine& engine_;
  std::vector<std::unique_ptr<cache::KvCache>> caches_;
};

/// FNV-1a over token ids: tells texts apart, no more.
std::uint64_t hash_of(std::span<const TokenId> ids) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const TokenId id : ids) hash = (hash ^ static_cast<std::uint64_t>(id)) * 0x100000001b3;
  return hash;
}

std::string file_name(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

/// Errors: those of Engine::kv_format.
Result<KldSettings> settings_of(engine::Engine& engine, const KldOptions& options,
                                const cache::KvCache& cache, int first_scored,
                                std::span<const ChunkedText> texts) {
  const engine::EngineOptions& had = engine.options();
  std::string candidates, layers;  // the latter as the model's calibration says
  for (const KvFormat& one : options.candidates) {
    candidates += (candidates.empty() ? "" : ",") + one.name;
    KVASIR_ASSIGN_OR_RETURN(const cache::KvFormat format, engine.kv_format(one.choice));
    layers += (layers.empty() ? "" : ",") + format.details(engine.model().config().n_layers);
  }
  const cache::CacheOptions& pages = cache.options();
  KldSettings settings = {
      {"model", fmt::format("{}, weights {}", file_name(had.model_path),
                            cache::PageKey{engine.model_fingerprint()}.to_hex())},
      {"act", had.activations == model::ActivationMode::kInt8 ? "int8" : "f32"},
      {"base", options.base.name},
      {"kv-type", candidates},
      {"codecs by layer", layers},
      {"ctx-size", std::to_string(options.n_ctx)},
      {"first scored position", std::to_string(first_scored)},
      {"page-tokens", std::to_string(pages.page_tokens)},
      {"kv-heads", pages.head_order == cache::HeadOrder::kSplit ? "split" : "interleaved"},
      {"cache groups", std::to_string(pages.groups.size())}};
  for (std::size_t i = 0; i < texts.size(); ++i) {
    settings.emplace_back(
        fmt::format("text {}", i),
        fmt::format("{} tokens, hash {:016x}", texts[i].ids().size(), hash_of(texts[i].ids())));
  }
  return settings;
}

/// The chunks that are done, one after the other.
class Run {
 public:
  Run(const KldOptions& options, int first_scored)
      : options_(options), first_scored_(first_scored) {}

  /// Errors: kInvalidArgument, those of KldCheckpoint.
  Status prepare(engine::Engine& engine, Env& env, std::span<const KldText> texts) {
    for (const KldText& text : texts) {
      KVASIR_ASSIGN_OR_RETURN(ChunkedText chunks,
                              ChunkedText::cut(engine, text.text, options_.n_ctx, options_.n_chunks,
                                               "kld: " + text.name));
      n_chunks_ += chunks.n_chunks();
      texts_.push_back(std::move(chunks));
    }
    KVASIR_ASSIGN_OR_RETURN(Caches caches, Caches::make(engine, options_));
    caches_.emplace(std::move(caches));
    if (options_.checkpoint.empty()) return {};
    KVASIR_ASSIGN_OR_RETURN(const KldSettings settings,
                            settings_of(engine, options_, caches_->base(), first_scored_, texts_));
    const KldShape shape{options_.candidates.size(), options_.n_ctx - 1 - first_scored_};
    KVASIR_ASSIGN_OR_RETURN(KldCheckpoint checkpoint,
                            KldCheckpoint::open(env, options_.checkpoint, settings, shape));
    checkpoint_.emplace(std::move(checkpoint));
    return {};
  }

  Status score_all(const std::function<void(int, int, double)>& progress,
                   const std::atomic<bool>* stop) {
    for (std::size_t t = 0; t < texts_.size(); ++t) {
      for (int c = 0; c < texts_[t].n_chunks(); ++c) {
        KVASIR_RETURN_IF_ERROR(score(static_cast<int>(t), c, stop));
        if (!progress) continue;
        const double nll = done_.back().base_nll / static_cast<double>(done_.back().n_scored);
        progress(static_cast<int>(done_.size()), n_chunks_, std::exp(nll));
      }
    }
    return {};
  }

  bool is_empty() const { return done_.empty(); }

  /// Requires: not is_empty().
  KldReport report(std::span<const KldText> texts) const {
    KldReport report;
    report.first_scored = first_scored_;
    report.n_chunks = static_cast<int>(done_.size());
    report.n_chunks_resumed = n_resumed_;
    report.n_values = values_of(caches_->base(), options_.n_ctx - 1);
    std::vector<const KldChunk*> all;
    for (std::size_t t = 0; t < texts.size(); ++t) {
      std::vector<const KldChunk*> chunks;
      for (const KldChunk& chunk : done_) {
        if (chunk.text_idx == static_cast<int>(t)) chunks.push_back(&chunk);
      }
      if (chunks.empty()) continue;
      report.texts.push_back({texts[t].name, static_cast<int>(texts_[t].ids().size()),
                              static_cast<int>(chunks.size()), figures(chunks)});
      all.insert(all.end(), chunks.begin(), chunks.end());
    }
    report.all = figures(all);
    report.n_scored = report.all.front().n_scored;
    return report;
  }

 private:
  Status score(int text_idx, int chunk_idx, const std::atomic<bool>* stop) {
    if (const KldChunk* kept = checkpoint_ ? checkpoint_->find(text_idx, chunk_idx) : nullptr) {
      done_.push_back(*kept);
      ++n_resumed_;
      return {};
    }
    const ChunkedText& text = texts_[static_cast<std::size_t>(text_idx)];
    KVASIR_ASSIGN_OR_RETURN(KldChunk chunk, caches_->score(text, chunk_idx, first_scored_, stop));
    chunk.text_idx = text_idx;
    chunk.chunk_idx = chunk_idx;
    if (checkpoint_) KVASIR_RETURN_IF_ERROR(checkpoint_->save(chunk));
    done_.push_back(std::move(chunk));
    return {};
  }

  std::vector<KldFigures> figures(std::span<const KldChunk* const> chunks) const {
    std::vector<KldFigures> out;
    for (std::size_t i = 0; i < options_.candidates.size(); ++i) {
      out.push_back(figures_of(chunks, i));
    }
    return out;
  }

  const KldOptions& options_;
  int first_scored_;
  int n_chunks_ = 0, n_resumed_ = 0;
  std::vector<ChunkedText> texts_;
  std::optional<Caches> caches_;
  std::optional<KldCheckpoint> checkpoint_;
  std::vector<KldChunk> done_;
};

}  // namespace

Result<KldReport> kld(engine::Engine& engine, Env& env, std::span<const KldText> texts,
                      const KldOptions& options,
                      const std::function<void(int, int, double)>& progress,
                      const std::atomic<bool>* stop) {
  // A position is scored, and it has one behind it.
  const int n_ctx_min = options.scores_all ? kFirstOfAll + 2 : 4;
  KVASIR_RETURN_IF_ERROR(check_chunk_length(engine, options.n_ctx, n_ctx_min));
  if (options.candidates.empty() || texts.empty()) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("kld: nothing to compare; got {} candidates and {} texts, want 1 or "
                             "more of both",
                             options.candidates.size(), texts.size())};
  }
  const SteadyClock clock;
  const double start = clock.now_seconds();
  Run run(options, options.scores_all ? kFirstOfAll : options.n_ctx / 2);
  KVASIR_RETURN_IF_ERROR(run.prepare(engine, env, texts));
  const Status status = run.score_all(progress, stop);
  const bool is_stopped = !status && status.error().code == ErrorCode::kCancelled;
  if (!status && (!is_stopped || run.is_empty())) return status.error();
  KldReport report = run.report(texts);
  report.seconds = clock.now_seconds() - start;
  return report;
}

}  // namespace kvasir::eval
