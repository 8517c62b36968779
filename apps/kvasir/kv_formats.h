// Types of cached K and V as flags of comparisons name them.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "eval/kld_figures.h"

namespace kvasir::cli {

/// "f16", or "f16/bf16": K's and V's. Errors: kInvalidArgument naming the flag.
Result<eval::KvFormat> parse_kv_format(const char* flag, const std::string& text);
/// One or more of them, separated by commas.
Result<std::vector<eval::KvFormat>> parse_kv_formats(const char* flag, const std::string& text);

}  // namespace kvasir::cli
