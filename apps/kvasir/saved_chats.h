// Conversations in files of the user's data directory.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"

namespace kvasir::cli {

/// $XDG_DATA_HOME/kvasir/chats, else ~/.local/share/kvasir/chats. Errors: kNotFound without either.
Result<std::string> chats_directory();

/// Writes messages to NAME.json there, for the user's eyes only (0600 in 0700); gives the path.
/// Errors: kInvalidArgument (a name that is none, nothing said yet), kIo.
Result<std::string> save_chat(const std::string& name, const nlohmann::ordered_json& messages);

/// The messages of NAME.json: at least one, each with a known role and text as content.
/// Errors: kInvalidArgument naming the file, kNotFound, kIo.
Result<nlohmann::ordered_json> load_chat(const std::string& name);

/// Names that can be loaded, in order; none when there is no directory.
std::vector<std::string> saved_chats();

}  // namespace kvasir::cli
