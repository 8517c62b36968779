#include "cache/tier/page_reader.h"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cache/tier/directory.h"

namespace kvasir::cache {
namespace {

/// Holds the header of every page of up to some 900 tokens: one read does.
constexpr std::size_t kFirstReadBytes = 4096;

/// Between pieces a reader looks whether it is still wanted: on a slow disk, some 30 ms.
constexpr std::size_t kPieceBytes = 128 * 1024;

Error corrupt(std::string message) {
  return Error{ErrorCode::kCorruption, "page file: " + std::move(message)};
}

/// The file's beginning, its header at least.
Result<std::vector<std::uint8_t>> read_header_bytes(const OpenDescriptor& file,
                                                    std::uint64_t file_bytes) {
  if (file_bytes < kPageFilePrefixBytes) {
    return corrupt(fmt::format("ends in its header; got {} B", file_bytes));
  }
  std::vector<std::uint8_t> bytes(
      static_cast<std::size_t>(std::min<std::uint64_t>(file_bytes, kFirstReadBytes)));
  KVASIR_RETURN_IF_ERROR(file.read(0, bytes));
  KVASIR_ASSIGN_OR_RETURN(const std::size_t header_bytes, page_header_bytes(bytes));
  if (header_bytes > file_bytes) {
    return corrupt(
        fmt::format("ends in its header; got {} B, want {} B", file_bytes, header_bytes));
  }
  if (const std::size_t n_read = bytes.size(); n_read < header_bytes) {
    bytes.resize(header_bytes);
    KVASIR_RETURN_IF_ERROR(file.read(n_read, std::span<std::uint8_t>(bytes).subspan(n_read)));
  }
  return bytes;
}

}  // namespace

OpenDescriptor::~OpenDescriptor() {
  if (fd_ >= 0) fs_->close(fd_);
}

OpenDescriptor::OpenDescriptor(OpenDescriptor&& other) noexcept
    : fs_(other.fs_), fd_(std::exchange(other.fd_, -1)) {}

Status OpenDescriptor::read(std::uint64_t offset, std::span<std::uint8_t> out) const {
  while (!out.empty()) {
    const IoResult<std::size_t> n_read = fs_->read_at(fd_, offset, out);
    if (!n_read.ok()) return io_error("page file", "read", n_read.error);
    if (n_read.value == 0) return corrupt(fmt::format("ends early; byte {}", offset));
    out = out.subspan(n_read.value);
    offset += n_read.value;
  }
  return {};
}

PageReader::PageReader(OpenDescriptor descriptor, const FileInfo& info, PageHeader header)
    : descriptor_(std::move(descriptor)), info_(info), header_(std::move(header)) {}

Result<PageReader> PageReader::open(FileSystem& fs, const std::string& path, const PageKey& key) {
  const IoResult<OpenedFile> opened = fs.open_read(path);
  if (opened.error == ELOOP) return corrupt("a symbolic link, want a file");
  if (!opened.ok()) return io_error(path, "open", opened.error);
  OpenDescriptor file(fs, opened.value.fd);
  const FileInfo& info = opened.value.info;
  if (info.kind != FileKind::kFile) return corrupt("not a regular file");
  KVASIR_ASSIGN_OR_RETURN(const auto bytes, read_header_bytes(file, info.bytes));
  KVASIR_ASSIGN_OR_RETURN(PageHeader header, decode_page_header(bytes));
  if (header.key != key) {
    return corrupt(
        fmt::format("holds another page; got key {}, want {}", header.key.to_hex(), key.to_hex()));
  }
  if (info.bytes != header.header_bytes + header.payload_bytes) {
    return corrupt(fmt::format("size; got {} B, want {} B of header + {} B of payload", info.bytes,
                               header.header_bytes, header.payload_bytes));
  }
  return PageReader(std::move(file), info, std::move(header));
}

Status PageReader::read_payload(std::span<std::uint8_t> out,
                                const std::function<bool()>& is_wanted) const {
  KVASIR_CHECK(out.size() == header_.payload_bytes);
  for (std::size_t at = 0; at < out.size(); at += kPieceBytes) {
    if (is_wanted && !is_wanted()) {
      return Error{ErrorCode::kCancelled, "page file: not wanted any more"};
    }
    const auto piece = out.subspan(at, std::min(kPieceBytes, out.size() - at));
    KVASIR_RETURN_IF_ERROR(descriptor_.read(header_.header_bytes + at, piece));
  }
  return check_payload(header_, out);
}

}  // namespace kvasir::cache
