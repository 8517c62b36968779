// The small steps between matmuls, each over one row of activations; lane order is fixed, so a row
// gives the same bits wherever it stands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/types.h"

namespace kvasir::model {

/// y = x / sqrt(mean(x^2) + eps) * weight. Shapes: x, y, weight [n]. y may alias x.
void rms_norm(const float* x, const float* weight, float eps, int n, float* y);

/// x += y. Shapes [n].
void add(float* x, const float* y, int n);

/// out = silu(gate) * up; gelu in its tanh form. Shapes [n]; out may alias gate.
void silu_mul(const float* gate, const float* up, int n, float* out);
void gelu_mul(const float* gate, const float* up, int n, float* out);

/// x = cap * tanh(x / cap).
void softcap(float* x, float cap, int n);

/// x *= factor.
void scale(float* x, float factor, int n);

/// Which elements of a head form a rotated pair.
enum class RopePairing : std::uint8_t {
  kNeighbours,  ///< (0,1), (2,3), ...: llama ("norm")
  kHalves,      ///< (0,D/2), (1,D/2+1), ...: qwen, gemma, phi3 ("neox")
};

/// Rotary position embedding with precomputed inverse frequencies.
struct RopeTable {
  RopePairing pairing = RopePairing::kNeighbours;
  int n_rotated = 0;  ///< leading elements of a head that turn; a multiple of 2
  std::vector<double>
      inverse_frequency;   ///< [n_rotated / 2], scaling (linear, YaRN, Llama 3) included
  float magnitude = 1.0f;  ///< YaRN's attention factor, on cos and sin
};

/// Cosines and sines of one position. Shapes: cos, sin [n_rotated / 2].
void rope_angles(const RopeTable& table, Position pos, float* cos, float* sin);

/// Rotates `n_heads` heads of `head_dim` in place with a position's angles.
void rope(const RopeTable& table, const float* cos, const float* sin, int n_heads, int head_dim,
          float* x);

}  // namespace kvasir::model
