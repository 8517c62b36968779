#include "text/bpe.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/merge_queue.h"
#include "text/unicode.h"

namespace kvasir::text {
namespace {

constexpr std::string_view kMergesKey = "tokenizer.ggml.merges";

bool is_printable(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

/// The byte alphabet: printable Latin-1 stands for itself, the 68 others follow from U+0100 on.
constexpr char32_t kAlphabetEnd = 0x144;

std::array<char32_t, 256> byte_alphabet() {
  std::array<char32_t, 256> out{};
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    out[static_cast<std::size_t>(byte)] = is_printable(byte) ? static_cast<char32_t>(byte) : next++;
  }
  return out;
}

/// The byte that `code_point` stands for, or -1.
int byte_of(char32_t code_point) {
  if (code_point < 0x100)
    return is_printable(static_cast<int>(code_point)) ? static_cast<int>(code_point) : -1;
  if (code_point >= kAlphabetEnd) return -1;
  // U+0100.. are, in order: 0x00-0x20, 0x7F-0xA0, 0xAD.
  const int position = static_cast<int>(code_point) - 0x100;
  if (position <= 0x20) return position;
  if (position <= 0x42) return position - 0x21 + 0x7F;
  return 0xAD;
}

Error invalid_merges(std::string_view what) {
  return {ErrorCode::kInvalidModel, fmt::format("tokenizer: key '{}' {}", kMergesKey, what)};
}

}  // namespace

Result<std::unique_ptr<BpeEncoder>> BpeEncoder::load(const gguf::File& file,
                                                     const Vocabulary& vocabulary,
                                                     PreTokenizer pretokenizer) {
  std::unique_ptr<BpeEncoder> out(new BpeEncoder(vocabulary, pretokenizer));
  KVASIR_RETURN_IF_ERROR(out->load_merges(file));
  if (pretokenizer.ignores_merges()) out->build_words();
  return out;
}

BpeEncoder::BpeEncoder(const Vocabulary& vocabulary, PreTokenizer pretokenizer)
    : vocabulary_(vocabulary), pretokenizer_(pretokenizer) {
  const std::array<char32_t, 256> alphabet = byte_alphabet();
  for (std::size_t byte = 0; byte < 256; ++byte) {
    std::string text;
    append_utf8(&text, alphabet[byte]);
    byte_tokens_[byte] = vocabulary.find(text);
  }
}

Status BpeEncoder::load_merges(const gguf::File& file) {
  KVASIR_ASSIGN_OR_RETURN(const gguf::Array* merges, file.get_array(kMergesKey));
  if (merges == nullptr) {
    return invalid_merges("is missing; got no value, want an array of strings");
  }
  if (merges->element_type() != gguf::ValueType::kString) {
    return invalid_merges("has the wrong type; got an array of another type, want strings");
  }
  std::vector<MergeTable::Item> items;
  items.reserve(merges->size());
  std::string merged;
  for (std::size_t rank = 0; rank < merges->size(); ++rank) {
    const std::string_view merge = merges->string_at(rank);
    const std::size_t space = merge.find(' ', 1);  // a piece may itself be a space
    if (space == std::string_view::npos) {
      return invalid_merges(
          fmt::format("has no separator at index {}; got {} B without a space, want two pieces",
                      rank, merge.size()));
    }
    const std::string_view left = merge.substr(0, space);
    const std::string_view right = merge.substr(space + 1);
    if (left.size() + right.size() > vocabulary_.longest()) continue;
    merged.assign(left);
    merged.append(right);
    const MergeTable::Item item{vocabulary_.find(left),
                                vocabulary_.find(right),
                                {static_cast<std::uint32_t>(rank), vocabulary_.find(merged)}};
    if (item.left >= 0 && item.right >= 0 && item.merge.id >= 0) items.push_back(item);
  }
  merges_ = MergeTable(items);
  return {};
}

void BpeEncoder::build_words() {
  struct Word {
    std::size_t begin;
    std::size_t size;
    TokenId id;
  };
  std::vector<Word> words;
  for (TokenId id = 0; id < vocabulary_.size(); ++id) {
    const std::string_view text = vocabulary_.text(id);
    if (text.empty() || vocabulary_.find(text) != id) continue;  // special, or a duplicate
    const std::size_t begin = word_bytes_.size();
    bool whole = true;
    for (std::size_t pos = 0; pos < text.size() && whole;) {
      const Decoded decoded = decode_utf8(text, pos);
      const int byte = decoded.status == Utf8Status::kValid ? byte_of(decoded.code_point) : -1;
      whole = byte >= 0;
      word_bytes_.push_back(static_cast<char>(byte));
      pos += decoded.size;
    }
    if (whole) {
      words.push_back({begin, word_bytes_.size() - begin, id});
    } else {
      word_bytes_.resize(begin);
    }
  }
  std::vector<StringIndex::Item> items;
  items.reserve(words.size());
  for (const Word& word : words) {
    items.push_back({std::string_view(word_bytes_.data() + word.begin, word.size), word.id});
  }
  words_ = StringIndex(items);
}

void BpeEncoder::encode(std::string_view text, std::vector<TokenId>* out) const {
  MergeQueue queue;
  std::vector<Symbol> symbols;
  std::size_t begin = 0;
  for (const std::uint32_t end : pretokenizer_.split(text)) {
    const std::string_view word = text.substr(begin, end - begin);
    begin = end;
    if (pretokenizer_.ignores_merges()) {
      if (const TokenId whole = words_.find(word); whole >= 0) {
        out->push_back(whole);
        continue;
      }
    }
    symbols.clear();
    for (std::uint32_t i = 0; i < word.size(); ++i) {
      symbols.push_back({i, 1, byte_tokens_[static_cast<std::uint8_t>(word[i])]});
    }
    queue.run(&symbols, [&](const Symbol& left, const Symbol& right) {
      return merges_.find(left.id, right.id);
    });
    for (const Symbol& symbol : symbols) {
      if (symbol.size > 0 && symbol.id >= 0) out->push_back(symbol.id);
    }
  }
}

std::string BpeEncoder::piece(TokenId token) const {
  const std::string_view text = vocabulary_.text(token);
  std::string out;
  for (std::size_t pos = 0; pos < text.size();) {
    const Decoded decoded = decode_utf8(text, pos);
    const int byte = decoded.status == Utf8Status::kValid ? byte_of(decoded.code_point) : -1;
    if (byte >= 0) {
      out.push_back(static_cast<char>(byte));
    } else {
      out.append(text.substr(pos, decoded.size));  // outside the alphabet: as it stands
    }
    pos += decoded.size;
  }
  return out;
}

}  // namespace kvasir::text
