// How much next-token distributions suffer when one side, K or V, of one layer has few bits, and
// which bits all of them should have for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "base/result.h"
#include "engine/engine.h"
#include "engine/kv_plan.h"
#include "eval/kld.h"

namespace kvasir::eval {

struct CalibrateOptions {
  int n_ctx = 2048;  ///< tokens of a chunk
  int n_chunks = 1;  ///< of all texts together, spread evenly; at least one of each
};

/// Shorter chunks have hardly a token that is read from a tile: the first 64 and the last 64 to 127
/// are read as rows.
inline constexpr int kLeastCalibrationTokens = 256;

struct CalibrateReport {
  engine::KvCalibration calibration;
  std::map<std::string, double> shares;  ///< of f16's bytes, by plan (engine::share_of_f16)
  int n_chunks = 0;
  int first_scored = 0;
  std::int64_t n_scored = 0;
  double seconds = 0;
};

/// Mean KLD, base to candidate, where the base has f32 everywhere and a candidate a tile codec in
/// one side of one layer: K with 3 and 4 bits, in the basis that its moments call for
/// (key_moments.h), V with 3. The moments are those of more chunks. Damages of other bits are
/// derived (engine::fill_in_damages); then the plans are made. Every chunk runs through the base
/// and some candidates at a time in lock-step, each with a cache of its own.
///
/// The engine should have float activations: what integer ones add, a KLD of 0.0035 on a model of
/// 135M, is more than most of what is measured.
///
/// `progress(share done, 0..1)` may be empty. Errors: kCancelled (`stop`; a part of it is of no
/// use), kInvalidArgument (options, a text shorter than a chunk), kUnsupported (the model's head
/// size has no tile codecs), those of Engine::forward.
Result<CalibrateReport> calibrate_kv(engine::Engine& engine, std::span<const KldText> texts,
                                     const CalibrateOptions& options,
                                     const std::function<void(double)>& progress = {},
                                     const std::atomic<bool>* stop = nullptr);

}  // namespace kvasir::eval
