// The summary of a file: right, short, and safe to print.
#include "gguf/describe.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gguf/printable.h"
#include "support/gguf_writer.h"

namespace kvasir::gguf {
namespace {

using testing::GgufWriter;
using Bytes = std::vector<std::uint8_t>;

TEST(Printable, KeepsTextAndEscapesTheRest) {
  EXPECT_EQ(printable("plain", 100), "plain");
  EXPECT_EQ(printable("a\nb\tc\rd", 100), "a\\nb\\tc\\rd");
  EXPECT_EQ(printable("\x1b[0m\x7f", 100), "\\x1b[0m\\x7f");
  EXPECT_EQ(printable("gr\xc3\xbc\xc3\x9f \xe4\xb8\xad \xf0\x9f\x98\x80", 100),
            "gr\xc3\xbc\xc3\x9f \xe4\xb8\xad \xf0\x9f\x98\x80");
  EXPECT_EQ(printable("\xc2\x9b", 100), "\\xc2\\x9b") << "C1 control";
  EXPECT_EQ(printable("\xe2\x80\xae", 100), "\\xe2\\x80\\xae") << "right-to-left override";
}

TEST(Printable, EscapesWhatIsNoUtf8) {
  EXPECT_EQ(printable("\xff", 100), "\\xff");
  EXPECT_EQ(printable("\xc3", 100), "\\xc3") << "cut";
  EXPECT_EQ(printable("\xc3(", 100), "\\xc3(");
  EXPECT_EQ(printable("\xc0\xaf", 100), "\\xc0\\xaf") << "overlong";
  EXPECT_EQ(printable("\xe0\x80\xaf", 100), "\\xe0\\x80\\xaf") << "overlong";
  EXPECT_EQ(printable("\xed\xa0\x80", 100), "\\xed\\xa0\\x80") << "surrogate";
  EXPECT_EQ(printable("\xf4\x90\x80\x80", 100), "\\xf4\\x90\\x80\\x80") << "past U+10FFFF";
}

TEST(Printable, CutsBetweenCharacters) {
  EXPECT_EQ(printable("abcdef", 6), "abcdef");
  EXPECT_EQ(printable("abcdefg", 6), "abcdef... (7 B)");
  EXPECT_EQ(printable("ab\xe4\xb8\xad", 4), "ab... (5 B)");
}

Bytes sample() {
  GgufWriter writer;
  writer.add_string("general.name", "tiny\x1b[31m");
  writer.add_uint32("llama.block_count", 2);
  writer.add_float32("llama.eps", 1e-5f);
  writer.add_float64("f64", 0.1);
  writer.add_int32("negative", -7);
  writer.add_bool("flag", true);
  writer.add_string_array("tokens", {"<s>", "\n", "c", "d", "e", "f", "g", "h"});
  writer.add_array<std::int32_t>("types", {1, -2});
  writer.add_array<float>("scores", {0.1f});
  writer.add_bool_array("flags", {true, false});
  writer.add_array<std::uint8_t>("none", {});
  writer.add_tensor("norm", TensorType::kF32, {64}, Bytes(256));
  writer.add_tensor("a", TensorType::kQ8_0, {64, 32}, Bytes(64 * 34));
  writer.add_tensor("b", TensorType::kQ8_0, {64, 32}, Bytes(64 * 34));
  return writer.build();
}

TEST(Describe, MetadataIsPrintable) {
  const Bytes bytes = sample();
  const Result<File> file = File::parse(bytes, "tiny.gguf");
  ASSERT_TRUE(file.has_value()) << file.error().message;
  const Summary summary = describe(*file);
  ASSERT_EQ(summary.metadata.size(), 11u);
  const auto expect = [&](std::size_t i, const char* key, const char* type, const char* value) {
    EXPECT_EQ(summary.metadata[i].key, key);
    EXPECT_EQ(summary.metadata[i].type, type);
    EXPECT_EQ(summary.metadata[i].value, value);
  };
  expect(0, "general.name", "string", "tiny\\x1b[31m");
  expect(1, "llama.block_count", "uint32", "2");
  expect(2, "llama.eps", "float32", "1e-05");
  expect(3, "f64", "float64", "0.1");
  expect(4, "negative", "int32", "-7");
  expect(5, "flag", "bool", "true");
  expect(6, "tokens", "array of string",
         "[\"<s>\", \"\\n\", \"c\", \"d\", \"e\", \"f\", ... (8 elements)]");
  expect(7, "types", "array of int32", "[1, -2]");
  expect(8, "scores", "array of float32", "[0.1]");
  expect(9, "flags", "array of bool", "[true, false]");
  expect(10, "none", "array of uint8", "[]");
}

TEST(Describe, TensorsAndTotals) {
  const Bytes bytes = sample();
  const Result<File> file = File::parse(bytes, "tiny.gguf");
  ASSERT_TRUE(file.has_value()) << file.error().message;
  const Summary summary = describe(*file);
  EXPECT_EQ(summary.name, "tiny.gguf");
  EXPECT_EQ(summary.version, 3u);
  EXPECT_EQ(summary.alignment, 32u);
  EXPECT_EQ(summary.file_bytes, bytes.size());
  EXPECT_EQ(summary.n_parameters, 64u + 2 * 2048);
  EXPECT_EQ(summary.tensor_bytes, 256u + 2 * 2176);
  ASSERT_EQ(summary.tensors.size(), 3u);
  EXPECT_EQ(summary.tensors[1].name, "a");
  EXPECT_EQ(summary.tensors[1].type, "Q8_0");
  EXPECT_EQ(summary.tensors[1].shape, (std::vector<std::uint64_t>{64, 32}));
  EXPECT_EQ(summary.tensors[1].n_bytes, 2176u);
  EXPECT_EQ(summary.tensors[1].file_offset, file->tensor("a")->file_offset);
  ASSERT_EQ(summary.totals.size(), 2u);
  EXPECT_EQ(summary.totals[0].type, "Q8_0");
  EXPECT_EQ(summary.totals[0].n_tensors, 2u);
  EXPECT_EQ(summary.totals[0].n_values, 4096u);
  EXPECT_EQ(summary.totals[1].type, "F32");
  EXPECT_EQ(summary.totals[1].n_bytes, 256u);
}

TEST(Describe, TextNamesEverythingAndHoldsNoControls) {
  const Bytes bytes = sample();
  const Result<File> file = File::parse(bytes, "tiny.gguf");
  ASSERT_TRUE(file.has_value()) << file.error().message;
  const std::string text = format_summary(describe(*file));
  for (const char* part : {"GGUF version 3", "llama.block_count", "array of string", "Q8_0",
                           "64 x 32", "norm", "(4160)"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(text.back(), '\n');
}

TEST(Describe, AFileWithoutAnything) {
  const Bytes bytes = GgufWriter().build();
  const Result<File> file = File::parse(bytes, "empty");
  ASSERT_TRUE(file.has_value()) << file.error().message;
  const Summary summary = describe(*file);
  EXPECT_EQ(summary.n_parameters, 0u);
  EXPECT_TRUE(summary.totals.empty());
  EXPECT_FALSE(format_summary(summary).empty());
}

}  // namespace
}  // namespace kvasir::gguf
