#include "text/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace kvasir::text {
namespace {

constexpr std::uint64_t kVocabularyBytesMax = std::uint64_t{1} << 30;

// Tokens that end a generation whatever the file says of them. The names are those that models use;
// llama.cpp keeps the same list. U+FF5C and U+2581 are written out in DeepSeek's.
constexpr std::string_view kEndOfGeneration[] = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<\xEF\xBD\x9C"
    "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
    // Fill-in-the-middle: padding, and what begins the next file or repository.
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
};

// Marks of fill-in-the-middle: of control type whatever the file says, so that running text does
// not become one. U+FF5C and U+2581 are written out in DeepSeek's.
constexpr std::string_view kFillInTheMiddle[] = {
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<PRE>",
    "\xE2\x96\x81<PRE>",
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<SUF>",
    "\xE2\x96\x81<SUF>",
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<MID>",
    "\xE2\x96\x81<MID>",
    "<\xEF\xBD\x9C"
    "fim\xE2\x96\x81"
    "begin\xEF\xBD\x9C>",
    "<\xEF\xBD\x9C"
    "fim\xE2\x96\x81hole\xEF\xBD\x9C>",
    "<\xEF\xBD\x9C"
    "fim\xE2\x96\x81"
    "end\xEF\xBD\x9C>",
};

template <std::size_t N>
bool contains(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

/// The byte of "<0xNN>", or -1.
int byte_of_text(std::string_view text) {
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return -1;
  const int high = hex_digit(text[3]);
  const int low = hex_digit(text[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

Error invalid(std::string_view key, std::string_view what) {
  return {ErrorCode::kInvalidModel, fmt::format("tokenizer: key '{}' {}", key, what)};
}

Result<std::optional<TokenId>> special_id(const gguf::File& file, std::string_view key,
                                          std::size_t n_tokens) {
  KVASIR_ASSIGN_OR_RETURN(const std::optional<std::int64_t> id, file.get_int(key));
  if (!id) return std::optional<TokenId>{};
  if (*id < 0 || static_cast<std::uint64_t>(*id) >= n_tokens) {
    return invalid(key, fmt::format("is outside the vocabulary; got {}, want 0..{}", *id,
                                    static_cast<std::int64_t>(n_tokens) - 1));
  }
  return std::optional<TokenId>(static_cast<TokenId>(*id));
}

}  // namespace

Result<Vocabulary> Vocabulary::load(const gguf::File& file) {
  Vocabulary out;
  KVASIR_RETURN_IF_ERROR(out.load_model(file));
  KVASIR_RETURN_IF_ERROR(out.load_texts(file));
  KVASIR_RETURN_IF_ERROR(out.load_types(file));
  KVASIR_RETURN_IF_ERROR(out.load_scores(file));
  KVASIR_RETURN_IF_ERROR(out.load_special_ids(file));
  out.mark_named_tokens();
  out.build_indices();
  return out;
}

Status Vocabulary::load_model(const gguf::File& file) {
  constexpr std::string_view kKey = "tokenizer.ggml.model";
  KVASIR_ASSIGN_OR_RETURN(const auto name, file.get_string(kKey));
  if (!name) return invalid(kKey, "is missing; got no value, want gpt2, llama or bert");
  if (*name == "gpt2") {
    model_ = VocabularyModel::kBpe;
  } else if (*name == "llama") {
    model_ = VocabularyModel::kSpm;
  } else if (*name == "bert") {
    model_ = VocabularyModel::kWordPiece;
  } else {
    return Error{
        ErrorCode::kUnsupported,
        fmt::format("tokenizer: key '{}' names a model this build does not know; got '{}', "
                    "want gpt2, llama or bert",
                    kKey, name->substr(0, 64))};
  }
  return {};
}

Status Vocabulary::load_texts(const gguf::File& file) {
  constexpr std::string_view kKey = "tokenizer.ggml.tokens";
  KVASIR_ASSIGN_OR_RETURN(const gguf::Array* tokens, file.get_array(kKey));
  if (tokens == nullptr) return invalid(kKey, "is missing; got no value, want an array of strings");
  if (tokens->element_type() != gguf::ValueType::kString) {
    return invalid(kKey, "has the wrong type; got an array of another type, want strings");
  }
  if (tokens->size() == 0 || tokens->size() > kTokensMax) {
    return invalid(
        kKey, fmt::format("has a bad size; got {} tokens, want 1..{}", tokens->size(), kTokensMax));
  }
  std::uint64_t n_bytes = 0;
  for (std::size_t i = 0; i < tokens->size(); ++i) n_bytes += tokens->string_at(i).size();
  if (n_bytes > kVocabularyBytesMax) {
    return invalid(kKey, fmt::format("is too long; got {} B, want at most {} B", n_bytes,
                                     kVocabularyBytesMax));
  }
  bytes_.reserve(n_bytes + 1);  // never null, so that an empty text has an address
  offsets_.reserve(tokens->size() + 1);
  for (std::size_t i = 0; i < tokens->size(); ++i) {
    const std::string_view text = tokens->string_at(i);
    offsets_.push_back(bytes_.size());
    bytes_.insert(bytes_.end(), text.begin(), text.end());
  }
  offsets_.push_back(bytes_.size());
  return {};
}

Status Vocabulary::load_types(const gguf::File& file) {
  constexpr std::string_view kKey = "tokenizer.ggml.token_type";
  const std::size_t n_tokens = offsets_.size() - 1;
  types_.assign(n_tokens, TokenType::kNormal);
  KVASIR_ASSIGN_OR_RETURN(const gguf::Array* types, file.get_array(kKey));
  if (types == nullptr) return {};
  if (types->element_type() != gguf::ValueType::kInt32 &&
      types->element_type() != gguf::ValueType::kUint32) {
    return invalid(kKey, "has the wrong type; got an array of another type, want int32");
  }
  if (types->size() != n_tokens) {
    return invalid(kKey, fmt::format("has the wrong size; got {}, want {} (one for each token)",
                                     types->size(), n_tokens));
  }
  for (std::size_t i = 0; i < n_tokens; ++i) {
    const std::int64_t type = types->int_at(i);
    const bool known = type >= 0 && type <= static_cast<std::int64_t>(TokenType::kByte);
    types_[i] = known ? static_cast<TokenType>(type) : TokenType::kUndefined;
  }
  return {};
}

Status Vocabulary::load_scores(const gguf::File& file) {
  constexpr std::string_view kKey = "tokenizer.ggml.scores";
  const std::size_t n_tokens = types_.size();
  KVASIR_ASSIGN_OR_RETURN(const gguf::Array* scores, file.get_array(kKey));
  if (scores == nullptr) {
    if (model_ != VocabularyModel::kSpm) return {};
    return invalid(kKey, "is missing; got no value, want an array of numbers");
  }
  if (!scores->is_number()) {
    return invalid(kKey, "has the wrong type; got an array of another type, want float32");
  }
  if (scores->size() != n_tokens) {
    return invalid(kKey, fmt::format("has the wrong size; got {}, want {} (one for each token)",
                                     scores->size(), n_tokens));
  }
  scores_.resize(n_tokens);
  for (std::size_t i = 0; i < n_tokens; ++i) {
    scores_[i] = static_cast<float>(scores->double_at(i));
    if (std::isnan(scores_[i])) {
      return invalid(kKey, fmt::format("is not a number at index {}; got nan, want a score", i));
    }
  }
  return {};
}

Status Vocabulary::load_special_ids(const gguf::File& file) {
  const std::size_t n_tokens = types_.size();
  is_eog_.assign(n_tokens, false);
  const auto within = [&](TokenId id) {
    return index(id) < n_tokens ? std::optional<TokenId>(id) : std::nullopt;
  };
  KVASIR_ASSIGN_OR_RETURN(bos_, special_id(file, "tokenizer.ggml.bos_token_id", n_tokens));
  KVASIR_ASSIGN_OR_RETURN(eos_, special_id(file, "tokenizer.ggml.eos_token_id", n_tokens));
  KVASIR_ASSIGN_OR_RETURN(unknown_, special_id(file, "tokenizer.ggml.unknown_token_id", n_tokens));
  // The defaults of the formats these models come from, as llama.cpp has them.
  if (model_ == VocabularyModel::kSpm) {
    if (!bos_) bos_ = within(1);
    if (!eos_) eos_ = within(2);
    if (!unknown_) unknown_ = within(0);
  } else if (model_ == VocabularyModel::kWordPiece) {
    KVASIR_ASSIGN_OR_RETURN(const auto cls,
                            special_id(file, "tokenizer.ggml.cls_token_id", n_tokens));
    // The key is spelled like this in GGUF.
    KVASIR_ASSIGN_OR_RETURN(const auto separator,
                            special_id(file, "tokenizer.ggml.seperator_token_id", n_tokens));
    if (!bos_) bos_ = cls ? cls : within(101);
    if (!eos_) eos_ = separator ? separator : within(102);
    if (!unknown_) unknown_ = within(100);
  }
  if (eos_) is_eog_[index(*eos_)] = true;
  for (const char* key : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id",
                          "tokenizer.ggml.fim_pad_token_id", "tokenizer.ggml.fim_rep_token_id",
                          "tokenizer.ggml.fim_sep_token_id"}) {
    KVASIR_ASSIGN_OR_RETURN(const auto id, special_id(file, key, n_tokens));
    if (id) is_eog_[index(*id)] = true;
  }
  return {};
}

void Vocabulary::mark_named_tokens() {
  bool has_return = false;
  bool has_call = false;
  std::optional<TokenId> end;
  for (TokenId id = 0; id < size(); ++id) {
    const std::string_view name = text(id);
    if (name.size() > 32 || name.size() < 4) continue;  // none of the names
    const bool ends_generation = contains(kEndOfGeneration, name);
    if (!ends_generation && !contains(kFillInTheMiddle, name)) continue;
    // Some files give these another type; as plain text they would leak into the output.
    types_[index(id)] = TokenType::kControl;
    if (!ends_generation) continue;
    is_eog_[index(id)] = true;
    if (name == "<|return|>") has_return = true;
    if (name == "<|call|>") has_call = true;
    if (name == "<|end|>") end = id;
  }
  // In the harmony format <|end|> ends a message, not the turn.
  if (has_return && has_call && end) is_eog_[index(*end)] = false;
}

void Vocabulary::build_indices() {
  std::vector<StringIndex::Item> plain;
  std::vector<StringIndex::Item> special;
  byte_tokens_.fill(-1);
  for (TokenId id = 0; id < size(); ++id) {
    const std::string_view token = text(id);
    const TokenType token_type = type(id);
    if (token.empty()) continue;
    const bool is_control = token_type == TokenType::kControl || token_type == TokenType::kUnknown;
    if (is_control || token_type == TokenType::kUserDefined) special.push_back({token, id});
    if (!is_control && token_type != TokenType::kByte) plain.push_back({token, id});
    const int byte = is_control ? -1 : byte_of_text(token);
    if (byte >= 0 && byte_tokens_[static_cast<std::size_t>(byte)] < 0) {
      byte_tokens_[static_cast<std::size_t>(byte)] = id;
    }
  }
  plain_ = StringIndex(plain);
  special_ = StringIndex(special);
}

std::optional<std::uint8_t> Vocabulary::byte_value(TokenId id) const {
  if (type(id) != TokenType::kByte) return std::nullopt;
  const int byte = byte_of_text(text(id));
  if (byte < 0) return std::nullopt;
  return static_cast<std::uint8_t>(byte);
}

}  // namespace kvasir::text
