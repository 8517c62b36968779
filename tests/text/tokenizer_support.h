// What the tokenizer tests share: where the data is, how to load a vocabulary, how to read vectors.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/env.h"
#include "gguf/file.h"
#include "support/gguf_writer.h"
#include "support/shared_data.h"
#include "text/tokenizer.h"

namespace kvasir::testing {

using Ids = std::vector<TokenId>;

inline std::filesystem::path own_data(std::string_view name) {
  return std::filesystem::path(KVASIR_SOURCE_DIR) / "tests" / "data" / name;
}

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

/// A tokenizer of a file on disk; the file itself is closed again.
inline std::unique_ptr<text::Tokenizer> load_tokenizer(const std::filesystem::path& path) {
  Result<gguf::File> file = gguf::File::open(Env::posix(), path.string());
  if (!file) {
    ADD_FAILURE() << path << ": " << file.error().message;
    return nullptr;
  }
  Result<text::Tokenizer> tokenizer = text::Tokenizer::load(*file);
  if (!tokenizer) {
    ADD_FAILURE() << path << ": " << tokenizer.error().message;
    return nullptr;
  }
  return std::make_unique<text::Tokenizer>(*std::move(tokenizer));
}

inline Result<text::Tokenizer> load_built(const GgufWriter& writer) {
  const std::vector<std::uint8_t> bytes = writer.build();
  Result<gguf::File> file = gguf::File::parse(bytes, "built");
  if (!file) return file.error();
  return text::Tokenizer::load(*file);
}

inline Ids plain_ids(const text::Tokenizer& tokenizer, std::string_view text) {
  return tokenizer.encode(text, text::AddSpecial::kNo, text::ParseSpecial::kNo);
}

inline std::string decode(const text::Tokenizer& tokenizer, const Ids& ids) {
  text::StreamDecoder decoder(tokenizer);
  std::string out;
  for (const TokenId id : ids) out += decoder.push(id);
  return out + decoder.finish();
}

/// The bytes of the pieces, whether they are UTF-8 or not, without the space SPM puts first.
inline std::string decode_bytes(const text::Tokenizer& tokenizer, const Ids& ids) {
  std::string out;
  for (const TokenId id : ids) out += tokenizer.piece(id);
  if (tokenizer.strips_leading_space() && !out.empty() && out.front() == ' ') out.erase(0, 1);
  return out;
}

struct Vector {
  std::string text;
  Ids ids;
};

/// llama.cpp's format: texts separated by a line `__ggml_vocab_test__`, one line of ids for each.
inline std::vector<Vector> read_vectors(const std::filesystem::path& inp,
                                        const std::filesystem::path& out) {
  const std::string separator = "\n__ggml_vocab_test__\n";
  std::vector<Vector> vectors;
  const std::string texts = read_text(inp);
  for (std::size_t pos = 0; pos < texts.size();) {
    const std::size_t end = std::min(texts.find(separator, pos), texts.size());
    vectors.push_back({texts.substr(pos, end - pos), {}});
    pos = end + separator.size();
  }
  std::istringstream lines(read_text(out));
  std::string line;
  std::size_t n_lines = 0;
  for (; std::getline(lines, line); ++n_lines) {
    if (n_lines >= vectors.size()) break;
    std::istringstream numbers(line);
    vectors[n_lines].ids.assign(std::istream_iterator<TokenId>(numbers), {});
  }
  EXPECT_EQ(n_lines, vectors.size()) << out << ": as many lines as texts";
  return vectors;
}

/// A text as it can be printed: bytes outside ASCII and control characters in hex.
inline std::string shown(std::string_view text) {
  std::string out;
  char buffer[8];
  for (const char c : text.substr(0, 200)) {
    if (c >= ' ' && c <= '~') {
      out.push_back(c);
    } else {
      std::snprintf(buffer, sizeof(buffer), "\\x%02X", static_cast<unsigned char>(c));
      out += buffer;
    }
  }
  return out;
}

inline void expect_vectors(const text::Tokenizer& tokenizer, const std::vector<Vector>& vectors) {
  ASSERT_FALSE(vectors.empty());
  for (const Vector& vector : vectors) {
    EXPECT_EQ(plain_ids(tokenizer, vector.text), vector.ids) << '"' << shown(vector.text) << '"';
  }
}

}  // namespace kvasir::testing
