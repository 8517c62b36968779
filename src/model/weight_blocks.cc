// The block formats: bit positions follow the GGUF type definitions (ggml-org/llama.cpp,
// ggml/src/ggml-common.h, as of 2025); offsets are bytes from the block's start.
#include "model/weight_blocks.h"

#include <cstring>

#include "simd/half.h"

namespace kvasir::model {
namespace {

using gguf::TensorType;

float load_f16(const std::uint8_t* bytes) {
  std::uint16_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return simd::f16_to_f32(bits);
}

// 16 bytes whose low nibbles are values 0..15 and high nibbles 16..31.
void split_nibbles(const std::uint8_t* bytes, int offset, std::int8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = static_cast<std::int8_t>((bytes[i] & 15) + offset);
    codes[16 + i] = static_cast<std::int8_t>((bytes[i] >> 4) + offset);
  }
}

// Adds bit i of `high_bits`, as 16, to value i.
void add_fifth_bits(const std::uint8_t* high_bits, std::int8_t* codes) {
  std::uint32_t bits;
  std::memcpy(&bits, high_bits, sizeof(bits));
  for (int i = 0; i < 32; ++i) {
    codes[i] = static_cast<std::int8_t>(codes[i] + static_cast<int>((bits >> i & 1) << 4));
  }
}

// f16 scale | 16 B nibbles
void unpack_q4_0(const std::uint8_t* block, UnpackedBlock& out) {
  out.scales[0] = load_f16(block);
  out.minima[0] = 0;
  split_nibbles(block + 2, -8, out.codes);
}

// f16 scale | f16 minimum | 16 B nibbles
void unpack_q4_1(const std::uint8_t* block, UnpackedBlock& out) {
  out.scales[0] = load_f16(block);
  out.minima[0] = load_f16(block + 2);
  split_nibbles(block + 4, 0, out.codes);
}

// f16 scale | 4 B fifth bits | 16 B nibbles
void unpack_q5_0(const std::uint8_t* block, UnpackedBlock& out) {
  out.scales[0] = load_f16(block);
  out.minima[0] = 0;
  split_nibbles(block + 6, -16, out.codes);
  add_fifth_bits(block + 2, out.codes);
}

// f16 scale | f16 minimum | 4 B fifth bits | 16 B nibbles
void unpack_q5_1(const std::uint8_t* block, UnpackedBlock& out) {
  out.scales[0] = load_f16(block);
  out.minima[0] = load_f16(block + 2);
  split_nibbles(block + 8, 0, out.codes);
  add_fifth_bits(block + 4, out.codes);
}

// f16 scale | 32 B signed codes
void unpack_q8_0(const std::uint8_t* block, UnpackedBlock& out) {
  out.scales[0] = load_f16(block);
  out.minima[0] = 0;
  std::memcpy(out.codes, block + 2, 32);
}

// Values of the non-linear 4-bit types.
constexpr std::int8_t kNonLinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                        1,    13,   25,  38,  53,  69,  89,  113};

void look_up_nibbles(const std::uint8_t* bytes, std::int8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = kNonLinear[bytes[i] & 15];
    codes[16 + i] = kNonLinear[bytes[i] >> 4];
  }
}

// f16 scale | 16 B nibbles
void unpack_iq4_nl(const std::uint8_t* block, UnpackedBlock& out) {
  out.scales[0] = load_f16(block);
  out.minima[0] = 0;
  look_up_nibbles(block + 2, out.codes);
}

// f16 scale | 2 B high scale bits, 2 a group | 4 B low scale bits, 4 a group | 8 x 16 B nibbles
void unpack_iq4_xs(const std::uint8_t* block, UnpackedBlock& out) {
  const float scale = load_f16(block);
  std::uint16_t high;
  std::memcpy(&high, block + 2, sizeof(high));
  for (int g = 0; g < 8; ++g) {
    const int low = block[4 + g / 2] >> (g % 2 * 4) & 15;
    const int six_bits = low | (high >> (2 * g) & 3) << 4;
    out.scales[g] = scale * static_cast<float>(six_bits - 32);
    out.minima[g] = 0;
    look_up_nibbles(block + 8 + 16 * g, out.codes + 32 * g);
  }
}

// 16 B (low nibble: scale, high: minimum) | 64 B two-bit codes | f16 scale | f16 minimum scale.
// Each half of 128 values has 32 bytes; plane p (2 bits at 2p) holds values 32p..32p+31.
void unpack_q2_k(const std::uint8_t* block, UnpackedBlock& out) {
  const float scale = load_f16(block + 80);
  const float minimum_scale = load_f16(block + 82);
  for (int g = 0; g < 16; ++g) {
    out.scales[g] = scale * static_cast<float>(block[g] & 15);
    out.minima[g] = -(minimum_scale * static_cast<float>(block[g] >> 4));
  }
  for (int half = 0; half < 2; ++half) {
    const std::uint8_t* bytes = block + 16 + 32 * half;
    std::int8_t* codes = out.codes + 128 * half;
    for (int plane = 0; plane < 4; ++plane) {
      for (int i = 0; i < 32; ++i) {
        codes[32 * plane + i] = static_cast<std::int8_t>(bytes[i] >> (2 * plane) & 3);
      }
    }
  }
}

// 32 B third bits (plane p of 8: bit p holds values 32p..) | 64 B two-bit codes as Q2_K | 12 B
// scales | f16 scale. A clear third bit means -4.
void unpack_q3_k(const std::uint8_t* block, UnpackedBlock& out) {
  const float scale = load_f16(block + 108);
  const std::uint8_t* packed = block + 96;
  for (int g = 0; g < 16; ++g) {
    const int low = packed[g % 8] >> (g / 8 * 4) & 15;
    const int high = packed[8 + g % 4] >> (g / 4 * 2) & 3;
    out.scales[g] = scale * static_cast<float>((low | high << 4) - 32);
    out.minima[g] = 0;
  }
  for (int plane = 0; plane < 8; ++plane) {
    const std::uint8_t* bytes = block + 32 + 32 * (plane / 4);
    std::int8_t* codes = out.codes + 32 * plane;
    for (int i = 0; i < 32; ++i) {
      const int low = bytes[i] >> (2 * (plane % 4)) & 3;
      const int high = block[i] >> plane & 1;
      codes[i] = static_cast<std::int8_t>(low + 4 * high - 4);
    }
  }
}

// Six-bit scales and minima of 8 groups in 12 bytes: groups 0..3 in the low six bits of bytes 0..3
// (scales) and 4..7 (minima); groups 4..7 in the nibbles of bytes 8..11 and the top bits of 0..7.
void unpack_k_scales(const std::uint8_t* block, UnpackedBlock& out) {
  const float scale = load_f16(block);
  const float minimum_scale = load_f16(block + 2);
  const std::uint8_t* packed = block + 4;
  for (int g = 0; g < 8; ++g) {
    const int i = g % 4;
    int s, m;
    if (g < 4) {
      s = packed[i] & 63;
      m = packed[4 + i] & 63;
    } else {
      s = (packed[8 + i] & 15) | (packed[i] >> 6) << 4;
      m = packed[8 + i] >> 4 | (packed[4 + i] >> 6) << 4;
    }
    out.scales[g] = scale * static_cast<float>(s);
    out.minima[g] = -(minimum_scale * static_cast<float>(m));
  }
}

// f16 scale | f16 minimum scale | 12 B scales | 4 x 32 B: low nibbles group 2c, high nibbles 2c + 1
void unpack_q4_k(const std::uint8_t* block, UnpackedBlock& out) {
  unpack_k_scales(block, out);
  for (int chunk = 0; chunk < 4; ++chunk) {
    const std::uint8_t* bytes = block + 16 + 32 * chunk;
    std::int8_t* codes = out.codes + 64 * chunk;
    for (int i = 0; i < 32; ++i) {
      codes[i] = static_cast<std::int8_t>(bytes[i] & 15);
      codes[32 + i] = static_cast<std::int8_t>(bytes[i] >> 4);
    }
  }
}

// f16 scale | f16 minimum scale | 12 B scales | 32 B fifth bits (bit g: group g) | nibbles as Q4_K
void unpack_q5_k(const std::uint8_t* block, UnpackedBlock& out) {
  unpack_k_scales(block, out);
  const std::uint8_t* fifth = block + 16;
  for (int g = 0; g < 8; ++g) {
    const std::uint8_t* bytes = block + 48 + 32 * (g / 2);
    for (int i = 0; i < 32; ++i) {
      const int low = bytes[i] >> (g % 2 * 4) & 15;
      const int high = fifth[i] >> g & 1;
      out.codes[32 * g + i] = static_cast<std::int8_t>(low | high << 4);
    }
  }
}

// 128 B low nibbles | 64 B top two bits | 16 B signed scales | f16 scale. In each half of 128
// values, plane p (32 values) has its nibbles in bytes 32 * (p % 2), low for p < 2, its top bits at
// 2p.
void unpack_q6_k(const std::uint8_t* block, UnpackedBlock& out) {
  const float scale = load_f16(block + 208);
  for (int g = 0; g < 16; ++g) {
    out.scales[g] = scale * static_cast<float>(static_cast<std::int8_t>(block[192 + g]));
    out.minima[g] = 0;
  }
  for (int plane = 0; plane < 8; ++plane) {
    const int p = plane % 4;
    const std::uint8_t* low = block + 64 * (plane / 4) + 32 * (p % 2);
    const std::uint8_t* high = block + 128 + 32 * (plane / 4);
    std::int8_t* codes = out.codes + 32 * plane;
    for (int i = 0; i < 32; ++i) {
      const int six_bits = (low[i] >> (p / 2 * 4) & 15) | (high[i] >> (2 * p) & 3) << 4;
      codes[i] = static_cast<std::int8_t>(six_bits - 32);
    }
  }
}

}  // namespace

BlockUnpacker block_unpacker(TensorType type) {
  switch (type) {
    case TensorType::kQ4_0:
      return {unpack_q4_0, 32, 32};
    case TensorType::kQ4_1:
      return {unpack_q4_1, 32, 32};
    case TensorType::kQ5_0:
      return {unpack_q5_0, 32, 32};
    case TensorType::kQ5_1:
      return {unpack_q5_1, 32, 32};
    case TensorType::kQ8_0:
      return {unpack_q8_0, 32, 32};
    case TensorType::kQ2_K:
      return {unpack_q2_k, 256, 16};
    case TensorType::kQ3_K:
      return {unpack_q3_k, 256, 16};
    case TensorType::kQ4_K:
      return {unpack_q4_k, 256, 32};
    case TensorType::kQ5_K:
      return {unpack_q5_k, 256, 32};
    case TensorType::kQ6_K:
      return {unpack_q6_k, 256, 16};
    case TensorType::kIQ4_NL:
      return {unpack_iq4_nl, 32, 32};
    case TensorType::kIQ4_XS:
      return {unpack_iq4_xs, 256, 32};
    default:
      return {};
  }
}

}  // namespace kvasir::model
