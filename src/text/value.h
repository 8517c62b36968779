// The values a chat template computes with: Jinja's (none, bool, int, float, string, list, dict).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace kvasir::text {

/// Bytes with a mark of where they came from; operations keep the marks.
class MarkedString {
 public:
  struct Run {
    std::string text;
    bool from_input = false;
  };
  MarkedString() = default;
  MarkedString(std::string text, bool from_input = false) {
    if (!text.empty()) runs_.push_back({std::move(text), from_input});
  }
  const std::vector<Run>& runs() const { return runs_; }
  std::vector<Run>& runs() { return runs_; }
  std::string str() const {
    std::string all;
    for (const Run& run : runs_) all += run.text;
    return all;
  }
  void append(const MarkedString& other) {
    for (const Run& run : other.runs_) {
      if (!runs_.empty() && runs_.back().from_input == run.from_input) {
        runs_.back().text += run.text;
      } else {
        runs_.push_back(run);
      }
    }
  }

 private:
  std::vector<Run> runs_;
};

class Value;
using List = std::vector<Value>;
/// In insertion order, as Python's.
using Dict = std::vector<std::pair<std::string, Value>>;

/// Lists and dicts are shared, as in Python: a copy refers to the same one. Destruction recurses:
/// whoever builds a value from a request bounds its nesting.
class Value {
 public:
  struct Undefined {};
  Value() : data_(Undefined{}) {}
  Value(std::nullptr_t) : data_(nullptr) {}
  Value(bool value) : data_(value) {}
  Value(int value) : data_(static_cast<std::int64_t>(value)) {}
  Value(std::int64_t value) : data_(value) {}
  Value(double value) : data_(value) {}
  Value(MarkedString value) : data_(std::move(value)) {}
  Value(std::string value) : data_(MarkedString(std::move(value))) {}
  Value(const char* value) : data_(MarkedString(std::string(value))) {}
  Value(List value) : data_(std::make_shared<List>(std::move(value))) {}
  Value(Dict value) : data_(std::make_shared<Dict>(std::move(value))) {}

  using Data = std::variant<Undefined, std::nullptr_t, bool, std::int64_t, double, MarkedString,
                            std::shared_ptr<List>, std::shared_ptr<Dict>>;
  const Data& data() const { return data_; }

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<std::nullptr_t>(data_); }
  const bool* as_bool() const { return std::get_if<bool>(&data_); }
  const std::int64_t* as_int() const { return std::get_if<std::int64_t>(&data_); }
  const double* as_double() const { return std::get_if<double>(&data_); }
  const MarkedString* as_string() const { return std::get_if<MarkedString>(&data_); }
  List* as_list() const {
    auto* list = std::get_if<std::shared_ptr<List>>(&data_);
    return list ? list->get() : nullptr;
  }
  Dict* as_dict() const {
    auto* dict = std::get_if<std::shared_ptr<Dict>>(&data_);
    return dict ? dict->get() : nullptr;
  }

 private:
  Data data_;
};

}  // namespace kvasir::text
