#include "model/forward.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "cache/codec/poison.h"
#include "cache/codec/row_codec.h"
#include "cache/codec/seal.h"
#include "model/ops.h"

namespace kvasir::model {
namespace {

/// Below this much row-wise work one thread is faster than a fork-join; above, chunks of this size.
constexpr int kFloatsPerChunk = 8192;

void add_bias(std::span<const float> bias, float* row) {
  if (!bias.empty()) add(row, bias.data(), static_cast<int>(bias.size()));
}

/// RMS norm of each head on its own, or of the row of heads as one (olmo2).
void norm_heads(std::span<const float> weight, float eps, int n_values, float* heads) {
  const int n = static_cast<int>(weight.size());
  for (int i = 0; i < n_values; i += n) rms_norm(heads + i, weight.data(), eps, n, heads + i);
}

int count_tokens(std::span<const ForwardItem> items) {
  std::size_t n = 0;
  for (const ForwardItem& item : items) n += item.tokens.size();
  return static_cast<int>(n);
}

/// All but the strides.
attention::AttentionParams attention_params(const ModelConfig& config, int layer_idx) {
  attention::AttentionParams params;
  params.n_heads = config.n_heads;
  params.head_dim = config.head_dim;
  params.scale = config.attention_scale;
  params.softcap = config.attention_softcap;
  params.window = config.is_window_layer[static_cast<std::size_t>(layer_idx)] ? config.window : 0;
  return params;
}

/// The last layer attends for wanted rows only: the others have left their K and V.
void list_queries(const ModelConfig& config, std::span<const ForwardItem> items, int layer_idx,
                  std::vector<attention::QueryRows>& queries) {
  const bool is_last = layer_idx == config.n_layers - 1;
  queries.clear();
  int first_row = 0;
  for (const ForwardItem& item : items) {
    const int n_tokens = static_cast<int>(item.tokens.size());
    const int n = is_last ? item.n_logits : n_tokens;
    const int skipped = n_tokens - n;
    if (n > 0) {
      queries.push_back({.kv = item.layers[static_cast<std::size_t>(layer_idx)],
                         .first_pos = item.first_pos + skipped,
                         .first_row = first_row + skipped,
                         .n_rows = n});
    }
    first_row += n_tokens;
  }
}

/// Rows [begin, end) of `rows` move down to `to`; never up, so ascending calls are safe.
void move_rows(RowBuffer& rows, int begin, int end, int to) {
  if (begin == to || begin == end) return;
  std::memmove(rows.row(to), rows.row(begin),
               static_cast<std::size_t>(end - begin) * rows.stride() * sizeof(float));
}

}  // namespace

void RowBuffer::shape(int n_rows, int n_cols) {
  const std::size_t bytes = bytes_for(n_rows, n_cols);
  if (bytes > buffer_.size()) {
    buffer_ = AlignedBuffer();  // give the old one back before asking for more
    buffer_ = AlignedBuffer(bytes);
  }
  n_cols_ = n_cols;
}

template <class Self, class Visit>
void Workspace::for_row_buffers(Self& self, const ModelConfig& config, Visit visit) {
  const int n_q = config.n_heads * config.head_dim;
  const int n_kv = config.n_kv_heads * config.head_dim;
  visit(self.x, config.n_embd);
  visit(self.h, config.n_embd);
  visit(self.qkv, n_q + 2 * n_kv);
  visit(self.heads, n_q);
  visit(self.gate_up, 2 * config.n_ff);
  for (int table = 0; table < 2; ++table) {
    visit(self.cosines[table], config.rope[table].n_rotated / 2);
    visit(self.sines[table], config.rope[table].n_rotated / 2);
  }
}

void Workspace::shape(const ModelConfig& config, int n_rows) {
  for_row_buffers(*this, config,
                  [&](RowBuffer& buffer, int n_cols) { buffer.shape(n_rows, n_cols); });
}

std::uint64_t Workspace::bytes() const {
  std::uint64_t total = activations.scratch_bytes() + attention.size();
  for (const RowBuffer* buffer : {&x, &h, &qkv, &heads, &gate_up}) total += buffer->bytes();
  for (int table = 0; table < 2; ++table) total += cosines[table].bytes() + sines[table].bytes();
  return total;
}

std::uint64_t Workspace::bytes_after(const ModelConfig& config, ActivationMode mode,
                                     std::span<const ForwardItem> items, int n_threads) const {
  const int n_rows = count_tokens(items);
  std::uint64_t total = 0;
  for_row_buffers(*this, config, [&](const RowBuffer& buffer, int n_cols) {
    total += std::max(buffer.bytes(), RowBuffer::bytes_for(n_rows, n_cols));
  });

  std::size_t most = activations.scratch_bytes();
  for (const int n_cols : {config.n_embd, config.n_heads * config.head_dim, config.n_ff}) {
    most = std::max(most, Activations::bytes_for(mode, n_rows, n_cols));
  }
  total += most;

  most = attention.size();
  std::vector<attention::QueryRows> rows;
  std::array<bool, 4> seen{};  // layers differ by window, and the last one by its rows
  for (int layer = config.n_layers - 1; layer >= 0; --layer) {
    const bool is_window = config.is_window_layer[static_cast<std::size_t>(layer)];
    const bool is_last = layer == config.n_layers - 1;
    if (std::exchange(seen[(is_window ? 2 : 0) + (is_last ? 1 : 0)], true)) continue;
    list_queries(config, items, layer, rows);
    most =
        std::max(most, attention::scratch_bytes(attention_params(config, layer), rows, n_threads));
  }
  return total + most;
}

ForwardPass::ForwardPass(const ModelConfig& config, const Weights& weights, ActivationMode mode,
                         std::span<const ForwardItem> items, Workspace& workspace, ThreadPool& pool,
                         const Observers& observers)
    : config_(config),
      weights_(weights),
      mode_(mode),
      items_(items),
      w_(workspace),
      pool_(pool),
      observers_(observers) {
  for (const ForwardItem& item : items_) {
    first_rows_.push_back(n_rows_);
    n_rows_ += static_cast<int>(item.tokens.size());
  }
  first_rows_.push_back(n_rows_);
  poisoned_.resize(static_cast<std::size_t>(n_rows_));
  w_.shape(config_, n_rows_);
}

template <class Body>
void ForwardPass::for_rows(int floats_per_row, Body&& body, int chunk_rows) {
  const int n_fitting = kFloatsPerChunk / std::max(1, floats_per_row);
  const int chunk = std::max(1, n_fitting / chunk_rows) * chunk_rows;
  pool_.parallel_for(n_rows_, chunk, [&](std::int64_t begin, std::int64_t end) {
    body(static_cast<int>(begin), static_cast<int>(end));
  });
}

void ForwardPass::run(float* logits) {
  compute_rope_angles();
  embed();
  for (int layer = 0; layer < config_.n_layers; ++layer) {
    attention_block(layer);
    if (n_rows_ == 0) return;  // nothing but K and V was wanted
    feed_forward_block(layer);
  }
  project_logits(logits);
}

void ForwardPass::embed() {
  expect_inputs(block_input(), config_.n_embd);
  for_rows(config_.n_embd, [&](int begin, int end) {
    std::size_t item = 0;
    for (int row = begin; row < end; ++row) {
      while (row >= first_rows_[item + 1]) ++item;
      const TokenId token = items_[item].tokens[static_cast<std::size_t>(row - first_rows_[item])];
      float* x = w_.x.row(row);
      weights_.token_embd.dequantize_row(token, x);
      if (config_.embedding_scale != 1.0f) scale(x, config_.embedding_scale, config_.n_embd);
      if (config_.has_pre_norms) {
        rms_norm(x, weights_.layers[0].attention_norm.data(), config_.rms_eps, config_.n_embd,
                 w_.h.row(row));
      }
      w_.activations.quantize(row);
    }
  });
}

/// Once per row and table; all layers read them.
void ForwardPass::compute_rope_angles() {
  const bool two_tables = config_.window > 0;
  for_rows(8 * config_.rope[0].n_rotated, [&](int begin, int end) {
    std::size_t item = 0;
    for (int row = begin; row < end; ++row) {
      while (row >= first_rows_[item + 1]) ++item;
      const Position pos = items_[item].first_pos + (row - first_rows_[item]);
      for (int table = 0; table < (two_tables ? 2 : 1); ++table) {
        rope_angles(config_.rope[table], pos, w_.cosines[table].row(row), w_.sines[table].row(row));
      }
    }
  });
}

RowBuffer& ForwardPass::block_input() { return config_.has_pre_norms ? w_.h : w_.x; }

void ForwardPass::expect_inputs(RowBuffer& input, int n_inputs) {
  w_.activations.assign(mode_, input.row(0), n_rows_, n_inputs, input.stride());
}

void ForwardPass::project(const Projection& projection, RowBuffer& output) {
  for (const Projection::Part& part : projection.parts) {
    matmul(pool_, part.matrix, w_.activations, output.row(0) + part.first_col, output.stride());
  }
}

void ForwardPass::add_residual(std::span<const float> bias, std::span<const float> post_norm,
                               std::span<const float> next_norm) {
  const int n = config_.n_embd;
  expect_inputs(next_norm.empty() ? w_.x : w_.h, n);
  for_rows(3 * n, [&](int begin, int end) {
    for (int row = begin; row < end; ++row) {
      float* x = w_.x.row(row);
      float* h = w_.h.row(row);
      add_bias(bias, h);
      if (!post_norm.empty()) rms_norm(h, post_norm.data(), config_.rms_eps, n, h);
      add(x, h, n);
      if (!next_norm.empty()) rms_norm(x, next_norm.data(), config_.rms_eps, n, h);
      w_.activations.quantize(row);
    }
  });
}

void ForwardPass::attention_block(int layer_idx) {
  const Layer& layer = weights_.layers[static_cast<std::size_t>(layer_idx)];
  project(layer.qkv, w_.qkv);
  // Tokens of one strip share cache lines of the K tile, so a strip is one thread's work.
  const bool all_alone = n_rows_ == static_cast<int>(items_.size());
  for_rows(
      2 * w_.qkv.n_cols(),
      [&](int begin, int end) {
        finish_qkv(layer_idx, begin, end);
        write_kv(layer_idx, begin, end);
      },
      all_alone ? 1 : cache::kStripTokens);
  for (std::size_t i = 0; observers_.qkv && i < items_.size(); ++i) {
    observers_.qkv(layer_idx, items_[i].first_pos, first_rows_[i + 1] - first_rows_[i],
                   w_.qkv.row(first_rows_[i]), w_.qkv.stride());
  }
  seal_tiles(layer_idx);
  attend(layer_idx);
  if (layer_idx == config_.n_layers - 1) keep_wanted_rows();
  if (n_rows_ == 0) return;
  w_.activations.prepare(pool_, mode_, w_.heads.row(0), n_rows_, w_.heads.n_cols(),
                         w_.heads.stride());
  project(layer.attention_out, w_.h);
  add_residual(layer.attention_out.bias, layer.attention_post_norm, layer.ffn_norm);
}

/// Biases, q/k norms and rotation of rows [begin_row, end_row).
void ForwardPass::finish_qkv(int layer_idx, int begin_row, int end_row) {
  const ModelConfig& c = config_;
  const Layer& layer = weights_.layers[static_cast<std::size_t>(layer_idx)];
  const int n_q = c.n_heads * c.head_dim, n_k = c.n_kv_heads * c.head_dim;
  const int table = c.is_window_layer[static_cast<std::size_t>(layer_idx)] ? 1 : 0;
  const bool rotates = c.is_rope_layer[static_cast<std::size_t>(layer_idx)];
  for (int row = begin_row; row < end_row; ++row) {
    float* q = w_.qkv.row(row);
    float* k = q + n_q;
    add_bias(layer.qkv.bias, q);
    if (c.has_qk_norm) {
      norm_heads(layer.q_norm, c.rms_eps, n_q, q);
      norm_heads(layer.k_norm, c.rms_eps, n_k, k);
    }
    if (!rotates) continue;
    // q heads and k heads lie side by side, so they turn together.
    rope(c.rope[table], w_.cosines[table].row(row), w_.sines[table].row(row),
         c.n_heads + c.n_kv_heads, c.head_dim, q);
  }
}

void ForwardPass::write_kv(int layer_idx, int begin_row, int end_row) {
  const int n_q = config_.n_heads * config_.head_dim;
  const int n_k = config_.n_kv_heads * config_.head_dim;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    const int begin = std::max(begin_row, first_rows_[i]);
    const int end = std::min(end_row, first_rows_[i + 1]);
    if (begin >= end) continue;
    const float* k = w_.qkv.row(begin) + n_q;
    const cache::PagedKvView& kv = items_[i].layers[static_cast<std::size_t>(layer_idx)];
    const Position first_pos = items_[i].first_pos + (begin - first_rows_[i]);
    cache::write_kv(kv, first_pos, end - begin, k, k + n_k, w_.qkv.stride());
    cache::note_poisoned(kv, first_pos, end - begin, k, k + n_k, w_.qkv.stride(),
                         poisoned_.data() + begin);
  }
}

int ForwardPass::n_poisoned(std::size_t item_idx) const {
  const auto rows = poisoned_.begin();
  return static_cast<int>(
      std::count(rows + first_rows_[item_idx], rows + first_rows_[item_idx + 1], 1));
}

/// Before the pass attends: its own later queries read them.
void ForwardPass::seal_tiles(int layer_idx) {
  struct Tiles {
    const cache::PagedKvView* kv;
    int first, n;
  };
  std::vector<Tiles> sealed;
  int n_tiles = 0;
  for (const ForwardItem& item : items_) {
    const cache::PagedKvView& kv = item.layers[static_cast<std::size_t>(layer_idx)];
    if (!kv.has_tiles()) continue;
    const int first = item.first_pos / cache::kTileTokens;
    const int end = (item.first_pos + static_cast<int>(item.tokens.size())) / cache::kTileTokens;
    if (first == end) continue;
    sealed.push_back({&kv, first, end - first});
    n_tiles += end - first;
  }
  if (n_tiles == 0) return;
  const int n_sides = 2 * config_.n_kv_heads;
  pool_.for_tasks(n_tiles * n_sides, [&](int task, int) {
    int tile = task / n_sides;
    const Tiles* of = sealed.data();
    for (; tile >= of->n; ++of) tile -= of->n;
    const int side = task % n_sides;
    cache::seal_tile(*of->kv, of->first + tile, side / 2, side % 2 != 0);
  });
}

void ForwardPass::attend(int layer_idx) {
  list_queries(config_, items_, layer_idx, w_.queries);
  if (w_.queries.empty()) return;
  attention::AttentionParams params = attention_params(config_, layer_idx);
  params.q_row_stride = w_.qkv.stride();
  params.out_row_stride = w_.heads.stride();
  attention::attend(pool_, params, w_.queries, w_.qkv.row(0), w_.heads.row(0), w_.attention);
  if (!observers_.attention) return;
  for (const attention::QueryRows& rows : w_.queries) {
    observers_.attention(layer_idx, rows.first_pos, rows.n_rows, w_.heads.row(rows.first_row),
                         w_.heads.stride());
  }
}

void ForwardPass::keep_wanted_rows() {
  int to = 0;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    const int end = first_rows_[i + 1];
    const int begin = end - items_[i].n_logits;
    move_rows(w_.x, begin, end, to);
    move_rows(w_.heads, begin, end, to);
    to += items_[i].n_logits;
  }
  n_rows_ = to;
}

void ForwardPass::feed_forward_block(int layer_idx) {
  const Layer& layer = weights_.layers[static_cast<std::size_t>(layer_idx)];
  const int n_ff = config_.n_ff;
  project(layer.gate_up, w_.gate_up);
  expect_inputs(w_.gate_up, n_ff);
  for_rows(4 * n_ff, [&](int begin, int end) {
    for (int row = begin; row < end; ++row) {
      float* gate = w_.gate_up.row(row);
      float* up = gate + n_ff;
      add_bias(layer.gate_up.bias, gate);
      if (config_.activation == Activation::kGelu) {
        gelu_mul(gate, up, n_ff, gate);
      } else {
        silu_mul(gate, up, n_ff, gate);
      }
      w_.activations.quantize(row);
    }
  });
  project(layer.ffn_down, w_.h);
  const bool last = layer_idx == config_.n_layers - 1;
  const std::vector<float>& next_norm =
      last ? weights_.output_norm
           : weights_.layers[static_cast<std::size_t>(layer_idx) + 1].attention_norm;
  add_residual(layer.ffn_down.bias, layer.ffn_post_norm, next_norm);
}

/// `h` holds the wanted rows, through the output norm and quantized.
void ForwardPass::project_logits(float* logits) {
  const int n_vocab = config_.vocab_size;
  matmul(pool_, weights_.output_matrix(), w_.activations, logits,
         static_cast<std::size_t>(n_vocab));
  const std::vector<float>& bias = weights_.output.bias;
  if (bias.empty() && config_.final_softcap == 0.0f) return;
  for_rows(8 * n_vocab, [&](int begin, int end) {
    for (int row = begin; row < end; ++row) {
      float* out = logits + static_cast<std::size_t>(row) * static_cast<std::size_t>(n_vocab);
      add_bias(bias, out);
      if (config_.final_softcap > 0.0f) softcap(out, config_.final_softcap, n_vocab);
    }
  });
}

}  // namespace kvasir::model
