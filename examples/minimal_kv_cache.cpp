// A KV cache in one file: what it stores, why it is right, what it saves.
//
//   g++ -std=c++20 -O2 minimal_kv_cache.cpp -o minimal_kv_cache && ./minimal_kv_cache
//
// A decoder writes a text token by token. In every layer a token makes three vectors: a query, a
// key and a value. Its query meets the keys of all tokens so far, and the better two agree, the
// more of that token's value flows into the result. Keys and values of old tokens never change,
// because a token looks back, never forward: so compute them once and keep them. That is the KV
// cache, and it is all there is to keep - an old query is never asked again.
//
// The program generates with the cache and, at every step, also recomputes everything from the
// first token. Both must agree. `--broken` runs a popular bug and must fail.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <stdexcept>
#include <vector>

using Index = std::size_t;
using Vector = std::vector<float>;

constexpr Index kVocabulary = 50, kLayers = 2, kHeads = 2, kHeadDim = 8;
constexpr Index kDim = kHeads * kHeadDim;
constexpr Index kContext = 64;  // tokens the cache has room for
constexpr int kPrompt = 8, kGenerated = 24;

// ---- The cache -------------------------------------------------------------------------------

// When does the cache count a token? Once: after the last layer has stored its key and value.
//
// A widely copied version advances its length inside update(), and every layer calls update(). With
// two layers the first token then goes to slot 0 in layer 0 but to slot 1 in layer 1, whose slot 0
// stays empty; the second token goes to slots 2 and 3. Each layer attends to holes, and the room is
// gone after half the context. The output still looks like text, so nobody notices: compare with a
// recomputation, as main() does.
enum class Advance { kOncePerToken, kOncePerLayer };

class KvCache {
 public:
  explicit KvCache(Advance advance)
      : advance_(advance),
        keys_(kLayers * kContext * kDim, 0.0f),
        values_(kLayers * kContext * kDim, 0.0f) {}

  // Stores the running token's key and value of one layer. Returns how many slots to attend to.
  Index store(Index layer, std::span<const float> key, std::span<const float> value) {
    if (length_ >= kContext) throw std::length_error("the cache is full");
    std::copy(key.begin(), key.end(), keys_.data() + offset(layer, length_));
    std::copy(value.begin(), value.end(), values_.data() + offset(layer, length_));
    const Index n_visible = length_ + 1;
    if (advance_ == Advance::kOncePerLayer) ++length_;  // the bug
    return n_visible;
  }

  // Call once per token, after its last layer: from now on it is part of the history.
  void finish_token() {
    if (advance_ == Advance::kOncePerToken) ++length_;
  }

  const float* key(Index layer, Index slot) const { return &keys_[offset(layer, slot)]; }
  const float* value(Index layer, Index slot) const { return &values_[offset(layer, slot)]; }
  Index length() const { return length_; }

  // The memory in bytes, exactly: what was reserved, and how much of it holds tokens.
  struct MemorySummary {
    Index allocated, filled, per_token;
  };
  MemorySummary memory_summary() const {
    const Index per_token = 2 * kLayers * kDim * sizeof(float);
    return {.allocated = (keys_.size() + values_.size()) * sizeof(float),
            .filled = length_ * per_token,
            .per_token = per_token};
  }

 private:
  static Index offset(Index layer, Index slot) { return (layer * kContext + slot) * kDim; }
  Advance advance_;
  Index length_ = 0;
  Vector keys_, values_;  // [layer][slot][head][head_dim]
};

// ---- The model: fixed pseudo-random weights, two layers of attention --------------------------

struct Layer {
  Vector query, key, value, output;  // [kDim][kDim] each
};

struct Model {
  Vector embedding, unembedding;  // [kVocabulary][kDim]
  Vector position;                // [kContext][kDim]
  Layer layers[kLayers];

  Model() {
    std::uint32_t state = 2463534242u;
    const auto fill = [&state](Index n, float scale) {
      Vector weights(n);
      for (float& weight : weights) {
        state ^= state << 13, state ^= state >> 17, state ^= state << 5;  // xorshift32
        weight = scale * (static_cast<float>(state >> 8) / 8388608.0f - 1.0f);
      }
      return weights;
    };
    embedding = fill(kVocabulary * kDim, 1.0f);
    unembedding = fill(kVocabulary * kDim, 1.0f);
    position = fill(kContext * kDim, 0.8f);
    for (Layer& layer : layers) {
      for (Vector* matrix : {&layer.query, &layer.key, &layer.value, &layer.output}) {
        *matrix = fill(kDim * kDim, 0.6f);
      }
    }
  }
};

using Work = long long;  // multiply-adds: what a step costs

// matrix [rows][kDim] times x [kDim].
Vector multiply(const Vector& matrix, const Vector& x, Work& work) {
  Vector y(matrix.size() / kDim, 0.0f);
  for (Index row = 0; row < y.size(); ++row) {
    for (Index i = 0; i < kDim; ++i) y[row] += matrix[row * kDim + i] * x[i];
  }
  work += static_cast<long long>(matrix.size());
  return y;
}

// One token's query against `n` keys; the softmax of the scores mixes the values. `key_at(i)` tells
// where key i lies, so that cached and recomputed rows go through the same arithmetic.
template <class KeyAt, class ValueAt>
Vector attend(const Vector& query, Index n, KeyAt key_at, ValueAt value_at, Work& work) {
  Vector out(kDim, 0.0f), weight(n);
  for (Index begin = 0; begin < kDim; begin += kHeadDim) {  // head by head
    for (Index i = 0; i < n; ++i) {
      float score = 0.0f;
      for (Index d = begin; d < begin + kHeadDim; ++d) score += query[d] * key_at(i)[d];
      weight[i] = score / std::sqrt(static_cast<float>(kHeadDim));
    }
    const float highest = *std::max_element(weight.begin(), weight.end());
    float sum = 0.0f;
    for (float& w : weight) sum += (w = std::exp(w - highest));
    for (Index i = 0; i < n; ++i) {
      const float share = weight[i] / sum;
      for (Index d = begin; d < begin + kHeadDim; ++d) out[d] += share * value_at(i)[d];
    }
  }
  work += 2LL * static_cast<long long>(n) * kDim;
  return out;
}

Vector embed(const Model& model, int token, Index position) {
  Vector x(kDim);
  for (Index i = 0; i < kDim; ++i) {
    x[i] =
        model.embedding[static_cast<Index>(token) * kDim + i] + model.position[position * kDim + i];
  }
  return x;
}

void add(Vector& x, const Vector& y) {
  for (Index i = 0; i < x.size(); ++i) x[i] += y[i];
}

// ---- Two ways to the next token ----------------------------------------------------------------

// With the cache: only the new token passes through the layers. Returns a score per word.
Vector next_cached(const Model& model, KvCache& cache, int token, Index position, Work& work) {
  Vector x = embed(model, token, position);
  for (Index l = 0; l < kLayers; ++l) {
    const Layer& layer = model.layers[l];
    const Vector query = multiply(layer.query, x, work);
    const Vector key = multiply(layer.key, x, work), value = multiply(layer.value, x, work);
    const Index n = cache.store(l, key, value);
    const Vector mixed = attend(
        query, n, [&](Index i) { return cache.key(l, i); },
        [&](Index i) { return cache.value(l, i); }, work);
    add(x, multiply(layer.output, mixed, work));
  }
  cache.finish_token();
  return multiply(model.unembedding, x, work);
}

// Without: every token passes again, layer by layer, and only the last one's scores are of use.
Vector next_recomputed(const Model& model, const std::vector<int>& tokens, Work& work) {
  std::vector<Vector> x;
  for (Index t = 0; t < tokens.size(); ++t) x.push_back(embed(model, tokens[t], t));
  for (const Layer& layer : model.layers) {
    std::vector<Vector> keys, values;
    for (Index t = 0; t < x.size(); ++t) {
      keys.push_back(multiply(layer.key, x[t], work));
      values.push_back(multiply(layer.value, x[t], work));
      const Vector mixed = attend(
          multiply(layer.query, x[t], work), t + 1, [&](Index i) { return keys[i].data(); },
          [&](Index i) { return values[i].data(); }, work);
      add(x[t], multiply(layer.output, mixed, work));
    }
  }
  return multiply(model.unembedding, x.back(), work);
}

int most_likely(const Vector& scores) {
  return static_cast<int>(std::max_element(scores.begin(), scores.end()) - scores.begin());
}

int main(int argc, char** argv) {
  const bool broken = argc == 2 && std::strcmp(argv[1], "--broken") == 0;
  if (argc > 1 && !broken) return std::puts("usage: minimal_kv_cache [--broken]"), 2;

  const Model model;
  KvCache cache(broken ? Advance::kOncePerLayer : Advance::kOncePerToken);
  std::vector<int> tokens = {7};
  Work cached_total = 0, recomputed_total = 0;
  float worst = 0.0f;
  bool ok = true;
  std::puts("step   next: cached, recomputed   largest difference   work: cached, recomputed");
  for (int step = 1; step < kPrompt + kGenerated; ++step) {
    Work cached_work = 0, recomputed_work = 0;
    const Vector cached = next_cached(model, cache, tokens.back(), tokens.size() - 1, cached_work);
    const Vector recomputed = next_recomputed(model, tokens, recomputed_work);
    // The order of every sum is the same in both, so the scores are equal to the last bit; the
    // tolerance is for compilers that fuse a multiplication and an addition in one of them only.
    float difference = 0.0f;
    for (Index i = 0; i < cached.size(); ++i) {
      difference = std::fmax(difference, std::fabs(cached[i] - recomputed[i]));
      ok = ok && std::fabs(cached[i] - recomputed[i]) <= 1e-5f;
    }
    std::printf("%4d %14d %12d %20.3g %14lld %12lld\n", step, most_likely(cached),
                most_likely(recomputed), difference, cached_work, recomputed_work);
    worst = std::max(worst, difference);
    cached_total += cached_work;
    recomputed_total += recomputed_work;
    // A prompt is given, the rest is generated; both sides continue with the same token.
    tokens.push_back(step < kPrompt ? (step * 11 + 7) % static_cast<int>(kVocabulary)
                                    : most_likely(recomputed));
  }
  const Index n_seen = tokens.size() - 1;  // the newest has not passed yet
  const auto memory = cache.memory_summary();
  std::printf(
      "\nwork      %lld multiply-adds instead of %lld: %.0f %% saved\n", cached_total,
      recomputed_total,
      100.0 - 100.0 * static_cast<double>(cached_total) / static_cast<double>(recomputed_total));
  std::printf("memory    %zu B allocated = %zu B filled + %zu B empty; %zu B per token\n",
              memory.allocated, memory.filled, memory.allocated - memory.filled, memory.per_token);
  ok = ok && cache.length() == n_seen;
  std::printf("verdict   %s: largest difference %.3g, %zu slots hold %zu tokens\n",
              ok ? "correct" : "WRONG", worst, cache.length(), n_seen);
  return ok ? 0 : 1;
}
