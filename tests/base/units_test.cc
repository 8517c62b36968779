#include "base/units.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvasir {
namespace {

TEST(FormatBytes, IsExactBelowOneKibibyte) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(812), "812 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
}

TEST(FormatBytes, GivesOneDecimalInTheLargestUnitBelowOneThousandAndTwentyFour) {
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(98985377), "94.4 MiB");
  EXPECT_EQ(format_bytes(std::uint64_t{3} << 29), "1.5 GiB");
  EXPECT_EQ(format_bytes(~std::uint64_t{0}), "16.0 EiB");
}

TEST(FormatBytes, NeverPrints1024OfAUnit) {
  EXPECT_EQ(format_bytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(format_bytes((std::uint64_t{1} << 30) - 1), "1.0 GiB");
}

TEST(ParseBytes, ReadsNumbersWithPrefixes) {
  const std::vector<std::pair<std::string_view, std::uint64_t>> cases = {
      {"0", 0},
      {"1048576", 1048576},
      {"7B", 7},
      {"512M", std::uint64_t{512} << 20},
      {"512m", std::uint64_t{512} << 20},
      {"8G", std::uint64_t{8} << 30},
      {"8GB", std::uint64_t{8} << 30},
      {"8kib", 8192},
      {"1.5GiB", std::uint64_t{3} << 29},
      {".5K", 512},
      {"2T", std::uint64_t{2} << 40},
      {"010", 10},
  };
  for (const auto& [text, want] : cases) {
    const auto got = parse_bytes(text);
    ASSERT_TRUE(got) << text << ": " << got.error().message;
    EXPECT_EQ(*got, want) << text;
  }
}

TEST(ParseBytes, KeepsWholeNumbersExactAboveDoublePrecision) {
  EXPECT_EQ(*parse_bytes("9007199254740993"), 9007199254740993u);
  EXPECT_EQ(*parse_bytes("9223372036854775807"), 9223372036854775807u);
}

TEST(ParseBytes, RefusesWhatIsNoSizeAndSaysWhy) {
  const std::vector<std::string_view> cases = {
      "",
      "M",
      "-1",
      "-1.5K",
      "+1",
      " 1",
      "1 M",
      "1.2.3",
      "1e3",
      "1X",
      "1iB",
      "1IB",
      "1MM",
      "1KiBs",
      "0x10",
      ".",
      "nan",
      "inf",
      "1P",
      "infinity",
      "99999999999999999999",
      "8388608T",
      "9999999999999.5T",
  };
  for (const std::string_view text : cases) {
    const auto got = parse_bytes(text);
    ASSERT_FALSE(got) << text << " gave " << *got;
    EXPECT_EQ(got.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(got.error().message.find("'" + std::string(text) + "'"), std::string::npos);
  }
}

TEST(ParseBytes, SaysHowMuchIsTooMuch) {
  for (const std::string_view text :
       {"8388608T", "99999999999999999999", "99999999999999999999G", "9999999999999.5T"}) {
    EXPECT_NE(parse_bytes(text).error().message.find("want at most 8388607T"), std::string::npos)
        << text;
  }
  EXPECT_EQ(parse_bytes("99999999999999999999X").error().message.find("at most"),
            std::string::npos);
}

TEST(ParseBytes, DoesNotStopAtANulByte) {
  EXPECT_FALSE(parse_bytes(std::string_view("5\0garbage", 9)));
  EXPECT_FALSE(parse_bytes(std::string_view("5M\0", 3)));
}

TEST(RoundUp, GivesTheNextMultiple) {
  static_assert(round_up(0, 64) == 0);
  static_assert(round_up(1, 64) == 64);
  static_assert(round_up(64, 64) == 64);
  EXPECT_EQ(round_up(65, 48), 96u);
}

}  // namespace
}  // namespace kvasir
