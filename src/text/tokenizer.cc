#include "text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "text/bpe.h"
#include "text/encoder.h"
#include "text/spm.h"
#include "text/trie.h"
#include "text/vocabulary.h"
#include "text/word_piece.h"

namespace kvasir::text {
namespace {

/// Special tokens and word pieces take far less; this bounds the memory a file can make tries take.
constexpr std::size_t kTrieBytesMax = std::size_t{8} << 20;

Error trie_too_large(std::string_view what, std::size_t n_bytes) {
  return {ErrorCode::kInvalidModel,
          fmt::format("tokenizer: the {} are too long together; got {} B, want at most {} B", what,
                      n_bytes, kTrieBytesMax)};
}

bool is_special(TokenType type) {
  return type == TokenType::kControl || type == TokenType::kUnknown;
}

bool contains_any(std::string_view text, std::initializer_list<std::string_view> needles) {
  return std::any_of(needles.begin(), needles.end(), [&](std::string_view needle) {
    return text.find(needle) != std::string_view::npos;
  });
}

bool is_ascii_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

}  // namespace

class Tokenizer::Impl {
 public:
  static Result<std::unique_ptr<Impl>> load(const gguf::File& file);

  std::vector<TokenId> encode(std::string_view text, AddSpecial add_special,
                              ParseSpecial parse_special) const;
  std::string piece(TokenId token, ParseSpecial special) const;

  Vocabulary vocabulary;
  bool add_bos = false;
  bool add_eos = false;
  bool space_prefix = false;

 private:
  Status load_encoder(const gguf::File& file);
  Status load_flags(const gguf::File& file);
  Status build_tries();
  void encode_plain(std::string_view text, std::vector<TokenId>* out) const;

  std::unique_ptr<Encoder> encoder_;
  Trie all_special_;   // control, unknown and user-defined tokens
  Trie user_defined_;  // these are parsed even in plain text
  // Phi-3 was trained with the white space after a special token removed.
  bool strips_after_special_ = false;
};

Result<std::unique_ptr<Tokenizer::Impl>> Tokenizer::Impl::load(const gguf::File& file) {
  auto out = std::make_unique<Impl>();
  KVASIR_ASSIGN_OR_RETURN(out->vocabulary, Vocabulary::load(file));
  KVASIR_RETURN_IF_ERROR(out->load_encoder(file));
  KVASIR_RETURN_IF_ERROR(out->load_flags(file));
  KVASIR_RETURN_IF_ERROR(out->build_tries());
  return out;
}

Status Tokenizer::Impl::load_encoder(const gguf::File& file) {
  switch (vocabulary.model()) {
    case VocabularyModel::kBpe: {
      KVASIR_ASSIGN_OR_RETURN(const auto name, file.get_string("tokenizer.ggml.pre"));
      const bool has_name = name && !name->empty();
      KVASIR_ASSIGN_OR_RETURN(const PreTokenizer pretokenizer,
                              PreTokenizer::by_name(has_name ? *name : "default"));
      KVASIR_ASSIGN_OR_RETURN(encoder_, BpeEncoder::load(file, vocabulary, pretokenizer));
      add_bos = pretokenizer.adds_bos();
      return {};
    }
    case VocabularyModel::kSpm: {
      KVASIR_ASSIGN_OR_RETURN(const auto prefix, file.get_bool("tokenizer.ggml.add_space_prefix"));
      space_prefix = prefix.value_or(true);
      encoder_ = std::make_unique<SpmEncoder>(
          vocabulary, space_prefix ? SpmEncoder::SpacePrefix::kYes : SpmEncoder::SpacePrefix::kNo);
      add_bos = true;
      return {};
    }
    case VocabularyModel::kWordPiece:
      if (vocabulary.n_bytes() > kTrieBytesMax) {
        return trie_too_large("tokens", vocabulary.n_bytes());
      }
      encoder_ = std::make_unique<WordPieceEncoder>(vocabulary);
      add_bos = true;
      add_eos = true;
      return {};
  }
  return {};
}

Status Tokenizer::Impl::load_flags(const gguf::File& file) {
  KVASIR_ASSIGN_OR_RETURN(const auto bos, file.get_bool("tokenizer.ggml.add_bos_token"));
  KVASIR_ASSIGN_OR_RETURN(const auto eos, file.get_bool("tokenizer.ggml.add_eos_token"));
  if (bos.value_or(false) && !vocabulary.bos()) {
    return Error{ErrorCode::kInvalidModel,
                 "tokenizer: key 'tokenizer.ggml.add_bos_token' asks for a token that is not "
                 "there; got no 'tokenizer.ggml.bos_token_id', want one"};
  }
  if (eos.value_or(false) && !vocabulary.eos()) {
    return Error{ErrorCode::kInvalidModel,
                 "tokenizer: key 'tokenizer.ggml.add_eos_token' asks for a token that is not "
                 "there; got no 'tokenizer.ggml.eos_token_id', want one"};
  }
  add_bos = bos.value_or(add_bos) && vocabulary.bos();
  add_eos = eos.value_or(add_eos) && vocabulary.eos();
  KVASIR_ASSIGN_OR_RETURN(const auto name, file.get_string("general.name"));
  std::string lower_name(name.value_or("").substr(0, 256));
  for (char& c : lower_name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  strips_after_special_ =
      vocabulary.model() == VocabularyModel::kSpm && contains_any(lower_name, {"phi-3", "phi3"});
  return {};
}

Status Tokenizer::Impl::build_tries() {
  std::vector<Trie::Item> all;
  std::vector<Trie::Item> user_defined;
  std::size_t n_bytes = 0;
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    const TokenType type = vocabulary.type(id);
    if (!is_special(type) && type != TokenType::kUserDefined) continue;
    all.push_back({vocabulary.text(id), id});
    if (type == TokenType::kUserDefined) user_defined.push_back(all.back());
    n_bytes += std::min(vocabulary.text(id).size(), Trie::kTextBytesMax);
  }
  if (n_bytes > kTrieBytesMax) return trie_too_large("special tokens", n_bytes);
  all_special_ = Trie(all);
  user_defined_ = Trie(user_defined);
  return {};
}

std::vector<TokenId> Tokenizer::Impl::encode(std::string_view text, AddSpecial add_special,
                                             ParseSpecial parse_special) const {
  std::vector<TokenId> out;
  if (add_special == AddSpecial::kYes && add_bos) out.push_back(*vocabulary.bos());
  const Trie& trie = parse_special == ParseSpecial::kYes ? all_special_ : user_defined_;
  std::size_t plain_begin = 0;
  if (!trie.empty()) {
    for (std::size_t pos = 0; pos < text.size();) {
      const Trie::Match match = trie.longest_match(text, pos);
      if (match.id < 0) {
        ++pos;
        continue;
      }
      encode_plain(text.substr(plain_begin, pos - plain_begin), &out);
      out.push_back(match.id);
      pos += match.size;
      if (strips_after_special_ && match.id != vocabulary.bos() &&
          match.id != vocabulary.unknown()) {
        while (pos < text.size() && is_ascii_space(text[pos])) ++pos;
      }
      plain_begin = pos;
    }
  }
  encode_plain(text.substr(plain_begin), &out);
  if (add_special == AddSpecial::kYes && add_eos) out.push_back(*vocabulary.eos());
  return out;
}

void Tokenizer::Impl::encode_plain(std::string_view text, std::vector<TokenId>* out) const {
  while (!text.empty()) {
    const std::string_view part = text.substr(0, Encoder::kTextBytesMax);
    encoder_->encode(part, out);
    text.remove_prefix(part.size());
  }
}

std::string Tokenizer::Impl::piece(TokenId token, ParseSpecial special) const {
  const TokenType type = vocabulary.type(token);
  if (is_special(type)) {
    return special == ParseSpecial::kYes ? std::string(vocabulary.text(token)) : std::string();
  }
  if (type == TokenType::kUserDefined) return std::string(vocabulary.text(token));
  if (const auto byte = vocabulary.byte_value(token)) {
    return std::string(1, static_cast<char>(*byte));
  }
  return encoder_->piece(token);
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Result<Tokenizer> Tokenizer::load(const gguf::File& file) {
  KVASIR_ASSIGN_OR_RETURN(auto impl, Impl::load(file));
  return Tokenizer(std::move(impl));
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, AddSpecial add_special,
                                       ParseSpecial parse_special) const {
  return impl_->encode(text, add_special, parse_special);
}

std::string Tokenizer::piece(TokenId token, ParseSpecial special) const {
  KVASIR_CHECK(token >= 0 && token < vocab_size());
  return impl_->piece(token, special);
}

int Tokenizer::vocab_size() const { return impl_->vocabulary.size(); }
std::optional<TokenId> Tokenizer::bos() const { return impl_->vocabulary.bos(); }
std::optional<TokenId> Tokenizer::eos() const { return impl_->vocabulary.eos(); }
bool Tokenizer::add_bos() const { return impl_->add_bos; }
bool Tokenizer::add_eos() const { return impl_->add_eos; }

bool Tokenizer::is_eog(TokenId token) const {
  return token >= 0 && token < vocab_size() && impl_->vocabulary.is_eog(token);
}

bool Tokenizer::is_control(TokenId token) const {
  return token >= 0 && token < vocab_size() && impl_->vocabulary.type(token) == TokenType::kControl;
}

std::optional<TokenId> Tokenizer::special_token(std::string_view text) const {
  const TokenId id = impl_->vocabulary.find_special(text);
  return id < 0 ? std::nullopt : std::optional<TokenId>(id);
}

bool Tokenizer::strips_leading_space() const { return impl_->space_prefix; }

}  // namespace kvasir::text
