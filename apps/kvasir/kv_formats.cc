#include "kv_formats.h"

#include "command.h"

namespace kvasir::cli {

Result<eval::KvFormat> parse_kv_format(const char* flag, const std::string& text) {
  const std::size_t slash = text.find('/');
  eval::KvFormat format;
  format.name = text;
  KVASIR_ASSIGN_OR_RETURN(format.codecs.k, parse_kv_type(flag, text.substr(0, slash)));
  format.codecs.v = format.codecs.k;
  if (slash != std::string::npos) {
    KVASIR_ASSIGN_OR_RETURN(format.codecs.v, parse_kv_type(flag, text.substr(slash + 1)));
  }
  return format;
}

Result<std::vector<eval::KvFormat>> parse_kv_formats(const char* flag, const std::string& text) {
  std::vector<eval::KvFormat> formats;
  std::size_t begin = 0, end = 0;
  for (; end != std::string::npos; begin = end + 1) {
    end = text.find(',', begin);
    KVASIR_ASSIGN_OR_RETURN(eval::KvFormat format,
                            parse_kv_format(flag, text.substr(begin, end - begin)));
    formats.push_back(std::move(format));
  }
  return formats;
}

}  // namespace kvasir::cli
