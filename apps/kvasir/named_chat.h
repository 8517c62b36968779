// A conversation that is in its file after every turn: `kvasir chat --session NAME`.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/result.h"
#include "saved_chats.h"

namespace kvasir::cli {

class NamedChat {
 public:
  /// `saved`: what load_chat gave under that name.
  NamedChat(std::string name, SavedChat saved) : name_(std::move(name)), saved_(std::move(saved)) {}
  /// The saved conversation of that name, or a new one. Errors: those of load_chat but kNotFound.
  static Result<NamedChat> open(const std::string& name);

  const std::string& name() const { return name_; }
  bool is_new() const { return saved_.messages.empty(); }
  /// As they were when it was opened.
  const nlohmann::ordered_json& messages() const { return saved_.messages; }
  const std::string& model_name() const { return saved_.model_name; }

  /// Replaces what the file holds. Errors: those of save_chat; kIo when somebody else has written
  /// to it since: theirs stays.
  Status save(const nlohmann::ordered_json& messages, const std::string& model_name);

  /// Says on stderr what was said last, shortened; of a new one, that it is new.
  void show(const std::string& model_name) const;

 private:
  std::string name_;
  SavedChat saved_;
};

}  // namespace kvasir::cli
