// What `kvasir calibrate kv` leaves beside a model: how much each layer's K and V suffer from few
// bits, and which bits to give them.
//
// A text file, MODEL.kv, of lines `name value...`:
//
//   kvasir-kv 2
//   model HEX                       SHA-256 of the weights and parameters it was made with
//   damage SIDE BITS D0 D1 ...      KLD by layer when only that layer's K, or V, has so many bits
//   plan NAME k BITS... v BITS...   bits by layer: 3, 4, 5, 8
//   bases HEADS HEAD_DIM HEX        what K is multiplied by before it is stored (key_basis.h): kv
//                                   heads, their size, fingerprint of shape and matrices
//   basis LAYER HEAD HEX            one head's matrix, 8 digits a value: the bits of an f32
//
// Without the last two it is a file of version 1.
// docs/formats/kv-calibration.md says how it is made.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cache/cache.h"
#include "cache/codec/codec.h"
#include "cache/codec/key_basis.h"
#include "cache/prefix/page_key.h"

namespace kvasir::engine {

/// What is asked of K's and V's storage.
struct KvChoice {
  cache::LayerCodecs codecs;
  /// A plan of the model's calibration that takes their place; where there is no calibration, or it
  /// has no such plan, they serve. Empty: they do.
  std::string plan{};
  int n_protected = 0;  ///< layers whose K calibration found the most sensitive: int8 there
  int n_sink_tiles = 1, n_tail_tiles = 1;    ///< cache::KvFormat's
  std::vector<cache::LayerCodecs> layers{};  ///< by layer, in place of all that; empty: no
  /// The basis of K in tiles; null: with a plan the calibration's, if it has one.
  std::shared_ptr<const cache::KeyBases> key_bases{};
  bool has_key_basis = true;  ///< false: none, whatever the calibration has
};

/// By bits: the damage of each layer, in nats, >= 0.
using DamageByBits = std::map<int, std::vector<double>>;

struct KvCalibration {
  cache::Fingerprint model{};
  DamageByBits damage_k, damage_v;
  std::map<std::string, std::vector<cache::LayerCodecs>, std::less<>> plans;
  std::shared_ptr<const cache::KeyBases> key_bases;  ///< null: it has none
};

/// Where a model's calibration is.
std::string calibration_path(const std::string& model_path);

std::string text_of(const KvCalibration& calibration);

/// Errors: kInvalidArgument naming `where` (what text_of never gives; other than `n_layers`
/// layers; a basis that is damaged or has no inverse).
Result<KvCalibration> parse_calibration(const std::string& where, std::string_view text,
                                        int n_layers);

/// `format` with the choice's plan and the calibration's basis and, among layers with tile codecs,
/// its protected ones. Errors: kInvalidArgument (layers to protect, and no calibration, or fewer
/// layers).
Result<cache::KvFormat> apply_calibration(const KvCalibration& calibration, const KvChoice& choice,
                                          int n_layers, cache::KvFormat format);

/// Adds those of 3, 4 and 5 bits that were not measured: a bit more is a quarter of the damage.
/// Requires: some of them were.
void fill_in_damages(DamageByBits& damages);

/// Gives every layer's K and V 3, 4 or 5 bits, at most `mean_bits` on the mean, so that the sum of
/// the damages is about the least: greedily by damage spared per bit.
/// Requires: damages of 3, 4 and 5 bits; mean_bits >= 3.
std::vector<cache::LayerCodecs> allocate_bits(const KvCalibration& calibration, double mean_bits);

/// Tokens that a plan's share of f16 is about.
inline constexpr int kShareTokens = 8192;

/// What K and V of kShareTokens tokens take over these codecs by layer, all in, over what they take
/// as f16 values: frames of all tiles, three pages of rows (sinks, tail, and the one being filled),
/// 12 bytes of table a page. Of groups with windows it is an estimate: as if they had none.
/// Errors: kUnsupported (a head size that the codecs do not have).
Result<double> share_of_f16(std::span<const cache::GroupSpec> groups,
                            std::span<const cache::LayerCodecs> layers);

/// The plans of the types that have some:
///
///   int4     mean of 4.25 bits
///   int4-3   as many as fit into 25.0 % of f16; where 3 bits do not, as many as without a
///   plan: 3.5 int3     mean of 3.1 bits
///
/// Requires: damages of 3, 4 and 5 bits. Errors: as of share_of_f16.
Status add_plans(std::span<const cache::GroupSpec> groups, KvCalibration& calibration);

}  // namespace kvasir::engine
