// A random llama built in memory, with knobs for everything a header can get wrong.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "support/gguf_writer.h"

namespace kvasir::model::testing {

/// 2 layers, 32 wide, 2 heads of 16, 1 kv head, 48 tokens, tied output. Metadata may be replaced
/// (GgufWriter::remove and add_*) before build().
inline kvasir::testing::GgufWriter tiny_llama(const std::string& arch = "llama") {
  kvasir::testing::GgufWriter writer;
  writer.add_string("general.architecture", arch);
  writer.add_uint32(arch + ".block_count", 2);
  writer.add_uint32(arch + ".context_length", 256);
  writer.add_uint32(arch + ".embedding_length", 32);
  writer.add_uint32(arch + ".feed_forward_length", 64);
  writer.add_uint32(arch + ".attention.head_count", 2);
  writer.add_uint32(arch + ".attention.head_count_kv", 1);
  writer.add_float32(arch + ".attention.layer_norm_rms_epsilon", 1e-5f);

  double phase = 0.0;
  const auto values = [&](std::size_t n, float mean) {
    std::vector<float> out(n);
    for (float& value : out) {
      phase += 1.0;
      value = mean + 0.3f * static_cast<float>(std::sin(phase * phase * 0.37));
    }
    return out;
  };
  const auto matrix = [&](const std::string& name, std::uint64_t n_cols, std::uint64_t n_rows) {
    writer.add_f32_tensor(name, {n_cols, n_rows}, values(n_cols * n_rows, 0.0f));
  };
  const auto norm = [&](const std::string& name) {
    writer.add_f32_tensor(name, {32}, values(32, 1.0f));
  };
  matrix("token_embd.weight", 32, 48);
  norm("output_norm.weight");
  for (const char* layer : {"blk.0.", "blk.1."}) {
    const std::string prefix = layer;
    norm(prefix + "attn_norm.weight");
    norm(prefix + "ffn_norm.weight");
    matrix(prefix + "attn_q.weight", 32, 32);
    matrix(prefix + "attn_k.weight", 32, 16);
    matrix(prefix + "attn_v.weight", 32, 16);
    matrix(prefix + "attn_output.weight", 32, 32);
    matrix(prefix + "ffn_gate.weight", 32, 64);
    matrix(prefix + "ffn_up.weight", 32, 64);
    matrix(prefix + "ffn_down.weight", 64, 32);
  }
  return writer;
}

}  // namespace kvasir::model::testing
