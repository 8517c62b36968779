// What the reader takes from the heap: never more than 4 x the file + 64 MiB, whatever a file says.
// Every allocation of this test binary is counted by the operators below.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "gguf/file.h"
#include "support/gguf_writer.h"

namespace {

std::atomic<std::uint64_t> g_live_bytes{0};
std::atomic<std::uint64_t> g_peak_bytes{0};

void* counted_alloc(std::size_t size) noexcept {
  void* block = std::malloc(size);
  if (block == nullptr) return nullptr;
  const std::uint64_t live = g_live_bytes += ::malloc_usable_size(block);
  std::uint64_t peak = g_peak_bytes;
  while (live > peak && !g_peak_bytes.compare_exchange_weak(peak, live)) {
  }
  return block;
}

void counted_free(void* block) noexcept {
  if (block != nullptr) g_live_bytes -= ::malloc_usable_size(block);
  std::free(block);
}

}  // namespace

void* operator new(std::size_t size) {
  void* block = counted_alloc(size);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return counted_alloc(size); }
void operator delete(void* block) noexcept { counted_free(block); }
void operator delete(void* block, std::size_t) noexcept { counted_free(block); }
void operator delete(void* block, const std::nothrow_t&) noexcept { counted_free(block); }

namespace kvasir::gguf {
namespace {

using testing::GgufWriter;
using Bytes = std::vector<std::uint8_t>;

/// The most that was live at once while `bytes` were parsed, beyond what was live before.
std::uint64_t peak_of_parse(const Bytes& bytes) {
  const std::uint64_t before = g_live_bytes;
  g_peak_bytes = before;
  const Result<File> file = File::parse(bytes, "test.gguf");
  return g_peak_bytes - before;
}

void expect_within_budget(const Bytes& bytes) {
  EXPECT_LE(peak_of_parse(bytes), 4 * bytes.size() + (std::uint64_t{64} << 20));
}

TEST(Memory, TheCounterCounts) {
  const std::uint64_t before = g_live_bytes;
  {
    const Bytes block(1000);
    EXPECT_GE(g_live_bytes, before + 1000);
  }
  EXPECT_EQ(g_live_bytes, before);
}

TEST(Memory, LyingLengthsTakeNothing) {
  for (const std::uint64_t size : {1ull << 26, 1ull << 36, 1ull << 50, ~0ull}) {
    for (const std::uint32_t type : {0u, 8u, 12u}) {
      GgufWriter writer;
      Bytes payload;
      GgufWriter::append(type, &payload);
      GgufWriter::append(size, &payload);
      payload.resize(payload.size() + 64);
      writer.raw_metadata("a", 9, payload);
      EXPECT_LT(peak_of_parse(writer.build()), 16u << 10) << size << " of type " << type;
    }
    GgufWriter writer;
    Bytes payload;
    GgufWriter::append(size, &payload);
    writer.raw_metadata("s", 8, payload);
    EXPECT_LT(peak_of_parse(writer.build()), 16u << 10) << size;
    GgufWriter counts;
    counts.n_metadata = size;
    counts.n_tensors = size;
    EXPECT_LT(peak_of_parse(counts.build()), 16u << 10) << size;
  }
}

TEST(Memory, ManyEmptyStringsStayInBudget) {
  // The dearest array: 8 B in the file, 8 B here.
  Bytes payload = GgufWriter::array_header(ValueType::kString, 2u << 20);
  payload.resize(payload.size() + (std::size_t{16} << 20));
  GgufWriter writer;
  writer.raw_metadata("a", 9, std::move(payload));
  const Bytes bytes = writer.build();
  EXPECT_LE(peak_of_parse(bytes), 2 * bytes.size());
}

TEST(Memory, TheMostEntriesAndTensorsStayInBudget) {
  GgufWriter writer;
  for (std::uint32_t i = 0; i < 64 * 1024; ++i) {
    const std::string name = std::to_string(i);
    writer.add_array<std::uint8_t>(name, {});
    writer.raw_tensor({.name = name, .shape = {1}, .type = 24, .offset = 0, .data = {}});
  }
  expect_within_budget(writer.build());
}

}  // namespace
}  // namespace kvasir::gguf
