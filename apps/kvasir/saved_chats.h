// Conversations in files of the user's data directory.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace kvasir::cli {

/// $XDG_DATA_HOME/kvasir/chats, else ~/.local/share/kvasir/chats. Errors: kNotFound without either.
Result<std::string> chats_directory();

/// Tells one state of a file from another: each save makes a new file.
struct FileStamp {
  std::uint64_t inode = 0;
  std::int64_t modified_ns = 0;
  std::uint64_t bytes = 0;
  bool operator==(const FileStamp&) const = default;
};

struct SavedChat {
  nlohmann::ordered_json messages;  ///< empty: none saved
  std::string model_name;           ///< of the model that answered last; empty: not known
  std::optional<FileStamp> stamp;   ///< of the file before it was read
};

/// Writes messages to NAME.json there, for the user's eyes only (0600 in 0700); gives the path.
/// Errors: kInvalidArgument (a name that is none, nothing said yet), kIo.
Result<std::string> save_chat(const std::string& name, const nlohmann::ordered_json& messages,
                              const std::string& model_name);

/// What NAME.json holds: at least one message, each with a known role and text as content.
/// Errors: kInvalidArgument naming the file, kNotFound, kIo.
Result<SavedChat> load_chat(const std::string& name);

/// Absent where there is no such file.
std::optional<FileStamp> stamp_of_chat(const std::string& name);

/// Names that can be loaded, in order; none when there is no directory.
std::vector<std::string> saved_chats();

}  // namespace kvasir::cli
