// A model ready to run: config, repacked weights, forward pass. Knows positions and views of the
// cache; knows no request, no policy, no owner of pages.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "base/types.h"
#include "cache/cache.h"
#include "cache/page/paged_kv_view.h"
#include "gguf/file.h"
#include "model/config.h"
#include "model/matmul.h"

namespace kvasir::model {

struct LoadOptions {
  ActivationMode activations = ActivationMode::kInt8;
  /// Longest context that will be run, tokens (0: as trained); chooses LongRoPE's factors only.
  int n_ctx = 0;
  /// Called as tensors are packed, with the share done 0..1; may be empty.
  std::function<void(double)> progress;
};

/// One sequence's share of a forward pass: `tokens` at positions first_pos..., whose slots are
/// already appended in `layers`.
struct ForwardItem {
  std::span<const TokenId> tokens;
  Position first_pos = 0;
  std::span<const cache::PagedKvView> layers;  ///< Sequence::views()
  /// Rows whose logits are wanted: the last n_logits of `tokens` (1 for generation, 0 for a chunk
  /// that more follows, tokens.size() for evaluation).
  int n_logits = 0;
};

/// What of an item came out not finite. It stays in the item: nobody else's rows see it.
struct ItemFaults {
  /// Tokens of the item whose K or V, in some layer, is not finite as it is stored: it was none, or
  /// is beyond the codec's range.
  int n_poisoned = 0;
  bool has_bad_logits = false;  ///< some wanted logit is not finite
};

/// Gets rows of a pass, layer by layer and item by item, at positions first_pos..., `stride` floats
/// apart, valid during the call. On `forward`'s thread, outside of regions of its pool.
using RowObserver = std::function<void(int layer_idx, Position first_pos, int n_rows,
                                       const float* rows, std::size_t stride)>;

struct Observers {
  /// Of q heads, then K's and V's, each [head_dim], as attention and the cache get them.
  RowObserver qkv;
  /// Of what attention gives, before the output projection: [n_heads * head_dim]. The last layer
  /// has the rows whose logits are wanted, the others all.
  RowObserver attention;
};

class Model {
 public:
  /// Errors: kInvalidModel (missing tensor, wrong shape, nonsense hyperparameters), kUnsupported
  /// (architecture or weight type, by name), kExhausted with the numbers. `budget` is charged for
  /// the weights first and must outlive the model.
  static Result<std::unique_ptr<Model>> load(const gguf::File& file, const LoadOptions& options,
                                             cache::ByteBudget& budget, ThreadPool& pool);
  ~Model();

  const ModelConfig& config() const;
  /// Cache groups this model needs: one, or a second for sliding-window layers.
  std::vector<cache::GroupSpec> cache_groups() const;
  std::uint64_t weight_bytes() const;
  /// Weight bytes that a decode step reads: all but an untied embedding.
  std::uint64_t streamed_bytes() const;
  /// Scratch kept at present.
  std::uint64_t scratch_bytes() const;
  /// Scratch kept after a forward pass over `items`: what to reserve before it. Exact.
  std::uint64_t scratch_bytes_after(std::span<const ForwardItem> items, int n_threads) const;
  /// Multiply-adds of one token at history length `n_context` (weights + attention).
  double multiply_adds(int n_context) const;
  /// Of those, the share of the vocabulary projection, done only where logits are wanted.
  double output_multiply_adds() const;

  /// Computes every item's tokens, writes their K/V through the views, and gives the wanted rows'
  /// logits: [sum of n_logits][vocab_size], in item order.
  /// Requires: token ids in range (checked: kInvalidArgument), sum of tokens >= 1.
  /// Errors: also kInvalidModel (a logit that is not finite: nobody may go on with that item; the
  /// logits of the others are what they are without it). `faults` gets one entry an item, or none
  /// where nothing was computed.
  Status forward(std::span<const ForwardItem> items, ThreadPool& pool, std::vector<float>& logits,
                 std::vector<ItemFaults>* faults = nullptr);

  /// For measurements: they see every pass from now on; empty: none. Nothing that is computed
  /// changes.
  void set_observers(Observers observers);

  class Impl;

 private:
  explicit Model(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir::model
