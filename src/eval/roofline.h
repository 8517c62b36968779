// The limit of a benchmark row on this machine, from rates probed beside it.
#pragma once

#include "base/aligned_buffer.h"
#include "engine/engine.h"
#include "eval/throughput.h"

namespace kvasir::eval {

/// Probes before (construction) and after (`finish`) a row that is timed in between.
///
/// Arithmetic: quantized weights at the byte dot's rate (float ones at FMA's), causal attention at
/// that of FMA or, over K and V in bf16, of bf16 pairs, the vocabulary where logits are wanted. It
/// bounds prefill. A step of decode also reads weights, the shared history and what each sequence
/// adds to it once, at the read rate of a buffer of that size; the slower of the two bounds it.
class RooflineProbe {
 public:
  RooflineProbe(engine::Engine& engine, const ThroughputRow& row);
  Roofline finish();

 private:
  void probe();
  double arithmetic_seconds(double n_tokens, double n_logits, double attention) const;
  double decode_seconds() const;
  double prefill_seconds() const;

  engine::Engine& engine_;
  const ThroughputRow& row_;
  AlignedBuffer footprint_;  ///< as large as what a decode step reads
  Roofline roofline_;
};

}  // namespace kvasir::eval
