// What this machine can do at most, measured: virtual machines' rates drift within minutes, so a
// roofline is probed in the same process, just before and after what it is compared with.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool.h"

namespace kvasir::simd {

/// Bytes per second of all threads reading `bytes` once, each its own stretch.
double read_rate(ThreadPool& pool, std::span<const std::uint8_t> bytes);

/// Multiply-adds per second of all threads doing nothing but the byte dot of simd/dot-inl.h, 4-bit
/// weights times int8 activations: the ceiling of quantized matmul.
double integer_rate(ThreadPool& pool);

/// Multiply-adds per second of all threads doing nothing but f32 FMA.
double float_rate(ThreadPool& pool);

/// The same of bf16 pairs, by VDPBF16PS where the CPU has it, else by f32 FMA.
double bf16_rate(ThreadPool& pool);

/// Seconds of one ThreadPool::barrier().
double barrier_seconds(ThreadPool& pool);

}  // namespace kvasir::simd
