// Result<T>: a value or the reason there is none. A subset of std::expected<T, Error> (C++23), so
// that a later compiler lets us replace it by an alias.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace kvasir {

/// What the caller can do about it.
enum class ErrorCode {
  kInvalidArgument,  ///< fix the call (a flag, a request field)
  kNotFound,         ///< the named thing does not exist
  kInvalidModel,     ///< the model file is malformed; no retry helps
  kUnsupported,      ///< well-formed, but nothing here can run it
  kExhausted,        ///< a budget is full: free something, then retry
  kIo,               ///< the operating system refused
  kCorruption,       ///< stored bytes are damaged: drop the entry
  kCancelled,        ///< stopped on request
};

/// `message` reads `where: what; got X, want Y`: lower case, units, no trailing dot.
struct Error {
  ErrorCode code = ErrorCode::kInvalidArgument;
  std::string message;
};

template <class T>
class [[nodiscard]] Result {
 public:
  using value_type = T;
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool has_value() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }

  T& value() & { return checked(); }
  const T& value() const& { return const_cast<Result*>(this)->checked(); }
  T&& value() && { return std::move(checked()); }
  T& operator*() & { return checked(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(checked()); }
  T* operator->() { return &checked(); }
  const T* operator->() const { return &value(); }

  const Error& error() const& {
    KVASIR_CHECK(!has_value());
    return std::get<1>(state_);
  }
  Error&& error() && {
    KVASIR_CHECK(!has_value());
    return std::get<1>(std::move(state_));
  }

 private:
  T& checked() {
    KVASIR_CHECK(has_value());
    return std::get<0>(state_);
  }
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}
  bool has_value() const noexcept { return !error_.has_value(); }
  explicit operator bool() const noexcept { return has_value(); }
  const Error& error() const& {
    KVASIR_CHECK(error_.has_value());
    return *error_;
  }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

}  // namespace kvasir

#define KVASIR_CONCAT_INNER(a, b) a##b
#define KVASIR_CONCAT(a, b) KVASIR_CONCAT_INNER(a, b)

// KVASIR_ASSIGN_OR_RETURN(auto file, gguf::File::open(path));
#define KVASIR_ASSIGN_OR_RETURN(declaration, expression) \
  KVASIR_ASSIGN_OR_RETURN_IMPL(KVASIR_CONCAT(kvasir_result_, __LINE__), declaration, expression)
#define KVASIR_ASSIGN_OR_RETURN_IMPL(tmp, declaration, expression) \
  auto tmp = (expression);                                         \
  if (!tmp) return std::move(tmp).error();                         \
  declaration = *std::move(tmp)

#define KVASIR_RETURN_IF_ERROR(expression)                     \
  do {                                                         \
    if (auto kvasir_status_ = (expression); !kvasir_status_) { \
      return kvasir_status_.error();                           \
    }                                                          \
  } while (false)
