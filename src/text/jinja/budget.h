// What a template may still spend: steps, bytes and nesting; and how its errors travel.
//
// Inside this folder an error is thrown as TemplateError; ChatTemplate catches it, so that no
// exception leaves the room.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/result.h"
#include "text/chat_template.h"

namespace kvasir::text::jinja {

/// An error on its way out. `line` 0: the thrower does not know where; the interpreter adds it.
struct TemplateError {
  ErrorCode code = ErrorCode::kInvalidModel;
  std::string message;
  int line = 0;
  int column = 0;
};

/// The template did something it may not: `message` as Jinja2 would put it.
[[noreturn]] inline void fail(std::string message) {
  throw TemplateError{ErrorCode::kInvalidModel, std::move(message)};
}

/// Counts down while one template runs. Threads: one render.
class Budget {
 public:
  explicit Budget(const TemplateLimits& limits)
      : limits_(limits), n_steps_left_(limits.n_steps_max) {}

  const TemplateLimits& limits() const { return limits_; }

  void step(std::uint64_t n = 1) {
    if (n > n_steps_left_) {
      throw TemplateError{
          ErrorCode::kExhausted,
          "template runs too long; the limit is " + std::to_string(limits_.n_steps_max) + " steps"};
    }
    n_steps_left_ -= n;
  }

  /// Accounts for `n_new` bytes written to a string that is `size` bytes long afterwards. Written
  /// bytes cost steps too, so that the memory all strings hold together stays bounded.
  void bytes(std::uint64_t size, std::uint64_t n_new) {
    if (size > limits_.output_bytes_max) {
      throw TemplateError{
          ErrorCode::kExhausted,
          "string is too long; the limit is " + std::to_string(limits_.output_bytes_max) + " B"};
    }
    unpaid_bytes_ += n_new;
    if (unpaid_bytes_ >= kBytesPerStep) {
      step(unpaid_bytes_ / kBytesPerStep);
      unpaid_bytes_ %= kBytesPerStep;
    }
  }

  /// Accounts for a container or a macro call at this nesting.
  void depth(int nesting) const {
    if (nesting > limits_.depth_max) {
      throw TemplateError{ErrorCode::kExhausted, "nested too deeply; the limit is " +
                                                     std::to_string(limits_.depth_max) + " levels"};
    }
  }

 private:
  static constexpr std::uint64_t kBytesPerStep = 64;
  const TemplateLimits limits_;
  std::uint64_t n_steps_left_;
  std::uint64_t unpaid_bytes_ = 0;
};

}  // namespace kvasir::text::jinja
