#include "text/tokenizer.h"
#include "text/unicode.h"

namespace kvasir::text {

std::string StreamDecoder::push(TokenId token) {
  std::string bytes = tokenizer_.piece(token);
  if (at_start_ && !bytes.empty()) {
    at_start_ = false;
    if (tokenizer_.strips_leading_space() && bytes.front() == ' ') bytes.erase(0, 1);
  }
  return push_bytes(bytes);
}

std::string StreamDecoder::push_bytes(std::string_view bytes) {
  pending_.append(bytes);
  std::string out;
  std::size_t pos = 0;
  while (pos < pending_.size()) {
    const Decoded decoded = decode_utf8(pending_, pos);
    if (decoded.status == Utf8Status::kTruncated) break;
    append_utf8(&out, decoded.code_point);
    pos += decoded.size;
  }
  pending_.erase(0, pos);
  return out;
}

std::string StreamDecoder::finish() {
  std::string out;
  if (!pending_.empty()) append_utf8(&out, kReplacement);
  pending_.clear();
  return out;
}

}  // namespace kvasir::text
