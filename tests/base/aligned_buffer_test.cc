#include "base/aligned_buffer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <new>
#include <utility>

namespace kvasir {
namespace {

bool all_zero(const AlignedBuffer& buffer) {
  return std::all_of(buffer.data(), buffer.data() + buffer.size(),
                     [](std::uint8_t byte) { return byte == 0; });
}

TEST(AlignedBuffer, EmptyHoldsNothing) {
  EXPECT_EQ(AlignedBuffer().data(), nullptr);
  EXPECT_EQ(AlignedBuffer(0).data(), nullptr);
  EXPECT_EQ(AlignedBuffer(0).size(), 0u);
}

TEST(AlignedBuffer, IsAlignedZeroedAndWritableToTheLastByte) {
  const std::size_t huge = std::size_t{2} << 20;
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4095}, std::size_t{4097}, huge - 1,
                                  huge, huge + 1, 3 * huge + 12345}) {
    AlignedBuffer buffer(bytes);
    ASSERT_EQ(buffer.size(), bytes);
    const std::size_t alignment = bytes >= huge ? huge : 4096;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % alignment, 0u) << bytes;
    EXPECT_TRUE(all_zero(buffer)) << bytes;
    std::fill_n(buffer.data(), bytes, std::uint8_t{0xa5});
    EXPECT_EQ(buffer.data()[bytes - 1], 0xa5);
  }
}

TEST(AlignedBuffer, MovingTakesTheMemoryAlong) {
  AlignedBuffer first(100);
  first.data()[99] = 9;
  const std::uint8_t* const address = first.data();
  AlignedBuffer second(std::move(first));
  EXPECT_EQ(second.data(), address);
  EXPECT_EQ(second.data()[99], 9);
  EXPECT_EQ(first.data(), nullptr);
  EXPECT_EQ(first.size(), 0u);
}

TEST(AlignedBuffer, MoveAssignmentGivesItsOwnMemoryBackAtOnce) {
  AlignedBuffer target(8192);
  AlignedBuffer source(100);
  target = std::move(source);
  EXPECT_EQ(target.size(), 100u);
  EXPECT_EQ(source.data(), nullptr);
  EXPECT_EQ(source.size(), 0u);
  AlignedBuffer& same = target;
  target = std::move(same);
  EXPECT_EQ(target.size(), 100u);
  EXPECT_EQ(target.data()[0], 0);
}

TEST(AlignedBuffer, ImpossibleSizesThrowInsteadOfWrappingRound) {
  const std::size_t max = std::numeric_limits<std::size_t>::max();
  for (const std::size_t bytes : {max, max - 1, max - 4096, max / 2 + 1, max / 2}) {
    EXPECT_THROW(AlignedBuffer{bytes}, std::bad_alloc) << bytes;
  }
}

}  // namespace
}  // namespace kvasir
