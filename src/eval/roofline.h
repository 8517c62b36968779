// The limit of a benchmark row on this machine, from rates probed beside it.
#pragma once

#include "base/aligned_buffer.h"
#include "engine/engine.h"
#include "eval/throughput.h"

namespace kvasir::eval {

/// Probes before (construction) and after (`finish`) a row that is timed in between.
///
/// Decode is bound by memory: weights and the history's KV are read once per token, at the read
/// rate of a buffer of that size. Prefill is bound by arithmetic: quantized weights at the byte
/// dot's rate (float ones at FMA's), causal attention at FMA's; the vocabulary once.
class RooflineProbe {
 public:
  RooflineProbe(engine::Engine& engine, const ThroughputRow& row);
  Roofline finish();

 private:
  void probe();
  double decode_seconds() const;
  double prefill_seconds() const;

  engine::Engine& engine_;
  const ThroughputRow& row_;
  double kv_bytes_per_step_ = 0;
  AlignedBuffer footprint_;  ///< as large as what a decode step reads
  Roofline roofline_;
};

}  // namespace kvasir::eval
