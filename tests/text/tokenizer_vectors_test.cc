// Ids against those of llama.cpp and Hugging Face tokenizers.
#include <unistd.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "text/tokenizer_support.h"

namespace kvasir::testing {
namespace {

using nlohmann::json;
using text::AddSpecial;
using text::ParseSpecial;

std::unique_ptr<text::Tokenizer> smollm2() {
  return load_tokenizer(own_data("tokenizer_vectors/smollm2-vocab.gguf"));
}

std::vector<json> read_json_lines(const std::filesystem::path& path) {
  std::vector<json> out;
  std::istringstream lines(read_text(path));
  for (std::string line; std::getline(lines, line);) out.push_back(json::parse(line));
  EXPECT_FALSE(out.empty()) << path;
  return out;
}

/// The file behind a temporary name, removed at the end.
class TemporaryFile {
 public:
  TemporaryFile() : path_((std::filesystem::temp_directory_path() / "kvasir-XXXXXX").string()) {
    const int fd = mkstemp(path_.data());
    EXPECT_GE(fd, 0) << path_;
    if (fd >= 0) close(fd);
  }
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// What a command writes to its output; nullopt when it fails.
std::optional<std::string> output_of(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return std::nullopt;
  std::string out;
  char buffer[1 << 16];
  for (std::size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) out.append(buffer, n);
  return pclose(pipe) == 0 ? std::optional<std::string>(out) : std::nullopt;
}

TEST(SmolLm2, LlamaCppTexts) {
  const auto tokenizer = smollm2();
  ASSERT_NE(tokenizer, nullptr);
  expect_vectors(*tokenizer, read_vectors(own_data("tokenizer_vectors/smollm2.inp"),
                                          own_data("tokenizer_vectors/smollm2.out")));
}

TEST(SmolLm2, TextsOfAllKinds) {
  const auto tokenizer = smollm2();
  ASSERT_NE(tokenizer, nullptr);
  for (const json& line : read_json_lines(own_data("tokenizer_vectors/smollm2_vectors.jsonl"))) {
    const std::string text = line["text"];
    const Ids ids = plain_ids(*tokenizer, text);
    EXPECT_EQ(ids, line["ids"].get<Ids>()) << line["src"] << ": \"" << shown(text) << '"';
    EXPECT_EQ(decode(*tokenizer, ids), text);
  }
}

/// SmolLM2's vocabulary under another pre-tokenizer's name.
std::unique_ptr<text::Tokenizer> smollm2_as(const gguf::File& smollm2_file,
                                            const std::string& pre) {
  GgufWriter writer;
  writer.add_string("tokenizer.ggml.model", "gpt2");
  writer.add_string("tokenizer.ggml.pre", pre);
  for (const char* key : {"tokenizer.ggml.tokens", "tokenizer.ggml.merges"}) {
    const gguf::Array& array = **smollm2_file.get_array(key);
    std::vector<std::string> texts;
    for (std::size_t i = 0; i < array.size(); ++i) texts.emplace_back(array.string_at(i));
    writer.add_string_array(key, texts);
  }
  const gguf::Array& array = **smollm2_file.get_array("tokenizer.ggml.token_type");
  std::vector<std::int32_t> types;
  for (std::size_t i = 0; i < array.size(); ++i) {
    types.push_back(static_cast<std::int32_t>(array.int_at(i)));
  }
  writer.add_array("tokenizer.ggml.token_type", types);
  Result<text::Tokenizer> tokenizer = load_built(writer);
  if (!tokenizer) {
    ADD_FAILURE() << pre << ": " << tokenizer.error().message;
    return nullptr;
  }
  return std::make_unique<text::Tokenizer>(*std::move(tokenizer));
}

TEST(SmolLm2, OtherPreTokenizersAsLlamaCpp) {
  const Result<gguf::File> file =
      gguf::File::open(Env::posix(), own_data("tokenizer_vectors/smollm2-vocab.gguf").string());
  ASSERT_TRUE(file.has_value());
  std::map<std::string, std::unique_ptr<text::Tokenizer>> tokenizers;
  const auto path = own_data("tokenizer_vectors/smollm2_pretokenizers.jsonl");
  for (const json& line : read_json_lines(path)) {
    const std::string text = line["text"];
    for (const json& group : line["ids"]) {
      for (const std::string pre : group["pre"]) {
        auto& tokenizer = tokenizers[pre];
        if (tokenizer == nullptr) tokenizer = smollm2_as(*file, pre);
        ASSERT_NE(tokenizer, nullptr);
        EXPECT_EQ(plain_ids(*tokenizer, text), group["ids"].get<Ids>())
            << pre << ": \"" << shown(text) << '"';
      }
    }
  }
  EXPECT_EQ(tokenizers.size(), 11u);
}

TEST(SmolLm2, ChatPromptsWithSpecialTokens) {
  const auto tokenizer = smollm2();
  ASSERT_NE(tokenizer, nullptr);
  for (const json& line : read_json_lines(own_data("tokenizer_vectors/smollm2_chat.jsonl"))) {
    const std::string prompt = line["prompt"];
    EXPECT_EQ(tokenizer->encode(prompt, AddSpecial::kYes, ParseSpecial::kYes),
              line["ids"].get<Ids>())
        << shown(prompt);
  }
}

TEST(SmolLm2, WholeDocuments) {
  const auto tokenizer = smollm2();
  ASSERT_NE(tokenizer, nullptr);
  int n_skipped = 0;
  for (const json& line : read_json_lines(own_data("tokenizer_vectors/smollm2_documents.jsonl"))) {
    const std::string name = line["file"];
    std::filesystem::path path = own_data(name);
    if (!std::filesystem::exists(path)) path = shared_data(name);
    if (!std::filesystem::exists(path)) {
      std::printf("skipped: %s is not there\n", name.c_str());
      ++n_skipped;
      continue;
    }
    const std::string text = read_text(path);
    if (text.size() != line["bytes"].get<std::size_t>()) {
      std::printf("skipped: %s is another edition (%zu B)\n", name.c_str(), text.size());
      ++n_skipped;
      continue;
    }
    const Ids ids = plain_ids(*tokenizer, text);
    EXPECT_EQ(ids.size(), line["tokens"].get<std::size_t>()) << name;
    ASSERT_GE(ids.size(), 16u) << name;
    EXPECT_EQ(Ids(ids.begin(), ids.begin() + 16), line["first16"].get<Ids>()) << name;
    EXPECT_EQ(Ids(ids.end() - 8, ids.end()), line["last8"].get<Ids>()) << name;
    const TemporaryFile file;
    std::ofstream(file.path(), std::ios::binary)
        .write(reinterpret_cast<const char*>(ids.data()),
               static_cast<std::streamsize>(ids.size() * sizeof(TokenId)));
    const auto digest = output_of("sha256sum < " + file.path());
    if (!digest) {
      std::printf("%s: ids not compared by digest: sha256sum is missing\n", name.c_str());
      continue;
    }
    EXPECT_EQ(digest->substr(0, 64), line["sha256_u32le"].get<std::string>()) << name;
  }
  if (n_skipped > 0) std::printf("%d documents skipped\n", n_skipped);
}

TEST(SmolLm2, SpecialTokens) {
  const auto tokenizer = smollm2();
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->vocab_size(), 49152);
  EXPECT_FALSE(tokenizer->add_bos());
  EXPECT_FALSE(tokenizer->add_eos());
  EXPECT_FALSE(tokenizer->strips_leading_space());
  const auto end = tokenizer->special_token("<|im_end|>");
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end, tokenizer->eos());
  EXPECT_TRUE(tokenizer->is_eog(*end));
  EXPECT_TRUE(tokenizer->is_control(*end));
  EXPECT_TRUE(tokenizer->is_eog(*tokenizer->special_token("<|endoftext|>")));
  EXPECT_FALSE(tokenizer->is_eog(*tokenizer->special_token("<|im_start|>")));
  EXPECT_EQ(tokenizer->special_token("the"), std::nullopt);
  EXPECT_EQ(tokenizer->special_token(""), std::nullopt);
  EXPECT_FALSE(tokenizer->is_eog(-1));
  EXPECT_FALSE(tokenizer->is_control(1 << 30));
  EXPECT_EQ(tokenizer->piece(*end), "");
  EXPECT_EQ(tokenizer->piece(*end, ParseSpecial::kYes), "<|im_end|>");
  // As plain text it stays text.
  const Ids plain = plain_ids(*tokenizer, "<|im_end|>");
  EXPECT_GT(plain.size(), 1u);
  EXPECT_EQ(decode(*tokenizer, plain), "<|im_end|>");
}

TEST(SmolLm2, BytesWithoutATokenAreDropped) {
  const auto tokenizer = smollm2();
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(plain_ids(*tokenizer, "\x04"), Ids{});
  EXPECT_EQ(decode(*tokenizer, plain_ids(*tokenizer,
                                         "a\x04"
                                         "b\xFF")),
            "ab");
}

TEST(SmolLm2, InvalidUtf8IsTokenizedByteByByte) {
  const auto tokenizer = smollm2();
  ASSERT_NE(tokenizer, nullptr);
  // A lone continuation byte, a cut sequence, a surrogate, an overlong slash's tail.
  for (const std::string_view text :
       {"a\x80z", "\xE2\x96", "\xED\xA0\x80", "x\xAF", "\xF0\x9F\x98 "}) {
    const Ids ids = plain_ids(*tokenizer, text);
    EXPECT_EQ(decode_bytes(*tokenizer, ids), text) << shown(text);
  }
}

TEST(Stories260K, LlamaCppTexts) {
  const auto tokenizer = load_tokenizer(own_data("stories260k/stories260K.gguf"));
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_TRUE(tokenizer->add_bos());
  EXPECT_TRUE(tokenizer->strips_leading_space());
  const json reference = json::parse(read_text(own_data("stories260k/stories260K.reference.json")));
  const json& texts = reference["tokenize_with_bos_llama_cpp"];
  EXPECT_EQ(texts.size(), 4u);
  for (const auto& [text, ids] : texts.items()) {
    EXPECT_EQ(tokenizer->encode(text, AddSpecial::kYes, ParseSpecial::kNo), ids.get<Ids>())
        << shown(text);
    EXPECT_EQ(decode(*tokenizer, ids.get<Ids>()), text);
  }
}

TEST(Stories260K, GreedyIdsDecodeToTheText) {
  const auto tokenizer = load_tokenizer(own_data("stories260k/stories260K.gguf"));
  ASSERT_NE(tokenizer, nullptr);
  const json reference = json::parse(read_text(own_data("stories260k/stories260K.reference.json")));
  const std::string text = reference["text"];
  EXPECT_EQ(decode(*tokenizer, reference["ids"].get<Ids>()), text);
}

/// The vocabularies of llama.cpp's own tests, which the repository does not carry.
class LlamaCppVocabulary : public ::testing::TestWithParam<const char*> {};

TEST_P(LlamaCppVocabulary, Vectors) {
  const std::string name = std::string("tokenizer_vectors/ggml-vocab-") + GetParam() + ".gguf";
  const std::filesystem::path plain = shared_data(name);
  const std::filesystem::path inp = shared_data(name + ".inp");
  const std::filesystem::path out = shared_data(name + ".out");
  const std::filesystem::path packed = shared_data(name + ".xz");
  if (!std::filesystem::exists(inp)) GTEST_SKIP() << inp << " is not there";
  const TemporaryFile unpacked;
  std::filesystem::path vocabulary = plain;
  if (!std::filesystem::exists(plain)) {
    if (!std::filesystem::exists(packed)) {
      GTEST_SKIP() << "the vocabulary of " << name
                   << " is not there (marked missing in its README)";
    }
    const auto bytes = output_of("xz -dk -c '" + packed.string() + "'");
    if (!bytes) GTEST_SKIP() << "cannot unpack " << packed << ": xz is missing or failed";
    std::ofstream(unpacked.path(), std::ios::binary)
        .write(bytes->data(), static_cast<std::streamsize>(bytes->size()));
    vocabulary = unpacked.path();
  }
  const auto tokenizer = load_tokenizer(vocabulary);
  ASSERT_NE(tokenizer, nullptr);
  expect_vectors(*tokenizer, read_vectors(inp, out));
}

INSTANTIATE_TEST_SUITE_P(All, LlamaCppVocabulary,
                         ::testing::Values("gpt-2", "starcoder", "falcon", "deepseek-coder",
                                           "llama-spm", "phi-3", "bert-bge", "qwen2", "llama-bpe",
                                           "command-r", "deepseek-llm"),
                         [](const auto& test) {
                           std::string name = test.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace kvasir::testing
