// Fuzz target: any bytes as a page file, through the decoder and through the reader of a tier; once
// as they are, and once with the checksums that they should have, behind which all else lies.
#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "cache/tier/checksum.h"
#include "cache/tier/file_system.h"
#include "cache/tier/page_file.h"
#include "cache/tier/page_reader.h"

namespace {

using namespace kvasir::cache;
using kvasir::Result;
using Bytes = std::vector<std::uint8_t>;

void require(bool condition) {
  if (!condition) std::abort();
}

/// One file in memory, that can only be read.
class OneFile final : public FileSystem {
 public:
  explicit OneFile(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  IoResult<OpenedFile> open_read(const std::string&) override {
    OpenedFile file{.fd = 3, .info = {.kind = FileKind::kFile, .bytes = bytes_.size()}};
    return {.value = file};
  }
  IoResult<std::size_t> read_at(int, std::uint64_t offset, std::span<std::uint8_t> out) override {
    if (offset >= bytes_.size()) return {.value = 0};
    const auto from = bytes_.subspan(static_cast<std::size_t>(offset));
    const std::size_t n = std::min(from.size(), out.size());
    std::copy_n(from.begin(), n, out.begin());
    return {.value = n};
  }
  void close(int) override {}
  IoResult<int> create(const std::string&) override { return {.value = -1, .error = EROFS}; }
  IoResult<std::size_t> write(int, std::span<const std::uint8_t>) override {
    return {.value = 0, .error = EROFS};
  }
  IoStatus sync(int) override { return {.error = EROFS}; }
  IoStatus rename(const std::string&, const std::string&) override { return {.error = EROFS}; }
  IoStatus remove(const std::string&) override { return {.error = EROFS}; }
  IoStatus make_directory(const std::string&) override { return {.error = EROFS}; }
  IoResult<std::vector<std::string>> list(const std::string&) override { return {.value = {}}; }
  IoResult<FileInfo> stat(const std::string&) override { return {.value = {}, .error = ENOENT}; }
  IoStatus touch(const std::string&) override { return {.error = EROFS}; }
  std::int64_t now_ns() override { return 0; }
  std::uint32_t user() override { return 0; }

 private:
  std::span<const std::uint8_t> bytes_;
};

constexpr std::size_t kPayloadBytesAt = 16, kPayloadChecksumAt = 24, kKeyAt = 32,
                      kChecksumBytes = 8;

PageKey key_in(std::span<const std::uint8_t> bytes) {
  PageKey key;
  if (bytes.size() >= kKeyAt + key.bytes.size()) {
    std::memcpy(key.bytes.data(), bytes.data() + kKeyAt, key.bytes.size());
  }
  return key;
}

/// What was decoded says the same when it is encoded again.
void require_round_trip(const PageHeader& header, std::span<const std::uint8_t> payload) {
  PageRecord record;
  record.key = header.key;
  record.parent = header.parent;
  record.root = header.root;
  record.first_token = header.first_token;
  record.tokens = header.tokens;
  record.description = header.description;
  record.payload = payload;
  const auto encoded = encode_page_header(record, header.created_seconds);
  require(encoded.has_value() && encoded->size() == header.header_bytes);
  const auto again = decode_page_header(*encoded);
  require(again.has_value() && again->tokens == header.tokens && again->key == header.key &&
          again->description == header.description && again->parent == header.parent &&
          again->root == header.root && again->first_token == header.first_token &&
          again->created_seconds == header.created_seconds &&
          again->payload_checksum == header.payload_checksum);
}

void read_as_page(std::span<const std::uint8_t> bytes) {
  const auto decoded = decode_page_header(bytes);
  if (!decoded) require(!decoded.error().message.empty());
  OneFile file(bytes);
  const Result<PageReader> reader = PageReader::open(file, "page", key_in(bytes));
  if (!reader) {
    require(!reader.error().message.empty());
    return;
  }
  require(decoded.has_value());  // a reader asks for no less than the decoder
  Bytes payload(static_cast<std::size_t>(reader->header().payload_bytes));
  if (reader->read_payload(payload)) require_round_trip(reader->header(), payload);
}

/// A copy with a payload size and checksums that fit, where there is room for them.
Bytes mended(std::span<const std::uint8_t> bytes) {
  Bytes copy(bytes.begin(), bytes.end());
  if (copy.size() < kPageFilePrefixBytes) return copy;
  const Result<std::size_t> header_bytes = page_header_bytes(copy);
  if (!header_bytes || copy.size() <= *header_bytes) return copy;
  const auto payload = std::span<const std::uint8_t>(copy).subspan(*header_bytes);
  const std::uint64_t payload_bytes = payload.size();
  std::memcpy(copy.data() + kPayloadBytesAt, &payload_bytes, sizeof payload_bytes);
  const std::uint64_t of_payload = xxh3_64(key_in(copy).bytes, payload);
  std::memcpy(copy.data() + kPayloadChecksumAt, &of_payload, sizeof of_payload);
  const std::size_t end = *header_bytes - kChecksumBytes;
  const std::uint64_t of_header = xxh3_64(std::span<const std::uint8_t>(copy).first(end));
  std::memcpy(copy.data() + end, &of_header, sizeof of_header);
  return copy;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  read_as_page({data, size});
  read_as_page(mended({data, size}));
  return 0;
}
