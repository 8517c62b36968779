#include "model/hyperparameters.h"

#include <fmt/format.h>

#include <cmath>
#include <variant>

namespace kvasir::model {

std::string Hyperparameters::key(std::string_view suffix) const {
  return fmt::format("{}.{}", architecture_, suffix);
}

Result<std::optional<std::int64_t>> Hyperparameters::uniform_int(std::string_view suffix) const {
  const std::string name = key(suffix);
  const gguf::Value* value = file_->find(name);
  if (value == nullptr) return std::optional<std::int64_t>();
  if (!std::holds_alternative<gguf::Array>(value->data)) return file_->get_int(name);

  const gguf::Array& array = std::get<gguf::Array>(value->data);
  if (!array.is_integer() || array.size() == 0) {
    return Error{ErrorCode::kInvalidModel,
                 fmt::format("model: '{}' is no list of integers; got {} of {}", name, array.size(),
                             gguf::value_type_name(array.element_type()))};
  }
  for (std::size_t i = 1; i < array.size(); ++i) {
    if (array.int_at(i) != array.int_at(0)) {
      return Error{ErrorCode::kUnsupported,
                   fmt::format("model: '{}' differs between layers; got {} at layer {}, want {} "
                               "everywhere",
                               name, array.int_at(i), i, array.int_at(0))};
    }
  }
  return std::optional<std::int64_t>(array.int_at(0));
}

Result<int> Hyperparameters::required_int(std::string_view suffix, std::int64_t min,
                                          std::int64_t max) const {
  if (!has(suffix)) {
    return Error{ErrorCode::kInvalidModel, fmt::format("model: '{}' is missing", key(suffix))};
  }
  return int_or(suffix, 0, min, max);
}

Result<int> Hyperparameters::int_or(std::string_view suffix, int fallback, std::int64_t min,
                                    std::int64_t max) const {
  KVASIR_ASSIGN_OR_RETURN(const std::optional<std::int64_t> value, uniform_int(suffix));
  if (!value.has_value()) return fallback;
  if (*value < min || *value > max) {
    return Error{ErrorCode::kInvalidModel,
                 fmt::format("model: '{}' is out of range; got {}, want {}..{}", key(suffix),
                             *value, min, max)};
  }
  return static_cast<int>(*value);
}

Result<double> Hyperparameters::double_or(std::string_view suffix, double fallback, double min,
                                          double max) const {
  KVASIR_ASSIGN_OR_RETURN(const std::optional<double> value, file_->get_double(key(suffix)));
  if (!value.has_value()) return fallback;
  if (!std::isfinite(*value) || *value < min || *value > max) {
    return Error{ErrorCode::kInvalidModel,
                 fmt::format("model: '{}' is out of range; got {}, want a finite number{}",
                             key(suffix), *value, min > 0.0 ? " above 0" : "")};
  }
  return *value;
}

Result<double> Hyperparameters::positive_or(std::string_view suffix, double fallback) const {
  return double_or(suffix, fallback, std::numeric_limits<double>::min());
}

Result<std::optional<std::string_view>> Hyperparameters::string(std::string_view suffix) const {
  return file_->get_string(key(suffix));
}

}  // namespace kvasir::model
