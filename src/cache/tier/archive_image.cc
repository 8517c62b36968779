#include "cache/tier/archive_image.h"

#include <fmt/core.h>

#include <cerrno>
#include <utility>

#include "cache/tier/directory.h"
#include "cache/tier/page_reader.h"

namespace kvasir::cache {
namespace {

Error corrupt(std::string message) {
  return Error{ErrorCode::kCorruption, "page file: " + std::move(message)};
}

}  // namespace

Result<PageHeader> check_page_image(std::span<const std::uint8_t> image, const PageKey& key) {
  KVASIR_ASSIGN_OR_RETURN(PageHeader header, decode_page_header(image));
  if (header.key != key) {
    return corrupt(
        fmt::format("holds another page; got key {}, want {}", header.key.to_hex(), key.to_hex()));
  }
  KVASIR_RETURN_IF_ERROR(check_payload(header, image.subspan(header.header_bytes)));
  if (next_key(header.parent, header.tokens) != key) {
    return corrupt("its key does not follow from its tokens and the page before it");
  }
  if (header.first_token == 0 && header.parent != header.root) {
    return corrupt("the first page of a prompt; got a page before it, want none");
  }
  return header;
}

Result<std::vector<std::uint8_t>> read_page_image(FileSystem& fs, const std::string& path) {
  const IoResult<OpenedFile> opened = fs.open_read(path);
  if (opened.error == ELOOP) return corrupt("a symbolic link, want a file");
  if (!opened.ok()) return io_error(path, "open", opened.error);
  const OpenDescriptor file(fs, opened.value.fd);
  const FileInfo& info = opened.value.info;
  if (info.kind != FileKind::kFile || info.bytes > kPageFileBytesMax) {
    return corrupt(
        fmt::format("got {} B, want a file of at most {} B", info.bytes, kPageFileBytesMax));
  }
  std::vector<std::uint8_t> image(static_cast<std::size_t>(info.bytes));
  KVASIR_RETURN_IF_ERROR(file.read(0, image));
  return image;
}

}  // namespace kvasir::cache
