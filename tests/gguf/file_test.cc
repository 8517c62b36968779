// File: what a correct file gives back, and the typed look-ups.
#include "gguf/file.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "support/gguf_writer.h"

namespace kvasir::gguf {
namespace {

using testing::GgufWriter;
using Bytes = std::vector<std::uint8_t>;

Bytes counting(std::size_t n) {
  Bytes bytes(n);
  std::iota(bytes.begin(), bytes.end(), std::uint8_t{0});
  return bytes;
}

File parse_ok(const Bytes& bytes) {
  Result<File> file = File::parse(bytes, "test.gguf");
  EXPECT_TRUE(file.has_value()) << (file ? "" : file.error().message);
  return file ? *std::move(file) : File();
}

TEST(File, GivesEveryScalarTypeBack) {
  GgufWriter writer;
  writer.add_uint8("u8", 255);
  writer.add_int8("i8", -128);
  writer.add_uint16("u16", 65535);
  writer.add_int16("i16", -32768);
  writer.add_uint32("u32", 4294967295u);
  writer.add_int32("i32", std::numeric_limits<std::int32_t>::min());
  writer.add_uint64("u64", 1ull << 40);
  writer.add_int64("i64", std::numeric_limits<std::int64_t>::min());
  writer.add_float32("f32", 0.5f);
  writer.add_float64("f64", 1e300);
  writer.add_bool("yes", true);
  writer.add_bool("no", false);
  writer.add_string("text", "hello");
  const Bytes bytes = writer.build();
  const File file = parse_ok(bytes);
  EXPECT_EQ(file.version(), 3u);
  EXPECT_EQ(file.alignment(), 32u);
  ASSERT_EQ(file.metadata().size(), 13u);
  EXPECT_EQ(file.metadata()[0].key, "u8");
  EXPECT_EQ(file.metadata()[12].key, "text");
  EXPECT_EQ(*file.get_int("u8"), 255);
  EXPECT_EQ(*file.get_int("i8"), -128);
  EXPECT_EQ(*file.get_int("u16"), 65535);
  EXPECT_EQ(*file.get_int("i16"), -32768);
  EXPECT_EQ(*file.get_int("u32"), 4294967295);
  EXPECT_EQ(*file.get_int("i32"), std::numeric_limits<std::int32_t>::min());
  EXPECT_EQ(*file.get_int("u64"), std::int64_t{1} << 40);
  EXPECT_EQ(*file.get_int("i64"), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(*file.get_double("f32"), 0.5);
  EXPECT_EQ(*file.get_double("f64"), 1e300);
  EXPECT_EQ(*file.get_double("i8"), -128.0);
  EXPECT_EQ(*file.get_double("u16"), 65535.0);
  EXPECT_EQ(*file.get_bool("yes"), true);
  EXPECT_EQ(*file.get_bool("no"), false);
  EXPECT_EQ(*file.get_string("text"), "hello");
}

TEST(File, StringsAreViewsIntoTheFile) {
  GgufWriter writer;
  writer.add_string("text", "hello");
  writer.add_string_array("words", {"a", "", "long enough to leave any small buffer"});
  const Bytes bytes = writer.build();
  const File file = parse_ok(bytes);
  const auto inside = [&](std::string_view text) {
    const auto* begin = reinterpret_cast<const std::uint8_t*>(text.data());
    return begin >= bytes.data() && begin + text.size() <= bytes.data() + bytes.size();
  };
  EXPECT_TRUE(inside(**file.get_string("text")));
  const Array* words = *file.get_array("words");
  ASSERT_NE(words, nullptr);
  ASSERT_EQ(words->size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(inside(words->string_at(i)));
  EXPECT_EQ(words->string_at(0), "a");
  EXPECT_EQ(words->string_at(1), "");
  EXPECT_EQ(words->string_at(2), "long enough to leave any small buffer");
}

TEST(File, AbsentKeysAreNoError) {
  const Bytes bytes = GgufWriter().build();
  const File file = parse_ok(bytes);
  EXPECT_EQ(file.find("x"), nullptr);
  EXPECT_EQ(*file.get_int("x"), std::nullopt);
  EXPECT_EQ(*file.get_double("x"), std::nullopt);
  EXPECT_EQ(*file.get_bool("x"), std::nullopt);
  EXPECT_EQ(*file.get_string("x"), std::nullopt);
  EXPECT_EQ(*file.get_array("x"), nullptr);
  EXPECT_EQ(file.tensor("x"), nullptr);
}

template <class T>
void expect_error(const Result<T>& result, const std::string& part) {
  ASSERT_FALSE(result.has_value()) << "want an error with '" << part << "'";
  EXPECT_EQ(result.error().code, ErrorCode::kInvalidModel);
  EXPECT_NE(result.error().message.find(part), std::string::npos) << result.error().message;
}

TEST(File, WrongTypesAreErrorsThatNameKeyAndTypes) {
  GgufWriter writer;
  writer.add_string("text", "1");
  writer.add_float32("f32", 1.0f);
  writer.add_bool("flag", true);
  writer.add_uint32("u32", 1);
  writer.add_uint64("huge", 1ull << 63);
  const Bytes bytes = writer.build();
  const File file = parse_ok(bytes);
  expect_error(file.get_int("text"), "key 'text' has the wrong type; got string, want an integer");
  expect_error(file.get_int("f32"), "got float32, want an integer");
  expect_error(file.get_int("flag"), "got bool, want an integer");
  expect_error(file.get_int("huge"), "got 9223372036854775808, want at most 9223372036854775807");
  expect_error(file.get_double("text"), "got string, want a number");
  expect_error(file.get_double("flag"), "got bool, want a number");
  expect_error(file.get_bool("u32"), "got uint32, want a bool");
  expect_error(file.get_string("u32"), "got uint32, want a string");
  expect_error(file.get_array("u32"), "got uint32, want an array");
  EXPECT_EQ(*file.get_double("huge"), 9223372036854775808.0);
}

template <class T>
void expect_integers(const std::vector<T>& values, ValueType type) {
  GgufWriter writer;
  writer.add_uint8("odd", 1);  // so that elements are not aligned
  writer.add_array("values", values);
  const Bytes bytes = writer.build();
  const File file = parse_ok(bytes);
  const Array* array = *file.get_array("values");
  ASSERT_NE(array, nullptr);
  EXPECT_EQ(array->element_type(), type);
  EXPECT_TRUE(array->is_integer());
  EXPECT_TRUE(array->is_number());
  ASSERT_EQ(array->size(), values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(array->int_at(i), static_cast<std::int64_t>(values[i]));
    EXPECT_EQ(array->double_at(i), static_cast<double>(values[i]));
  }
}

TEST(File, ArraysOfIntegersOfEveryType) {
  expect_integers<std::uint8_t>({0, 1, 255}, ValueType::kUint8);
  expect_integers<std::int8_t>({0, -1, 127, -128}, ValueType::kInt8);
  expect_integers<std::uint16_t>({0, 1, 65535}, ValueType::kUint16);
  expect_integers<std::int16_t>({0, -1, -32768}, ValueType::kInt16);
  expect_integers<std::uint32_t>({0, 1, 4294967295u}, ValueType::kUint32);
  expect_integers<std::int32_t>({0, -1, std::numeric_limits<std::int32_t>::min()},
                                ValueType::kInt32);
  expect_integers<std::uint64_t>({0, 1, 1ull << 62}, ValueType::kUint64);
  expect_integers<std::int64_t>({0, -1, std::numeric_limits<std::int64_t>::min()},
                                ValueType::kInt64);
}

TEST(File, ArraysOfOtherTypes) {
  GgufWriter writer;
  writer.add_array<float>("f32", {0.5f, -2.0f, std::numeric_limits<float>::quiet_NaN()});
  writer.add_array<double>("f64", {1e300});
  writer.add_bool_array("flags", {true, false, true});
  writer.add_array<std::uint64_t>("huge", {std::numeric_limits<std::uint64_t>::max()});
  writer.add_string_array("none", {});
  const Bytes bytes = writer.build();
  const File file = parse_ok(bytes);
  const Array& f32 = **file.get_array("f32");
  EXPECT_FALSE(f32.is_integer());
  EXPECT_TRUE(f32.is_number());
  EXPECT_EQ(f32.double_at(0), 0.5);
  EXPECT_EQ(f32.double_at(1), -2.0);
  EXPECT_TRUE(std::isnan(f32.double_at(2)));
  EXPECT_EQ((*file.get_array("f64"))->double_at(0), 1e300);
  const Array& flags = **file.get_array("flags");
  EXPECT_TRUE(flags.is_integer());
  EXPECT_EQ(flags.int_at(0), 1);
  EXPECT_EQ(flags.int_at(1), 0);
  const Array& huge = **file.get_array("huge");
  EXPECT_EQ(huge.int_at(0), std::numeric_limits<std::int64_t>::max()) << "saturates";
  EXPECT_EQ(huge.double_at(0), 18446744073709551616.0);
  const Array& none = **file.get_array("none");
  EXPECT_EQ(none.size(), 0u);
  EXPECT_FALSE(none.is_number());
}

TEST(FileDeathTest, AnArrayIndexPastTheEndIsOurBug) {
  GgufWriter writer;
  writer.add_array<std::int32_t>("values", {1, 2});
  writer.add_string_array("words", {"a"});
  const Bytes bytes = writer.build();
  const File file = parse_ok(bytes);
  EXPECT_DEATH((void)(*file.get_array("values"))->int_at(2), "index < size_");
  EXPECT_DEATH((void)(*file.get_array("words"))->string_at(1), "index < size_");
}

TEST(File, TensorsHaveShapeAndBytes) {
  GgufWriter writer;
  writer.add_tensor("a", TensorType::kF32, {3, 5}, counting(60));
  writer.add_tensor("b", TensorType::kQ4_0, {64, 2, 3}, counting(216));
  writer.add_tensor("c", TensorType::kI8, {7}, counting(7));
  const Bytes bytes = writer.build();
  const File file = parse_ok(bytes);
  ASSERT_EQ(file.tensors().size(), 3u);
  const TensorInfo* b = file.tensor("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b, &file.tensors()[1]);
  EXPECT_EQ(b->type, TensorType::kQ4_0);
  EXPECT_EQ(b->n_dims, 3u);
  EXPECT_EQ(b->shape, (std::array<std::uint64_t, 4>{64, 2, 3, 1}));
  EXPECT_EQ(b->n_values(), 384u);
  EXPECT_EQ(b->file_offset % 32, 0u);
  EXPECT_EQ(b->data.data(), bytes.data() + b->file_offset);
  EXPECT_EQ(Bytes(b->data.begin(), b->data.end()), counting(216));
  EXPECT_EQ(file.tensor("c")->data.size(), 7u);
  EXPECT_EQ(file.tensor("c")->data.back(), 6);
}

TEST(File, TensorsMayLieInAnyOrder) {
  GgufWriter writer;
  GgufWriter::RawTensor first{.name = "first", .shape = {8}, .offset = 32, .data = counting(32)};
  GgufWriter::RawTensor second{.name = "second", .shape = {8}, .offset = 0, .data = counting(32)};
  writer.raw_tensor(first);
  writer.raw_tensor(second);
  const Bytes bytes = writer.build();
  const File file = parse_ok(bytes);
  EXPECT_EQ(file.tensor("first")->file_offset, file.tensor("second")->file_offset + 32);
}

TEST(File, AlignmentIsTheFilesOwn) {
  for (const std::uint32_t alignment : {1u, 2u, 64u, 4096u, 1u << 20}) {
    GgufWriter writer;
    writer.set_alignment(alignment);
    writer.add_tensor("a", TensorType::kI8, {3}, counting(3));
    writer.add_tensor("b", TensorType::kI8, {3}, counting(3));
    const Bytes bytes = writer.build();
    const File file = parse_ok(bytes);
    EXPECT_EQ(file.alignment(), alignment);
    ASSERT_NE(file.tensor("b"), nullptr);
    EXPECT_EQ(file.tensor("b")->file_offset % alignment, 0u);
    EXPECT_EQ(file.tensor("b")->data[2], 2);
  }
}

TEST(File, Version2IsRead) {
  GgufWriter writer;
  writer.version = 2;
  writer.add_string("general.architecture", "llama");
  const Bytes bytes = writer.build();
  EXPECT_EQ(parse_ok(bytes).version(), 2u);
}

TEST(File, StaysWholeWhenMoved) {
  GgufWriter writer;
  writer.add_uint32("n", 7);
  writer.add_tensor("a", TensorType::kI8, {3}, counting(3));
  const Bytes bytes = writer.build();
  File first = parse_ok(bytes);
  const File second = std::move(first);
  EXPECT_EQ(*second.get_int("n"), 7);
  EXPECT_NE(second.tensor("a"), nullptr);
}

/// Serves one buffer as the mapping of every path and notes what is dropped.
class MemoryEnv final : public Env {
 public:
  struct Drop {
    std::uint64_t offset;
    std::uint64_t size;
  };
  explicit MemoryEnv(Bytes bytes) : bytes_(std::move(bytes)) {}
  Result<std::unique_ptr<FileMapping>> map_file(const std::string& path) override {
    if (path == "absent") return Error{ErrorCode::kNotFound, "absent: cannot open"};
    return std::unique_ptr<FileMapping>(std::make_unique<Mapping>(this));
  }
  Result<std::string> read_file(const std::string&, std::uint64_t) override {
    return Error{ErrorCode::kIo, "not used"};
  }
  Status write_file_atomic(const std::string&, std::span<const std::uint8_t>) override {
    return Error{ErrorCode::kIo, "not used"};
  }
  std::vector<Drop> drops;

 private:
  class Mapping final : public FileMapping {
   public:
    explicit Mapping(MemoryEnv* env) : env_(env) {}
    std::span<const std::uint8_t> bytes() const override { return env_->bytes_; }
    void drop(std::uint64_t offset, std::uint64_t size) override {
      env_->drops.push_back({offset, size});
    }

   private:
    MemoryEnv* env_;
  };
  Bytes bytes_;
};

TEST(File, OpenMapsAndDropPassesTheTensorsRange) {
  GgufWriter writer;
  writer.add_tensor("a", TensorType::kF32, {8}, counting(32));
  MemoryEnv env(writer.build());
  Result<File> file = File::open(env, "model.gguf");
  ASSERT_TRUE(file.has_value()) << file.error().message;
  EXPECT_EQ(file->name(), "model.gguf");
  const TensorInfo& tensor = *file->tensor("a");
  file->drop(tensor);
  ASSERT_EQ(env.drops.size(), 1u);
  EXPECT_EQ(env.drops[0].offset, tensor.file_offset);
  EXPECT_EQ(env.drops[0].size, 32u);
}

TEST(File, DropOnAParsedFileDoesNothing) {
  GgufWriter writer;
  writer.add_tensor("a", TensorType::kF32, {8}, counting(32));
  const Bytes bytes = writer.build();
  const File file = parse_ok(bytes);
  file.drop(*file.tensor("a"));
  EXPECT_EQ(file.tensor("a")->data[31], 31);
}

TEST(File, OpenPassesErrorsOfTheFileSystemOn) {
  MemoryEnv env(Bytes{});
  EXPECT_EQ(File::open(env, "absent").error().code, ErrorCode::kNotFound);
  expect_error(File::open(env, "empty.gguf"), "gguf: empty.gguf: file ends inside the magic");
}

TEST(TypeTraits, CoverEveryNameAndNothingElse) {
  int n_types = 0;
  for (std::uint32_t number = 0; number < 64; ++number) {
    const TypeTraits* traits = type_traits(static_cast<TensorType>(number));
    if (traits == nullptr) continue;
    ++n_types;
    EXPECT_FALSE(traits->name.empty());
    EXPECT_GT(traits->block_values, 0u);
    EXPECT_GT(traits->block_bytes, 0u);
    EXPECT_EQ(retired_type_name(number), "");
  }
  EXPECT_EQ(n_types, 32);
  for (const std::uint32_t number : {4u, 5u, 31u, 32u, 33u, 36u, 37u, 38u}) {
    EXPECT_EQ(type_traits(static_cast<TensorType>(number)), nullptr);
    EXPECT_NE(retired_type_name(number), "");
  }
  EXPECT_EQ(type_traits(static_cast<TensorType>(0xffffffffu)), nullptr);
  EXPECT_EQ(type_traits(TensorType::kQ6_K)->block_bytes, 210u);
  EXPECT_EQ(value_type_name(static_cast<ValueType>(13)), "unknown");
  EXPECT_EQ(value_type_bytes(static_cast<ValueType>(13)), 0u);
}

}  // namespace
}  // namespace kvasir::gguf
