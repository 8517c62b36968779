// Files made to do harm: each class of fault gives the error that names it, and no truncation and
// no changed byte does more than that. Run under ASan these tests also show that nothing is read
// out of bounds: every file lies in a buffer of exactly its size.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gguf/describe.h"
#include "gguf/file.h"
#include "support/gguf_writer.h"

namespace kvasir::gguf {
namespace {

using testing::GgufWriter;
using Bytes = std::vector<std::uint8_t>;

/// Reads all that a file gives out, so that a sanitizer sees any span that is wrong.
std::uint64_t touch_everything(const File& file) {
  std::uint64_t sum = 0;
  for (const File::Entry& entry : file.metadata()) {
    sum += entry.key.size() + describe_value(entry.value).size();
    const auto* array = std::get_if<Array>(&entry.value.data);
    for (std::size_t i = 0; array != nullptr && i < array->size(); ++i) {
      if (array->element_type() == ValueType::kString) {
        for (const char c : array->string_at(i)) sum += static_cast<std::uint8_t>(c);
      } else {
        sum += array->double_at(i) > 0 ? 1 : 0;
      }
    }
    EXPECT_EQ(file.find(entry.key), &entry.value);
  }
  for (const TensorInfo& tensor : file.tensors()) {
    for (const std::uint8_t byte : tensor.data) sum += byte;
    EXPECT_EQ(file.tensor(tensor.name), &tensor);
  }
  return sum + format_summary(describe(file)).size();
}

/// Parses a copy that has not one byte to spare.
Result<File> parse_exact(const Bytes& bytes, const Limits& limits = {}) {
  const auto copy = std::make_unique<std::uint8_t[]>(bytes.size());
  std::copy(bytes.begin(), bytes.end(), copy.get());
  Result<File> file = File::parse({copy.get(), bytes.size()}, "test.gguf", limits);
  if (file) {
    touch_everything(*file);
    return File();  // what it views dies here
  }
  EXPECT_FALSE(file.error().message.empty());
  return file;
}

void expect_rejected(const Bytes& bytes, const std::string& part, const Limits& limits = {}) {
  const Result<File> file = parse_exact(bytes, limits);
  ASSERT_FALSE(file.has_value()) << "want an error with '" << part << "'";
  EXPECT_EQ(file.error().code, ErrorCode::kInvalidModel);
  EXPECT_NE(file.error().message.find(part), std::string::npos)
      << "got  " << file.error().message << "\nwant " << part;
}

Bytes concat(std::initializer_list<Bytes> parts) {
  Bytes out;
  for (const Bytes& part : parts) GgufWriter::append_bytes(part, &out);
  return out;
}

template <class T>
Bytes raw(T value) {
  Bytes out;
  GgufWriter::append(value, &out);
  return out;
}

/// A file with every kind of metadata and a few tensors.
GgufWriter sample() {
  GgufWriter writer;
  writer.add_string("general.architecture", "llama");
  writer.set_alignment(16);
  writer.add_uint8("u8", 1);
  writer.add_int64("i64", -2);
  writer.add_float32("f32", 0.5f);
  writer.add_bool("flag", true);
  writer.add_string_array("tokens", {"<s>", "", "a\n\xff"});
  writer.add_array<std::int32_t>("types", {1, 2, 3});
  writer.add_array<float>("scores", {1.0f, -1.0f});
  writer.add_bool_array("flags", {true, false});
  writer.add_tensor("a.weight", TensorType::kF32, {4, 2}, Bytes(32, 1));
  writer.add_tensor("b.weight", TensorType::kQ8_0, {32}, Bytes(34, 2));
  writer.add_tensor("c.weight", TensorType::kI8, {3, 1, 2, 1}, Bytes(6, 3));
  return writer;
}

TEST(Hostile, HeaderFaults) {
  GgufWriter writer = sample();
  writer.magic = "GGML";
  expect_rejected(writer.build(), "not a GGUF file; got magic 'GGML', want 'GGUF'");
  writer.magic = std::string("\x1b]0;", 4);
  expect_rejected(writer.build(), "got magic '\\x1b]0;'");
  writer.magic.reset();
  writer.version = 1;
  expect_rejected(writer.build(), "unsupported GGUF version; got 1, want 2 or 3");
  writer.version = 0;
  expect_rejected(writer.build(), "unsupported GGUF version; got 0");
  writer.version = 4;
  expect_rejected(writer.build(), "unsupported GGUF version; got 4");
  writer.version = 3u << 24;
  expect_rejected(writer.build(), "big-endian file (version 3); want little-endian");
  expect_rejected({}, "file ends inside the magic at byte 0; got 0 B, want 4 B");
}

TEST(Hostile, CountsThatTheFileCannotHold) {
  for (const std::uint64_t n : {~0ull, 1ull << 63, 1ull << 32, 1ull << 16}) {
    GgufWriter writer = sample();
    writer.n_metadata = n;
    expect_rejected(writer.build(), "too many metadata entries for this file");
    writer.n_metadata.reset();
    writer.n_tensors = n;
    expect_rejected(writer.build(), "too many tensors for this file");
  }
  GgufWriter more = sample();
  more.n_metadata = 11;
  EXPECT_FALSE(parse_exact(more.build()).has_value());
  GgufWriter tensors;  // few enough for the header's check, too many after the metadata
  tensors.add_string("k", std::string(200, 'x'));
  tensors.n_tensors = 6;
  expect_rejected(tensors.build(), "file ends inside the list of 6 tensors");
}

TEST(Hostile, CapsHold) {
  Limits limits;
  limits.n_metadata_max = 9;
  expect_rejected(sample().build(), "got 10, want at most 9", limits);
  limits = {};
  limits.n_tensors_max = 2;
  expect_rejected(sample().build(), "got 3, want at most 2", limits);
  limits = {};
  limits.key_bytes_max = 19;
  expect_rejected(sample().build(), "metadata key 0 is too long", limits);
  limits = {};
  limits.string_bytes_max = 4;
  expect_rejected(sample().build(), "got 5 B, want at most 4 B", limits);
  limits = {};
  limits.array_elements_max = 2;
  expect_rejected(sample().build(), "the array of key 'tokens' is too long", limits);
  GgufWriter long_key;
  long_key.add_uint8(std::string(65536, 'k'), 1);
  expect_rejected(long_key.build(), "got 65536 B, want at most 65535 B");
}

TEST(Hostile, LengthsThatWrap) {
  for (const std::uint64_t size : {~0ull, ~0ull - 7, 1ull << 63, 1ull << 40, 1000ull}) {
    GgufWriter writer;
    writer.raw_metadata("s", 8, raw(size));
    EXPECT_FALSE(parse_exact(writer.build()).has_value()) << size;
    for (const std::uint32_t type : {0u, 3u, 5u, 7u, 8u, 10u, 12u}) {
      GgufWriter arrays;
      arrays.raw_metadata("a", 9, concat({raw(type), raw(size), Bytes(40, 0)}));
      EXPECT_FALSE(parse_exact(arrays.build()).has_value()) << type << " x " << size;
    }
  }
}

TEST(Hostile, MetadataFaults) {
  GgufWriter twice = sample();
  twice.add_uint8("flag", 1);
  expect_rejected(twice.build(), "key 'flag' occurs twice");
  GgufWriter empty;
  empty.add_string("", "text");
  expect_rejected(empty.build(), "metadata key 0 is empty");
  GgufWriter type;
  type.raw_metadata("k", 13, Bytes(8, 0));
  expect_rejected(type.build(), "key 'k' has an unknown value type, byte 33; got 13, want 0..12");
  GgufWriter flag;
  flag.raw_metadata("k", 7, {7});
  expect_rejected(flag.build(), "the value of key 'k' is no bool, byte 37; got 7, want 0 or 1");
  GgufWriter flags;
  flags.raw_metadata("k", 9, concat({raw(7u), raw(std::uint64_t{3}), {1, 0, 2}}));
  expect_rejected(flags.build(), "has an element that is no bool; got 2, want 0 or 1");
  GgufWriter nested;
  nested.raw_metadata("k", 9, concat({raw(9u), raw(std::uint64_t{0}), Bytes(16, 0)}));
  expect_rejected(nested.build(), "nested arrays are not supported");
  GgufWriter element;
  element.raw_metadata("k", 9, concat({raw(77u), raw(std::uint64_t{0}), Bytes(16, 0)}));
  expect_rejected(element.build(), "has an unknown element type, byte 37; got 77, want 0..12");
}

TEST(Hostile, ArraysOfArraysDoNotRecurse) {
  GgufWriter writer;
  Bytes payload;
  for (int depth = 0; depth < 100000; ++depth) {
    GgufWriter::append_bytes(concat({raw(9u), raw(std::uint64_t{1})}), &payload);
  }
  writer.raw_metadata("k", 9, payload);
  expect_rejected(writer.build(), "nested arrays are not supported");
}

TEST(Hostile, AlignmentFaults) {
  for (const std::uint32_t alignment : {0u, 3u, 48u, 1u << 21, 1u << 31}) {
    GgufWriter writer;
    writer.add_uint32("general.alignment", alignment);
    expect_rejected(writer.build(), "want a power of two up to 1048576");
  }
  GgufWriter negative;
  negative.add_int32("general.alignment", -32);
  expect_rejected(negative.build(), "got -32, want a power of two");
  GgufWriter text;
  text.add_string("general.alignment", "32");
  expect_rejected(text.build(), "got string, want an integer");
}

TEST(Hostile, ShapeFaults) {
  const auto with = [](std::uint32_t n_dims, std::vector<std::uint64_t> shape, TensorType type) {
    GgufWriter writer;
    writer.raw_tensor({.name = "t",
                       .n_dims = n_dims,
                       .shape = std::move(shape),
                       .type = static_cast<std::uint32_t>(type),
                       .offset = {},
                       .data = Bytes(64, 0)});
    return writer.build();
  };
  expect_rejected(with(0, {4}, TensorType::kF32),
                  "number of dimensions, byte 33; got 0, want 1..4");
  expect_rejected(with(5, {1, 1, 1, 1, 1}, TensorType::kF32), "got 5, want 1..4");
  expect_rejected(with(~0u, {1}, TensorType::kF32), "got 4294967295, want 1..4");
  expect_rejected(with(2, {4, 0}, TensorType::kF32), "tensor 't': dimension 1 is 0");
  expect_rejected(with(2, {1ull << 32, 1ull << 32}, TensorType::kF32), "dimension 1 is too large");
  expect_rejected(with(1, {1ull << 63}, TensorType::kI8), "dimension 0 is too large");
  expect_rejected(with(4, {1ull << 16, 1ull << 16, 1ull << 16, 1ull << 16}, TensorType::kI8),
                  "dimension 3 is too large");
  expect_rejected(with(1, {1ull << 62}, TensorType::kF32), "ends past the file");
  expect_rejected(with(1, {(1ull << 62) + 8}, TensorType::kF32), "ends past the file");
  expect_rejected(with(1, {33}, TensorType::kQ8_0),
                  "row does not divide into Q8_0 blocks; got 33 values, want a multiple of 32");
  expect_rejected(with(2, {16, 2}, TensorType::kQ4_0), "got 16 values, want a multiple of 32");
  expect_rejected(with(1, {128}, TensorType::kQ4_K), "want a multiple of 256");
}

TEST(Hostile, TensorTypeFaults) {
  const auto with = [](std::uint32_t type) {
    GgufWriter writer;
    writer.raw_tensor({.name = "t", .shape = {256}, .type = type, .offset = {}, .data = {}});
    return writer.build();
  };
  expect_rejected(with(4), "tensor 't': tensor type 4 (Q4_2) is retired");
  expect_rejected(with(36), "tensor type 36 (IQ4_NL_4_4) is retired");
  expect_rejected(with(255), "tensor 't': unknown tensor type, byte 45; got 255");
  expect_rejected(with(~0u), "got 4294967295");
}

TEST(Hostile, TensorPlaceFaults) {
  const auto with = [](std::uint64_t offset) {
    GgufWriter writer;
    writer.raw_tensor(
        {.name = "t", .shape = {16}, .type = 0, .offset = offset, .data = Bytes(64, 0)});
    return writer.build();
  };
  EXPECT_TRUE(parse_exact(with(0)).has_value());
  expect_rejected(with(4), "offset is not aligned; got 4, want a multiple of 32");
  expect_rejected(with(32), "tensor 't' ends past the file; data begins at byte 64, offset 32 B");
  expect_rejected(with(1ull << 40), "ends past the file");
  expect_rejected(with(~0ull - 31), "ends past the file");
  expect_rejected(with(~0ull - 63), "ends past the file");
}

TEST(Hostile, TensorsThatShareBytesOrNames) {
  const auto add = [](GgufWriter* writer, std::string name, std::uint64_t offset) {
    writer->raw_tensor({.name = std::move(name),
                        .shape = {16},
                        .type = 0,
                        .offset = offset,
                        .data = Bytes(64, 0)});
  };
  GgufWriter same;
  add(&same, "a", 0);
  add(&same, "b", 0);
  expect_rejected(same.build(), "overlap at byte");
  GgufWriter partly;
  add(&partly, "a", 32);
  add(&partly, "b", 0);
  expect_rejected(partly.build(), "tensors 'b' and 'a' overlap at byte");
  GgufWriter names;
  add(&names, "a", 0);
  add(&names, "a", 64);
  expect_rejected(names.build(), "tensor 'a' occurs twice");
  GgufWriter empty;
  add(&empty, "", 0);
  expect_rejected(empty.build(), "the name of tensor 0 is empty");
}

TEST(Hostile, NamesInMessagesCannotDriveATerminal) {
  GgufWriter writer;
  writer.add_uint8("\x1b[2J\xc2\x9b" + std::string(500, 'x'), 1);
  writer.add_uint8("\x1b[2J\xc2\x9b" + std::string(500, 'x'), 1);
  const Result<File> file = parse_exact(writer.build());
  ASSERT_FALSE(file.has_value());
  const std::string& message = file.error().message;
  EXPECT_NE(message.find("'\\x1b[2J\\xc2\\x9bxxx"), std::string::npos) << message;
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
  EXPECT_LT(message.size(), 250u);
}

TEST(Hostile, EveryTruncationIsACleanError) {
  const Bytes whole = sample().build();
  ASSERT_TRUE(parse_exact(whole).has_value());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(parse_exact(Bytes(whole.begin(), whole.begin() + size)).has_value()) << size;
  }
}

TEST(Hostile, NoChangedMetadataByteDoesHarm) {
  const Bytes whole = sample().build();
  const std::size_t n_metadata = sample().build_metadata().size();
  std::size_t n_accepted = 0;
  for (std::size_t i = 0; i < n_metadata; ++i) {
    for (const int value : {0x00, 0x01, 0x7f, 0x80, 0xff, whole[i] ^ 1, whole[i] ^ 0x80,
                            whole[i] + 1, whole[i] - 1}) {
      Bytes changed = whole;
      changed[i] = static_cast<std::uint8_t>(value);
      n_accepted += parse_exact(changed).has_value() ? 1 : 0;
    }
  }
  EXPECT_GT(n_accepted, 0u);  // a changed letter of a key does no harm
  EXPECT_LT(n_accepted, n_metadata * 9);
}

TEST(Hostile, ManyKeysTakeNoQuadraticTime) {
  // A test of the sorted index: with a quadratic one this takes minutes and runs into ctest's
  // limit.
  GgufWriter writer;
  const std::uint32_t n = 64 * 1024;
  for (std::uint32_t i = 0; i < n; ++i) writer.add_uint8("key." + std::to_string(i), 0);
  const Bytes bytes = writer.build();
  const Result<File> file = File::parse(bytes, "test.gguf");
  ASSERT_TRUE(file.has_value()) << file.error().message;
  EXPECT_NE(file->find("key.65535"), nullptr);
  writer.add_uint8("one more", 0);
  expect_rejected(writer.build(), "too many metadata entries");
}

}  // namespace
}  // namespace kvasir::gguf
