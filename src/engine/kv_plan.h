// What `kvasir calibrate kv` leaves beside a model: how much each layer's K and V suffer from few
// bits, and which bits to give them.
//
// A text file, MODEL.kv, of lines `name value...`:
//
//   kvasir-kv 1
//   model HEX                       SHA-256 of the weights and parameters it was made with
//   damage SIDE BITS D0 D1 ...      KLD by layer when only that layer's K, or V, has so many bits
//   plan NAME k BITS... v BITS...   bits by layer: 3, 4, 5, 8
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cache/codec/codec.h"
#include "cache/prefix/page_key.h"

namespace kvasir::engine {

/// What is asked of K's and V's storage.
struct KvChoice {
  cache::LayerCodecs codecs;
  /// A plan of the model's calibration that takes their place; where there is no calibration, or it
  /// has no such plan, they serve. Empty: they do.
  std::string plan;
  int n_protected = 0;  ///< layers whose K calibration found the most sensitive: int8 there
  int n_sink_tiles = 1, n_tail_tiles = 1;  ///< cache::KvFormat's
  std::vector<cache::LayerCodecs> layers;  ///< by layer, in place of all that; empty: no
};

struct KvCalibration {
  cache::Fingerprint model{};
  /// By bits: of each layer. In nats.
  std::map<int, std::vector<double>> damage_k, damage_v;
  std::map<std::string, std::vector<cache::LayerCodecs>, std::less<>> plans;
};

/// Where a model's calibration is.
std::string calibration_path(const std::string& model_path);

std::string text_of(const KvCalibration& calibration);

/// Errors: kInvalidArgument naming `where` (what text_of never gives, other than `n_layers` layers).
Result<KvCalibration> parse_calibration(const std::string& where, std::string_view text,
                                        int n_layers);

/// `format` with the choice's plan and protected layers. Errors: kInvalidArgument (layers to
/// protect, and no calibration, or fewer layers).
Result<cache::KvFormat> apply_calibration(const KvCalibration& calibration, const KvChoice& choice,
                                          int n_layers, cache::KvFormat format);

/// Gives every layer's K and V 3, 4 or 5 bits, at most `mean_bits` on the mean, so that the sum of
/// the damages is about the least: greedily by damage spared per bit.
/// Requires: damages of 3, 4 and 5 bits.
std::vector<cache::LayerCodecs> allocate_bits(const KvCalibration& calibration, double mean_bits);

}  // namespace kvasir::engine
