// JSON to template values, for tests.
#pragma once

#include <fstream>
#include <string>

#include <nlohmann/json.hpp>

#include "text/value.h"

namespace kvasir::text {

using OrderedJson = nlohmann::ordered_json;

inline Value to_value(const OrderedJson& json) {
  if (json.is_null()) return Value(nullptr);
  if (json.is_boolean()) return Value(json.get<bool>());
  if (json.is_number_integer()) return Value(json.get<std::int64_t>());
  if (json.is_number()) return Value(json.get<double>());
  if (json.is_string()) return Value(json.get<std::string>());
  if (json.is_array()) {
    List list;
    for (const OrderedJson& item : json) list.push_back(to_value(item));
    return Value(std::move(list));
  }
  Dict dict;
  for (const auto& [key, item] : json.items()) dict.emplace_back(key, to_value(item));
  return Value(std::move(dict));
}

/// A file of tests/data, which is part of the checkout: it is always there.
inline OrderedJson read_json(const std::string& name) {
  std::ifstream file(std::string(KVASIR_SOURCE_DIR) + "/tests/data/" + name);
  return OrderedJson::parse(file);
}

inline std::string read_text(const std::string& name) {
  std::ifstream file(std::string(KVASIR_SOURCE_DIR) + "/tests/data/" + name);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

}  // namespace kvasir::text
