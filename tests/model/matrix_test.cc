// Packing and dequantization: exact for every GGUF type.
#include "model/matrix.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "support/random_weights.h"

namespace kvasir::model {
namespace {

using gguf::TensorType;

std::string name_of(TensorType type) { return std::string(gguf::type_traits(type)->name); }

Result<Matrix> pack(std::initializer_list<const gguf::TensorInfo*> tensors, int n_threads = 1) {
  ThreadPool pool(n_threads);
  return Matrix::pack(gguf::File(), {tensors.begin(), tensors.size()}, pool);
}

std::vector<float> dequantized(const OwnedTensor& tensor) {
  std::vector<float> values(tensor.info.n_values());
  EXPECT_TRUE(dequantize(tensor.info.type, tensor.bytes, values.size(), values.data()));
  return values;
}

TEST(Dequantize, MatchesTheGgufPackageBitForBit) {
  std::ifstream file(KVASIR_SOURCE_DIR "/tests/data/dequant_vectors.bin", std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  ASSERT_GE(bytes.size(), 8u);
  ASSERT_EQ(std::memcmp(bytes.data(), "DQV1", 4), 0);
  std::size_t at = 4;
  const auto read_u32 = [&] {
    std::uint32_t value = 0;
    std::memcpy(&value, bytes.data() + at, 4);
    at += 4;
    return value;
  };
  const std::uint32_t n_entries = read_u32();
  EXPECT_EQ(n_entries, kWeightTypes.size());
  for (std::uint32_t i = 0; i < n_entries; ++i) {
    const TensorType type{read_u32()};
    const std::uint32_t n_values = read_u32(), n_bytes = read_u32();
    ASSERT_LE(at + n_bytes + 4 * n_values, bytes.size());
    const std::span data(reinterpret_cast<const std::uint8_t*>(bytes.data()) + at, n_bytes);
    std::vector<float> want(n_values), got(n_values);
    std::memcpy(want.data(), bytes.data() + at + n_bytes, 4 * n_values);
    at += n_bytes + 4 * n_values;
    ASSERT_TRUE(dequantize(type, data, n_values, got.data())) << name_of(type);
    EXPECT_EQ(std::memcmp(want.data(), got.data(), 4 * n_values), 0) << name_of(type);
  }
}

TEST(Matrix, RowsDequantizeExactlyAsTheFileDoes) {
  for (const TensorType type : kWeightTypes) {
    for (int n_rows = 1; n_rows <= 64; n_rows += n_rows < 33 ? 1 : 31) {
      const int n_cols = gguf::type_traits(type)->block_values == 256 ? 512 : 96;
      const OwnedTensor tensor =
          random_weights(type, n_rows, n_cols, 7u + static_cast<unsigned>(n_rows));
      const Result<Matrix> matrix = pack({&tensor.info}, 1 + n_rows % 3);
      ASSERT_TRUE(matrix) << matrix.error().message;
      EXPECT_EQ(matrix->n_rows(), n_rows);
      EXPECT_EQ(matrix->n_cols(), n_cols);
      EXPECT_EQ(matrix->packed_bytes(), packed_bytes(matrix->format(), n_rows, n_cols));
      const std::vector<float> want = dequantized(tensor);
      std::vector<float> row(static_cast<std::size_t>(n_cols));
      for (int r = 0; r < n_rows; ++r) {
        matrix->dequantize_row(r, row.data());
        ASSERT_EQ(std::memcmp(row.data(), want.data() + r * n_cols, row.size() * 4), 0)
            << name_of(type) << " row " << r << " of " << n_rows;
      }
    }
  }
}

TEST(Matrix, StacksTensorsThatShareAPackedFormat) {
  // Q5_0 and Q8_0 differ in the file and agree when packed; 20 rows end within a block of 16.
  const OwnedTensor a = random_weights(TensorType::kQ5_0, 20, 64, 1);
  const OwnedTensor b = random_weights(TensorType::kQ8_0, 13, 64, 2);
  const Result<Matrix> matrix = pack({&a.info, &b.info}, 2);
  ASSERT_TRUE(matrix) << matrix.error().message;
  ASSERT_EQ(matrix->n_rows(), 33);
  std::vector<float> want = dequantized(a);
  const std::vector<float> rest = dequantized(b);
  want.insert(want.end(), rest.begin(), rest.end());
  std::vector<float> row(64);
  for (int r = 0; r < 33; ++r) {
    matrix->dequantize_row(r, row.data());
    ASSERT_EQ(std::memcmp(row.data(), want.data() + r * 64, 64 * 4), 0) << "row " << r;
  }
}

TEST(Matrix, FloatFormatsTakeAnyNumberOfColumns) {
  const OwnedTensor tensor = random_weights(TensorType::kF32, 5, 172, 3);
  const Result<Matrix> matrix = pack({&tensor.info});
  ASSERT_TRUE(matrix);
  std::vector<float> row(172);
  matrix->dequantize_row(4, row.data());
  EXPECT_EQ(std::memcmp(row.data(), dequantized(tensor).data() + 4 * 172, 172 * 4), 0);
}

TEST(Matrix, RefusesWhatItCannotPackByName) {
  OwnedTensor tensor = random_weights(TensorType::kQ4_1, 4, 64, 4);
  const OwnedTensor narrow = random_weights(TensorType::kQ4_1, 4, 32, 4);
  const OwnedTensor other = random_weights(TensorType::kQ4_0, 4, 64, 4);
  EXPECT_EQ(pack({&tensor.info, &narrow.info}).error().code, ErrorCode::kInvalidModel);
  const Error mixed = pack({&tensor.info, &other.info}).error();
  EXPECT_EQ(mixed.code, ErrorCode::kInvalidModel);
  EXPECT_NE(mixed.message.find("w4 g32 f16 min"), std::string::npos) << mixed.message;

  tensor.info.shape = {64, 2, 2, 1};
  EXPECT_EQ(pack({&tensor.info}).error().code, ErrorCode::kInvalidModel);
  tensor.info.shape = {48, 4, 1, 1};  // one block and a half
  EXPECT_EQ(pack({&tensor.info}).error().code, ErrorCode::kInvalidModel);
  tensor.info.shape = {64, 5, 1, 1};  // more rows than bytes
  EXPECT_EQ(pack({&tensor.info}).error().code, ErrorCode::kInvalidModel);
  tensor.info.shape = {64, 0, 1, 1};
  EXPECT_EQ(pack({&tensor.info}).error().code, ErrorCode::kInvalidModel);

  tensor.info.shape = {64, 4, 1, 1};
  tensor.info.type = TensorType::kIQ2_XXS;
  const Error unsupported = pack({&tensor.info}).error();
  EXPECT_EQ(unsupported.code, ErrorCode::kUnsupported);
  EXPECT_NE(unsupported.message.find("IQ2_XXS"), std::string::npos) << unsupported.message;
  float value;
  EXPECT_EQ(dequantize(TensorType::kMXFP4, {}, 0, &value).error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace kvasir::model
