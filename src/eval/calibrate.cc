#include "eval/calibrate.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "eval/chunks.h"
#include "eval/divergence.h"
#include "eval/key_moments.h"
#include "eval/scattered_rows.h"

namespace kvasir::eval {

namespace {

using cache::CodecId;

constexpr std::int64_t kRowsPerTask = 4;
/// Caches beside the base's: of a 135M model 94 MB each at 2048 tokens.
constexpr std::size_t kCandidatesAtATime = 10;
/// Chunks whose moments are taken, for each that damages are measured with: a pass over one costs a
/// hundredth of that.
constexpr int kMomentChunks = 4;

/// One side of one layer with few bits.
struct Unit {
  int layer;
  bool is_v;
  CodecId codec;
  double kld_sum = 0;
};

std::vector<Unit> units_of(int n_layers) {
  std::vector<Unit> units;
  for (int layer = 0; layer < n_layers; ++layer) {
    units.push_back({layer, false, CodecId::kTile3});
    units.push_back({layer, false, CodecId::kTile4});
    units.push_back({layer, true, CodecId::kTile3});
  }
  return units;
}

using Bases = std::shared_ptr<const cache::KeyBases>;

engine::KvChoice choice_of(const Unit& unit, int n_layers, const Bases& bases) {
  engine::KvChoice choice;
  choice.codecs = {CodecId::kF32, CodecId::kF32};
  choice.layers.assign(static_cast<std::size_t>(n_layers), choice.codecs);
  cache::LayerCodecs& codecs = choice.layers[static_cast<std::size_t>(unit.layer)];
  (unit.is_v ? codecs.v : codecs.k) = unit.codec;
  choice.key_bases = bases;
  return choice;
}

engine::KvChoice exact_choice() {
  engine::KvChoice choice;
  choice.codecs = {CodecId::kF32, CodecId::kF32};
  return choice;
}

/// The base's rows of one piece, and how far others are from them.
class PieceScores {
 public:
  explicit PieceScores(engine::Engine& engine)
      : pool_(engine.pool()),
        vocab_size_(static_cast<std::size_t>(engine.model().config().vocab_size)) {}

  void take_base(int n_rows, std::vector<float>& logits) {
    base_.swap(logits);
    softmaxes_.resize(static_cast<std::size_t>(n_rows));
    klds_.resize(static_cast<std::size_t>(n_rows));
    for_rows(n_rows, [&](std::size_t row) { softmaxes_[row] = softmax_of(row_of(base_, row)); });
  }

  /// Sum over the piece's rows. Requires: take_base of the same piece came before.
  double kld_sum(int n_rows, const std::vector<float>& logits) {
    for_rows(n_rows, [&](std::size_t row) {
      const auto other = row_of(logits, row);
      klds_[row] = divergence(row_of(base_, row), softmaxes_[row], other, softmax_of(other));
    });
    double sum = 0;  // in the order of rows, whatever the threads
    for (const double kld : klds_) sum += kld;
    return sum;
  }

 private:
  std::span<const float> row_of(const std::vector<float>& logits, std::size_t row) const {
    return {logits.data() + row * vocab_size_, vocab_size_};
  }
  template <class Body>
  void for_rows(int n_rows, const Body& body) {
    pool_.parallel_for(n_rows, kRowsPerTask, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) body(static_cast<std::size_t>(row));
    });
  }

  ThreadPool& pool_;
  std::size_t vocab_size_;
  std::vector<float> base_;
  std::vector<RowSoftmax> softmaxes_;
  std::vector<double> klds_;
};

/// A chunk of a text.
struct Chunk {
  const ChunkedText* text;
  int chunk_idx;
};

/// A text's lie in the middles of equal parts of it.
std::vector<Chunk> spread(const std::vector<ChunkedText>& texts, int n_chunks) {
  std::vector<Chunk> chunks;
  const int n_texts = static_cast<int>(texts.size());
  for (int t = 0; t < n_texts; ++t) {
    const ChunkedText& text = texts[static_cast<std::size_t>(t)];
    // The first texts have one more where it does not come out even.
    const int n_wanted = std::max(1, n_chunks / n_texts + (t < n_chunks % n_texts ? 1 : 0));
    const int n = std::min(n_wanted, text.n_chunks());
    for (int i = 0; i < n; ++i) chunks.push_back({&text, (2 * i + 1) * text.n_chunks() / (2 * n)});
  }
  return chunks;
}

/// The basis of K by the moments of chunks, computed exactly. Errors: kCancelled, those of
/// Engine::forward.
Result<Bases> find_bases(engine::Engine& engine, std::span<const Chunk> chunks,
                         const std::atomic<bool>* stop) {
  const model::ModelConfig& config = engine.model().config();
  KeyMoments moments(engine.key_shape(), config.n_heads);
  ScatteredRows scattered(config);
  KVASIR_ASSIGN_OR_RETURN(const auto cache, engine.make_cache(exact_choice()));
  const auto add = [&](int layer, Position first, int n, const float* rows, std::size_t stride) {
    const auto turned = scattered.turn(layer, first, n, rows, stride);
    moments.add(engine.pool(), layer, first, n, turned.data(), turned.size() / std::size_t(n));
  };
  engine.model().set_observers({.qkv = add, .attention = {}});
  Status status;
  for (std::size_t i = 0; status && i < chunks.size(); ++i) {
    const std::vector<TokenId> ids = chunks[i].text->input(chunks[i].chunk_idx);
    scattered.next_chunk(static_cast<int>(ids.size()));
    std::vector<cache::Sequence> sequence;
    sequence.push_back(cache->open());
    const int n_ids = static_cast<int>(ids.size());  // of none of them logits are wanted
    status = run_in_pieces(engine, sequence, ids, n_ids, stop, {});
  }
  engine.model().set_observers({});
  if (!status) return status.error();
  return moments.bases(engine.pool());
}

/// Runs chunks through the base and some units at a time.
class Measurement {
 public:
  Measurement(engine::Engine& engine, const Bases& bases, std::span<const Chunk> chunks,
              std::span<Unit> units, const std::function<void(double)>& progress,
              const std::atomic<bool>* stop)
      : engine_(engine),
        bases_(bases),
        chunks_(chunks),
        units_(units),
        progress_(progress),
        stop_(stop),
        scores_(engine) {}

  Status run() {
    for (std::size_t first = 0; first < units_.size(); first += kCandidatesAtATime) {
      const std::size_t n = std::min(kCandidatesAtATime, units_.size() - first);
      KVASIR_RETURN_IF_ERROR(run_batch(units_.subspan(first, n)));
    }
    return {};
  }

 private:
  Status run_batch(std::span<Unit> units) {
    const int n_layers = engine_.model().config().n_layers;
    std::vector<std::unique_ptr<cache::KvCache>> caches;
    KVASIR_ASSIGN_OR_RETURN(auto base, engine_.make_cache(exact_choice()));
    caches.push_back(std::move(base));
    for (const Unit& unit : units) {
      KVASIR_ASSIGN_OR_RETURN(auto cache, engine_.make_cache(choice_of(unit, n_layers, bases_)));
      caches.push_back(std::move(cache));
    }
    for (const Chunk& chunk : chunks_) {
      std::vector<cache::Sequence> sequences;
      for (const auto& cache : caches) sequences.push_back(cache->open());
      const auto take = [&](std::size_t i, int, int n_rows, std::vector<float>& logits) {
        if (i == 0) {
          scores_.take_base(n_rows, logits);
          return;
        }
        units[i - 1].kld_sum += scores_.kld_sum(n_rows, logits);
        note_progress(n_rows);
      };
      KVASIR_RETURN_IF_ERROR(run_in_pieces(engine_, sequences, chunk.text->input(chunk.chunk_idx),
                                           kFirstOfAll, stop_, take));
    }
    return {};
  }

  void note_progress(int n_rows) {
    n_done_ += n_rows;
    const double n_scored = chunks_[0].text->n_ctx() - 1 - kFirstOfAll;
    const double n_all = n_scored * static_cast<double>(chunks_.size() * units_.size());
    if (progress_) progress_(static_cast<double>(n_done_) / n_all);
  }

  engine::Engine& engine_;
  const Bases& bases_;
  std::span<const Chunk> chunks_;
  std::span<Unit> units_;
  const std::function<void(double)>& progress_;
  const std::atomic<bool>* stop_;
  PieceScores scores_;
  std::int64_t n_done_ = 0;
};

Status check(const engine::Engine& engine, std::span<const KldText> texts,
             const CalibrateOptions& options) {
  KVASIR_RETURN_IF_ERROR(check_chunk_length(engine, options.n_ctx, kLeastCalibrationTokens));
  if (options.n_chunks < 1) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("--chunks: got {}, want 1 or more", options.n_chunks)};
  }
  if (texts.empty()) {
    return Error{ErrorCode::kInvalidArgument, "calibrate: got no text, want 1 or more"};
  }
  // What the codecs do not have is said before the texts are looked at.
  const int n_layers = engine.model().config().n_layers;
  const std::vector<cache::LayerCodecs> tiles(static_cast<std::size_t>(n_layers),
                                              {CodecId::kTile3, CodecId::kTile3});
  const auto share = engine::share_of_f16(engine.model().cache_groups(), tiles);
  return share ? Status() : share.error();
}

}  // namespace

Result<CalibrateReport> calibrate_kv(engine::Engine& engine, std::span<const KldText> texts,
                                     const CalibrateOptions& options,
                                     const std::function<void(double)>& progress,
                                     const std::atomic<bool>* stop) {
  const SteadyClock clock;
  const double start = clock.now_seconds();
  KVASIR_RETURN_IF_ERROR(check(engine, texts, options));
  std::vector<ChunkedText> cut;
  for (const KldText& text : texts) {
    KVASIR_ASSIGN_OR_RETURN(ChunkedText chunks, ChunkedText::cut(engine, text.text, options.n_ctx,
                                                                 -1, "calibrate: " + text.name));
    cut.push_back(std::move(chunks));
  }
  const std::vector<Chunk> chunks = spread(cut, options.n_chunks);
  const int n_layers = engine.model().config().n_layers;
  std::vector<Unit> units = units_of(n_layers);
  const std::vector<Chunk> seen = spread(cut, kMomentChunks * options.n_chunks);
  KVASIR_ASSIGN_OR_RETURN(const Bases bases, find_bases(engine, seen, stop));
  KVASIR_RETURN_IF_ERROR(Measurement(engine, bases, chunks, units, progress, stop).run());

  CalibrateReport report;
  report.n_chunks = static_cast<int>(chunks.size());
  report.first_scored = kFirstOfAll;
  report.n_scored = std::int64_t{report.n_chunks} * (options.n_ctx - 1 - kFirstOfAll);
  engine::KvCalibration& made = report.calibration;
  made.model = engine.model_fingerprint();
  made.key_bases = bases;
  for (const Unit& unit : units) {
    auto& damages = (unit.is_v ? made.damage_v : made.damage_k)[cache::codec_bits(unit.codec)];
    damages.push_back(unit.kld_sum / static_cast<double>(report.n_scored));
  }
  engine::fill_in_damages(made.damage_k);
  engine::fill_in_damages(made.damage_v);
  const auto groups = engine.model().cache_groups();
  KVASIR_RETURN_IF_ERROR(engine::add_plans(groups, made));
  for (const auto& [name, plan] : made.plans) {
    KVASIR_ASSIGN_OR_RETURN(report.shares[name], engine::share_of_f16(groups, plan));
  }
  if (stop != nullptr && stop->load()) return Error{ErrorCode::kCancelled, "eval: interrupted"};
  report.seconds = clock.now_seconds() - start;
  return report;
}

}  // namespace kvasir::eval
