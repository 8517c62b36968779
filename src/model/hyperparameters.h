// Reads one architecture's metadata keys ("llama.block_count") with ranges, for ModelConfig.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "gguf/file.h"

namespace kvasir::model {

/// Keys are given without the architecture's prefix. Thread safety: immutable; any thread.
class Hyperparameters {
 public:
  /// `file` must outlive this object.
  Hyperparameters(const gguf::File& file, std::string architecture)
      : file_(&file), architecture_(std::move(architecture)) {}

  const gguf::File& file() const { return *file_; }
  const std::string& architecture() const { return architecture_; }
  std::string key(std::string_view suffix) const;
  bool has(std::string_view suffix) const { return file_->find(key(suffix)) != nullptr; }

  /// An integer in [min, max]; an array stands for one value per layer and must be uniform.
  /// Errors: kInvalidModel when absent, of another type or out of range; kUnsupported when layers
  /// differ.
  Result<int> required_int(std::string_view suffix, std::int64_t min, std::int64_t max) const;
  /// The same, `fallback` when absent.
  Result<int> int_or(std::string_view suffix, int fallback, std::int64_t min,
                     std::int64_t max) const;
  /// A finite number in [min, max]; `fallback` when absent. Errors: kInvalidModel.
  Result<double> double_or(std::string_view suffix, double fallback,
                           double min = std::numeric_limits<double>::lowest(),
                           double max = std::numeric_limits<double>::max()) const;
  /// The same, above zero.
  Result<double> positive_or(std::string_view suffix, double fallback) const;
  /// Errors: kInvalidModel when it is no string.
  Result<std::optional<std::string_view>> string(std::string_view suffix) const;

 private:
  Result<std::optional<std::int64_t>> uniform_int(std::string_view suffix) const;

  const gguf::File* file_;
  std::string architecture_;
};

}  // namespace kvasir::model
