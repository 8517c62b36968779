// Tokenizer: hostile vocabularies, pathological texts, round trips.
#include "text/tokenizer.h"

#include <cmath>
#include <limits>
#include <random>

#include "text/tokenizer_support.h"
#include "text/unicode.h"

namespace kvasir::testing {
namespace {

using text::AddSpecial;
using text::ParseSpecial;

constexpr std::int32_t kNormal = 1;
constexpr std::int32_t kUnknown = 2;
constexpr std::int32_t kControl = 3;
constexpr std::int32_t kUserDefined = 4;
constexpr std::int32_t kByte = 6;

/// GPT-2's letter for a byte.
std::string byte_letter(int byte) {
  const auto printable = [](int b) {
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
  };
  int n_before = 0;
  for (int b = 0; b < byte; ++b) n_before += printable(b) ? 0 : 1;
  std::string out;
  text::append_utf8(&out, static_cast<char32_t>(printable(byte) ? byte : 0x100 + n_before));
  return out;
}

/// Every byte (ids 0..255), merges "a b", "ab c", "Gs a" (a space), and three special tokens.
struct BpeParts {
  std::vector<std::string> tokens;
  std::vector<std::int32_t> types;
  std::vector<std::string> merges{"a b", "ab c", "\xC4\xA0 a"};

  BpeParts() {
    for (int byte = 0; byte < 256; ++byte) add(byte_letter(byte), kNormal);
    add("ab", kNormal);   // 256
    add("abc", kNormal);  // 257
    add("\xC4\xA0"
        "a",
        kNormal);                       // 258
    add("<s>", kControl);               // 259
    add("<|im_end|>", kControl);        // 260
    add("<user>", kUserDefined);        // 261
    add("<user><more>", kUserDefined);  // 262
  }
  void add(std::string token, std::int32_t type) {
    tokens.push_back(std::move(token));
    types.push_back(type);
  }
  GgufWriter writer(std::string_view pre = "gpt-2") const {
    GgufWriter out;
    out.add_string("tokenizer.ggml.model", "gpt2");
    out.add_string("tokenizer.ggml.pre", pre);
    out.add_string_array("tokenizer.ggml.tokens", tokens);
    out.add_array("tokenizer.ggml.token_type", types);
    out.add_string_array("tokenizer.ggml.merges", merges);
    out.add_uint32("tokenizer.ggml.bos_token_id", 259);
    out.add_uint32("tokenizer.ggml.eos_token_id", 260);
    return out;
  }
};

constexpr char kSpace[] = "\xE2\x96\x81";

/// <unk> <s> </s>, 256 byte tokens (ids 3..258), then a few words with scores.
struct SpmParts {
  std::vector<std::string> tokens{"<unk>", "<s>", "</s>"};
  std::vector<std::int32_t> types{kUnknown, kControl, kControl};
  std::vector<float> scores{0, 0, 0};

  SpmParts() {
    char name[8];
    for (int byte = 0; byte < 256; ++byte) {
      std::snprintf(name, sizeof(name), "<0x%02X>", byte);
      add(name, kByte, 0);
    }
    add(kSpace, kNormal, -10);                    // 259
    add("a", kNormal, -11);                       // 260
    add("b", kNormal, -12);                       // 261
    add("ab", kNormal, -1);                       // 262
    add("ba", kNormal, -0.5f);                    // 263
    add(std::string(kSpace) + "a", kNormal, -2);  // 264
    add("<user>", kUserDefined, 0);               // 265
  }
  void add(std::string token, std::int32_t type, float score) {
    tokens.push_back(std::move(token));
    types.push_back(type);
    scores.push_back(score);
  }
  GgufWriter writer() const {
    GgufWriter out;
    out.add_string("tokenizer.ggml.model", "llama");
    out.add_string_array("tokenizer.ggml.tokens", tokens);
    out.add_array("tokenizer.ggml.token_type", types);
    out.add_array("tokenizer.ggml.scores", scores);
    return out;
  }
};

text::Tokenizer built(const GgufWriter& writer) {
  Result<text::Tokenizer> tokenizer = load_built(writer);
  EXPECT_TRUE(tokenizer.has_value()) << (tokenizer ? "" : tokenizer.error().message);
  if (!tokenizer) std::abort();
  return *std::move(tokenizer);
}

void expect_error(const GgufWriter& writer, ErrorCode code, std::string_view part) {
  const Result<text::Tokenizer> tokenizer = load_built(writer);
  ASSERT_FALSE(tokenizer.has_value()) << "wanted an error about " << part;
  EXPECT_EQ(tokenizer.error().code, code) << tokenizer.error().message;
  EXPECT_NE(tokenizer.error().message.find(part), std::string::npos) << tokenizer.error().message;
}

TEST(Bpe, MergesByRank) {
  const text::Tokenizer tokenizer = built(BpeParts().writer());
  EXPECT_EQ(plain_ids(tokenizer, "abc"), (Ids{257}));
  EXPECT_EQ(plain_ids(tokenizer, "abab"), (Ids{256, 256}));
  EXPECT_EQ(plain_ids(tokenizer, " abc"), (Ids{' ', 257}));  // "a b" ranks before " a"
  EXPECT_EQ(plain_ids(tokenizer, " ac"), (Ids{258, 'c'}));
  EXPECT_EQ(plain_ids(tokenizer, ""), Ids{});
}

TEST(Bpe, WholeWordsBeforeMergesWhereThePreTokenizerSaysSo) {
  BpeParts parts;
  parts.merges = {"b c"};
  parts.add("bc", kNormal);  // 263
  EXPECT_EQ(plain_ids(built(parts.writer("gpt-2")), "abc"), (Ids{'a', 263}));
  EXPECT_EQ(plain_ids(built(parts.writer("llama-bpe")), "abc"), (Ids{257}));
  EXPECT_EQ(plain_ids(built(parts.writer("llama-bpe")), " ab"), (Ids{' ', 'a', 'b'}));
}

TEST(Bpe, SpecialTokens) {
  const text::Tokenizer tokenizer = built(BpeParts().writer());
  // User-defined tokens are always parsed, the longest first; control tokens only on demand.
  EXPECT_EQ(plain_ids(tokenizer, "b<user>b"), (Ids{'b', 261, 'b'}));
  EXPECT_EQ(plain_ids(tokenizer, "<user><more><user><mor"), (Ids{262, 261, '<', 'm', 'o', 'r'}));
  EXPECT_EQ(plain_ids(tokenizer, "<s>"), (Ids{'<', 's', '>'}));
  EXPECT_EQ(tokenizer.encode("<s>b<|im_end|>", AddSpecial::kNo, ParseSpecial::kYes),
            (Ids{259, 'b', 260}));
  EXPECT_EQ(tokenizer.piece(261), "<user>");
  EXPECT_EQ(tokenizer.piece(259), "");
  EXPECT_EQ(tokenizer.piece(259, ParseSpecial::kYes), "<s>");
  EXPECT_EQ(tokenizer.special_token("<user>"), 261);
}

TEST(Bpe, AddedTokensAsTheFileSays) {
  const BpeParts parts;
  EXPECT_FALSE(built(parts.writer()).add_bos());
  EXPECT_TRUE(built(parts.writer("llama-bpe")).add_bos());
  GgufWriter writer = parts.writer();
  writer.add_bool("tokenizer.ggml.add_bos_token", true);
  writer.add_bool("tokenizer.ggml.add_eos_token", true);
  const text::Tokenizer both = built(writer);
  EXPECT_EQ(both.encode("b", AddSpecial::kYes, ParseSpecial::kNo), (Ids{259, 'b', 260}));
  EXPECT_EQ(both.encode("b", AddSpecial::kNo, ParseSpecial::kNo), (Ids{'b'}));
  writer = parts.writer("llama-bpe");
  writer.add_bool("tokenizer.ggml.add_bos_token", false);
  EXPECT_FALSE(built(writer).add_bos());
  writer = parts.writer("llama-bpe");
  writer.remove("tokenizer.ggml.bos_token_id");
  EXPECT_FALSE(built(writer).add_bos());
}

TEST(Bpe, TokensThatEndAGenerationAreKnownByName) {
  BpeParts parts;
  parts.add("<|eot_id|>", kNormal);     // 263
  parts.add("<end_of_turn>", kNormal);  // 264
  parts.add("<|end|>", kUserDefined);   // 265
  parts.add("<fim_prefix>", kNormal);   // 266
  const text::Tokenizer tokenizer = built(parts.writer());
  for (const TokenId id : {260, 263, 264, 265}) EXPECT_TRUE(tokenizer.is_eog(id)) << id;
  for (const TokenId id : {0, 259, 261, 266}) EXPECT_FALSE(tokenizer.is_eog(id)) << id;
  EXPECT_TRUE(tokenizer.is_control(263));
  EXPECT_TRUE(tokenizer.is_control(266));
  // With these two, <|end|> only ends a message.
  parts.add("<|return|>", kControl);
  parts.add("<|call|>", kControl);
  EXPECT_FALSE(built(parts.writer()).is_eog(265));
  GgufWriter writer = BpeParts().writer();
  writer.add_uint32("tokenizer.ggml.eot_token_id", 65);
  EXPECT_TRUE(built(writer).is_eog(65));
}

TEST(Spm, MergesByScore) {
  GgufWriter writer = SpmParts().writer();
  writer.add_bool("tokenizer.ggml.add_space_prefix", false);
  const text::Tokenizer tokenizer = built(writer);
  EXPECT_EQ(plain_ids(tokenizer, "ab"), (Ids{262}));
  EXPECT_EQ(plain_ids(tokenizer, "aba"), (Ids{260, 263}));  // "ba" scores higher
  EXPECT_EQ(plain_ids(tokenizer, "abab"), (Ids{260, 263, 261}));
  EXPECT_EQ(plain_ids(tokenizer, "a a"), (Ids{260, 264}));
  EXPECT_FALSE(tokenizer.strips_leading_space());
}

TEST(Spm, SpacePrefixAtTheStartAndAfterSpecialTokens) {
  const text::Tokenizer tokenizer = built(SpmParts().writer());
  EXPECT_TRUE(tokenizer.strips_leading_space());
  EXPECT_TRUE(tokenizer.add_bos());
  EXPECT_EQ(tokenizer.encode("a", AddSpecial::kYes, ParseSpecial::kNo), (Ids{1, 264}));
  EXPECT_EQ(plain_ids(tokenizer, "a<user>a"), (Ids{264, 265, 264}));
  EXPECT_EQ(plain_ids(tokenizer, ""), Ids{});
  EXPECT_EQ(decode(tokenizer, {1, 264, 264}), "a a");
}

TEST(Spm, BytesOfCharactersWithoutAToken) {
  const text::Tokenizer tokenizer = built(SpmParts().writer());
  EXPECT_EQ(plain_ids(tokenizer, "\xC3\xA9"), (Ids{259, 3 + 0xC3, 3 + 0xA9}));
  EXPECT_EQ(plain_ids(tokenizer, "\xFF"), (Ids{259, 3 + 0xFF}));
  EXPECT_EQ(tokenizer.piece(3 + 0xFF), "\xFF");
  // The name of a byte token, or of a control token, is text like any other.
  EXPECT_EQ(decode(tokenizer, plain_ids(tokenizer, "<0x0A></s>")), "<0x0A></s>");
}

TEST(Spm, UnknownTokenWhereThereAreNoBytes) {
  GgufWriter writer;
  writer.add_string("tokenizer.ggml.model", "llama");
  writer.add_string_array("tokenizer.ggml.tokens", {"<unk>", "<s>", "</s>", kSpace, "a"});
  writer.add_array<std::int32_t>("tokenizer.ggml.token_type", {2, 3, 3, 1, 1});
  writer.add_array<float>("tokenizer.ggml.scores", {0, 0, 0, -1, -2});
  EXPECT_EQ(plain_ids(built(writer),
                      "a\xC3\xA9"
                      "a"),
            (Ids{3, 4, 0, 4}));
}

TEST(WordPiece, LowerCaseAccentsPunctuationIdeographs) {
  GgufWriter writer;
  writer.add_string("tokenizer.ggml.model", "bert");
  std::vector<std::string> tokens{"[CLS]", "[SEP]", "[UNK]"};
  for (const char* word : {"hello", "eu", ",", "\xE4\xB8\xAD"})
    tokens.push_back(std::string(kSpace) + word);
  tokens.push_back("s");  // 7: a continuation
  writer.add_string_array("tokenizer.ggml.tokens", tokens);
  writer.add_array<std::int32_t>("tokenizer.ggml.token_type", {3, 3, 2, 1, 1, 1, 1, 1});
  writer.add_uint32("tokenizer.ggml.cls_token_id", 0);
  writer.add_uint32("tokenizer.ggml.seperator_token_id", 1);
  writer.add_uint32("tokenizer.ggml.unknown_token_id", 2);
  const text::Tokenizer tokenizer = built(writer);
  EXPECT_EQ(
      tokenizer.encode("Hellos, \xC3\x89U\t\xE4\xB8\xAD x", AddSpecial::kYes, ParseSpecial::kNo),
      (Ids{0, 3, 7, 5, 4, 6, 2, 1}));
}

TEST(Hostile, MissingKeys) {
  for (const char* key :
       {"tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.merges"}) {
    GgufWriter writer = BpeParts().writer();
    writer.remove(key);
    expect_error(writer, ErrorCode::kInvalidModel, key);
  }
  GgufWriter writer = SpmParts().writer();
  writer.remove("tokenizer.ggml.scores");
  expect_error(writer, ErrorCode::kInvalidModel, "tokenizer.ggml.scores");
}

TEST(Hostile, UnknownNames) {
  GgufWriter writer = BpeParts().writer("no-such-pre");
  expect_error(writer, ErrorCode::kUnsupported, "no-such-pre");
  writer = BpeParts().writer();
  writer.remove("tokenizer.ggml.model");
  writer.add_string("tokenizer.ggml.model", "no-such-model");
  expect_error(writer, ErrorCode::kUnsupported, "no-such-model");
  // A missing pre-tokenizer is the default one, as in files from before there was a name for it.
  writer = BpeParts().writer();
  writer.remove("tokenizer.ggml.pre");
  EXPECT_EQ(plain_ids(built(writer), "abc"), (Ids{257}));
}

TEST(Hostile, MistypedKeys) {
  const auto expect_mistyped = [](GgufWriter writer, const char* key, const auto& add) {
    writer.remove(key);
    add(&writer, key);
    expect_error(writer, ErrorCode::kInvalidModel, key);
  };
  const auto number = [](GgufWriter* writer, const char* key) { writer->add_uint32(key, 1); };
  const auto text = [](GgufWriter* writer, const char* key) { writer->add_string(key, "1"); };
  const auto bytes = [](GgufWriter* writer, const char* key) {
    writer->add_array(key, std::vector<std::uint8_t>(263, 1));
  };
  const auto strings = [](GgufWriter* writer, const char* key) {
    writer->add_string_array(key, std::vector<std::string>(263, "a b"));
  };
  const GgufWriter bpe = BpeParts().writer();
  expect_mistyped(bpe, "tokenizer.ggml.model", number);
  expect_mistyped(bpe, "tokenizer.ggml.pre", number);
  expect_mistyped(bpe, "tokenizer.ggml.tokens", number);
  expect_mistyped(bpe, "tokenizer.ggml.tokens", bytes);
  expect_mistyped(bpe, "tokenizer.ggml.token_type", bytes);  // read as int32 it would overrun
  expect_mistyped(bpe, "tokenizer.ggml.token_type", strings);
  expect_mistyped(bpe, "tokenizer.ggml.merges", number);
  expect_mistyped(bpe, "tokenizer.ggml.merges", bytes);
  expect_mistyped(bpe, "tokenizer.ggml.scores", strings);
  expect_mistyped(bpe, "tokenizer.ggml.bos_token_id", text);
  expect_mistyped(bpe, "tokenizer.ggml.add_bos_token", text);
}

TEST(Hostile, SizesAndIdsOutOfRange) {
  BpeParts parts;
  parts.types.pop_back();
  expect_error(parts.writer(), ErrorCode::kInvalidModel, "got 262, want 263");
  parts = BpeParts();
  parts.tokens.clear();
  parts.types.clear();
  expect_error(parts.writer(), ErrorCode::kInvalidModel, "got 0 tokens");
  for (const std::int64_t id : {std::int64_t{-1}, std::int64_t{263}, std::int64_t{1} << 40}) {
    for (const char* key : {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                            "tokenizer.ggml.eot_token_id", "tokenizer.ggml.unknown_token_id"}) {
      GgufWriter writer = BpeParts().writer();
      writer.remove(key);
      writer.add_int64(key, id);
      expect_error(writer, ErrorCode::kInvalidModel, key);
    }
  }
  SpmParts spm;
  spm.scores.pop_back();
  expect_error(spm.writer(), ErrorCode::kInvalidModel, "tokenizer.ggml.scores");
  spm = SpmParts();
  spm.scores[260] = std::numeric_limits<float>::quiet_NaN();
  expect_error(spm.writer(), ErrorCode::kInvalidModel, "index 260");
  GgufWriter writer = BpeParts().writer();
  writer.remove("tokenizer.ggml.eos_token_id");
  writer.add_bool("tokenizer.ggml.add_eos_token", true);
  expect_error(writer, ErrorCode::kInvalidModel, "add_eos_token");
}

TEST(Hostile, Merges) {
  BpeParts parts;
  for (const char* broken : {"", " ", "ab", "a", "\xC4\xA0"}) {
    parts.merges = {"a b", broken};
    expect_error(parts.writer(), ErrorCode::kInvalidModel, "index 1");
  }
  // Pieces that are no tokens, empty pieces, duplicates, results that are no tokens: ignored.
  parts.merges = {"zz b", "a zz", "a ", "  a", "b a", "a b", "a b", "ab c c", "ab c"};
  const text::Tokenizer tokenizer = built(parts.writer());
  EXPECT_EQ(plain_ids(tokenizer, "abcba"), (Ids{257, 'b', 'a'}));
}

TEST(Hostile, DuplicateAndEmptyTokens) {
  BpeParts parts;
  parts.add("ab", kNormal);
  parts.add("", kNormal);
  parts.add("", kControl);
  parts.add("", kUserDefined);
  parts.add("<s>", kControl);
  parts.add("a", kControl);
  const text::Tokenizer tokenizer = built(parts.writer());
  EXPECT_EQ(plain_ids(tokenizer, "ab"), (Ids{256}));  // the first of them
  EXPECT_EQ(tokenizer.special_token("<s>"), 259);
  EXPECT_EQ(tokenizer.encode("<s>", AddSpecial::kNo, ParseSpecial::kYes), (Ids{259}));
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    tokenizer.piece(id);
    tokenizer.piece(id, ParseSpecial::kYes);
  }
}

TEST(Hostile, OddTypesAndByteTokens) {
  BpeParts parts;
  parts.add("<0x41>", kByte);      // 263
  parts.add("<0xZZ>", kByte);      // 264: no byte after all
  parts.add("<0x4", kByte);        // 265
  parts.add("\xFF\xFE", kNormal);  // 266: not UTF-8
  parts.add("x", -5);
  parts.add("y", 1000);
  const text::Tokenizer tokenizer = built(parts.writer());
  EXPECT_EQ(tokenizer.piece(263), "A");
  EXPECT_EQ(tokenizer.piece(264), "<0xZZ>");
  EXPECT_EQ(tokenizer.piece(265), "<0x4");
  EXPECT_EQ(tokenizer.piece(266), "\xFF\xFE");
  EXPECT_EQ(decode(tokenizer, {266}), "\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(Hostile, SpecialTokensTooLongTogether) {
  BpeParts parts;
  for (int i = 0; i < 9000; ++i) {
    parts.add(std::to_string(i) + std::string(1020, 'x'), kUserDefined);
  }
  expect_error(parts.writer(), ErrorCode::kInvalidModel, "special tokens");
}

TEST(Hostile, LongSpecialTokensStayLinear) {
  BpeParts parts;
  parts.add(std::string(1000, 'a') + "b", kUserDefined);
  parts.add(std::string(100000, 'a') + "b", kUserDefined);  // beyond what the trie takes
  const text::Tokenizer tokenizer = built(parts.writer());
  const std::string text(1 << 16, 'a');
  EXPECT_EQ(plain_ids(tokenizer, text).size(), text.size());
}

TEST(Hostile, MalformedFiles) {
  const std::filesystem::path dir = own_data("gguf_malformed");
  int n_loaded = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    if (entry.path().extension() != ".gguf") continue;
    const Result<gguf::File> file = gguf::File::open(Env::posix(), entry.path().string());
    if (!file) continue;
    const Result<text::Tokenizer> tokenizer = text::Tokenizer::load(*file);
    const std::string name = entry.path().filename().string();
    if (name == "s24_toktype_u8.gguf" || name == "s43_model_tok_unknown.gguf" ||
        name == "s44_pre_unknown.gguf" || name == "s29_merge_nospace.gguf") {
      EXPECT_FALSE(tokenizer.has_value()) << name;
    }
    if (!tokenizer) continue;
    ++n_loaded;
    const std::string text = "Hello, A world!\n\xFF";
    EXPECT_FALSE(plain_ids(*tokenizer, text).empty()) << name;
  }
  EXPECT_GT(n_loaded, 5);
}

/// What would take quadratic time, or the stack, were it done carelessly.
std::vector<std::pair<const char*, std::string>> pathological_texts(std::size_t n_bytes) {
  const auto repeated = [&](std::string_view part) {
    std::string out;
    while (out.size() < n_bytes) out += part;
    return out;
  };
  std::mt19937 random(1);
  std::string letters;
  while (letters.size() < n_bytes) letters.push_back(static_cast<char>('a' + random() % 26));
  return {{"a", repeated("a")},
          {"spaces", repeated(" ")},
          {"spaces, then a letter", repeated(" ") + "x"},
          {"combining marks", repeated("\xCC\x81")},
          {"newlines", repeated("\n")},
          {"letters without spaces", letters},
          {"upper case", repeated("A")},
          {"digits", repeated("7")},
          {"apostrophes", repeated("'")},
          {"spaces and newlines", repeated("  \n")},
          {"emoji", repeated("\xF0\x9F\xA6\x99")},
          {"ideographs", repeated("\xE4\xB8\xAD")}};
}

TEST(Pathological, ByteLevelBpeRoundTrips) {
  const auto tokenizer = load_tokenizer(own_data("tokenizer_vectors/smollm2-vocab.gguf"));
  ASSERT_NE(tokenizer, nullptr);
  for (const auto& [name, text] : pathological_texts(1 << 20)) {
    EXPECT_TRUE(decode(*tokenizer, plain_ids(*tokenizer, text)) == text) << name;
  }
}

TEST(Pathological, SpmRoundTrips) {
  const auto tokenizer = load_tokenizer(own_data("stories260k/stories260K.gguf"));
  ASSERT_NE(tokenizer, nullptr);
  for (const auto& [name, text] : pathological_texts(1 << 20)) {
    EXPECT_TRUE(decode(*tokenizer, plain_ids(*tokenizer, text)) == text) << name;
  }
}

TEST(Pathological, EveryPreTokenizerKeepsAllBytes) {
  for (const char* pre : {"default", "gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "falcon",
                          "tekken", "gpt-4o", "deepseek-llm", "deepseek-coder", "deepseek-v3"}) {
    const text::Tokenizer tokenizer = built(BpeParts().writer(pre));
    for (const auto& [name, text] : pathological_texts(1 << 16)) {
      EXPECT_TRUE(decode(tokenizer, plain_ids(tokenizer, text)) == text) << pre << ", " << name;
    }
  }
}

std::string random_text(std::mt19937* random) {
  std::string out;
  const int n = static_cast<int>((*random)() % 40);
  for (int i = 0; i < n; ++i) {
    constexpr char32_t kLimits[] = {0x80, 0x250, 0x3000, 0x10000, 0x110000};
    const char32_t code_point = (*random)() % kLimits[(*random)() % 5];
    if (code_point == 0x2581) continue;  // SPM writes spaces so
    text::append_utf8(&out, code_point);
  }
  return out;
}

TEST(RoundTrip, RandomUnicode) {
  const text::Tokenizer built_bpe = built(BpeParts().writer("gpt-4o"));
  const auto smollm2 = load_tokenizer(own_data("tokenizer_vectors/smollm2-vocab.gguf"));
  const auto stories = load_tokenizer(own_data("stories260k/stories260K.gguf"));
  ASSERT_NE(smollm2, nullptr);
  ASSERT_NE(stories, nullptr);
  std::mt19937 random(7);
  for (int i = 0; i < 3000; ++i) {
    const std::string text = random_text(&random);
    ASSERT_EQ(decode(built_bpe, plain_ids(built_bpe, text)), text) << shown(text);
    ASSERT_EQ(decode(*stories, plain_ids(*stories, text)), text) << shown(text);
    std::string kept;  // without the bytes this vocabulary has no token for
    for (const char c : text) {
      if (!plain_ids(*smollm2, std::string(1, c)).empty()) kept.push_back(c);
    }
    ASSERT_EQ(decode_bytes(*smollm2, plain_ids(*smollm2, text)), kept) << shown(text);
  }
}

TEST(RoundTrip, RandomBytes) {
  const text::Tokenizer bpe = built(BpeParts().writer("llama-bpe"));
  const auto stories = load_tokenizer(own_data("stories260k/stories260K.gguf"));
  ASSERT_NE(stories, nullptr);
  std::mt19937 random(8);
  for (int i = 0; i < 3000; ++i) {
    std::string text(random() % 60, ' ');
    for (char& c : text) c = static_cast<char>(random() % 4 == 0 ? 'a' : random());
    if (text.find(kSpace) != std::string::npos) continue;
    ASSERT_EQ(decode_bytes(bpe, plain_ids(bpe, text)), text) << shown(text);
    ASSERT_EQ(decode_bytes(*stories, plain_ids(*stories, text)), text) << shown(text);
  }
}

}  // namespace
}  // namespace kvasir::testing
