#include "saved_chats.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/env.h"
#include "command.h"
#include "console.h"

namespace kvasir::cli {
namespace {

constexpr int kSchemaVersion = 1;
constexpr const char* kExtension = ".json";

/// 1 to 64 of A-Z a-z 0-9 . _ - and no dot in front: a name can not leave its directory.
bool is_safe_name(const std::string& name) {
  if (name.empty() || name.size() > 64 || name[0] == '.') return false;
  for (const char c : name) {
    const bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                    c == '.' || c == '_' || c == '-';
    if (!ok) return false;
  }
  return true;
}

Result<std::string> path_of(const std::string& name) {
  if (!is_safe_name(name)) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("name: got '{}', want 1 to 64 letters, digits, . _ -", name)};
  }
  KVASIR_ASSIGN_OR_RETURN(const std::string directory, chats_directory());
  return directory + "/" + name + kExtension;
}

std::string member(const nlohmann::ordered_json& message, const char* key) {
  const bool is_text = message.is_object() && message.contains(key) && message[key].is_string();
  return is_text ? message[key].get<std::string>() : std::string();
}

Status check(const nlohmann::ordered_json& saved, const std::string& path) {
  const auto refuse = [&](const std::string& what) {
    return Error{ErrorCode::kInvalidArgument, path + ": not a saved conversation; " + what};
  };
  if (!saved.is_object() || !saved.contains("messages") || !saved["messages"].is_array()) {
    return refuse("want an object with \"messages\"");
  }
  const auto version = saved.value("schema_version", nlohmann::ordered_json());
  if (version != kSchemaVersion) {
    return refuse(fmt::format("got schema_version {}, want {}", version.dump(), kSchemaVersion));
  }
  const auto& messages = saved["messages"];
  if (messages.empty()) return refuse("got no messages, want at least one");
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string role = member(messages[i], "role");
    if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
      return refuse(fmt::format("got role '{}' in message {}, want system, user, assistant or tool",
                                role, i + 1));
    }
    if (!messages[i].contains("content") || !messages[i]["content"].is_string()) {
      return refuse(fmt::format("message {} has no text as its content", i + 1));
    }
  }
  return {};
}

}  // namespace

Result<std::string> chats_directory() {
  const auto is_set = [](const char* value) { return value != nullptr && *value != '\0'; };
  const char* data_home = std::getenv("XDG_DATA_HOME");
  if (is_set(data_home)) return std::string(data_home) + "/kvasir/chats";
  const char* home = std::getenv("HOME");
  if (is_set(home)) return std::string(home) + "/.local/share/kvasir/chats";
  return Error{ErrorCode::kNotFound,
               "conversations: no place for them; want $XDG_DATA_HOME or $HOME"};
}

std::optional<FileStamp> stamp_of_chat(const std::string& name) {
  const auto path = path_of(name);
  struct stat info {};
  if (!path || ::stat(path->c_str(), &info) != 0) return std::nullopt;
  return FileStamp{
      .inode = info.st_ino,
      .modified_ns = std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec,
      .bytes = static_cast<std::uint64_t>(info.st_size)};
}

Result<std::string> save_chat(const std::string& name, const nlohmann::ordered_json& messages,
                              const std::string& model_name) {
  KVASIR_ASSIGN_OR_RETURN(const std::string path, path_of(name));
  if (std::none_of(messages.begin(), messages.end(),
                   [](const auto& message) { return message["role"] == "user"; })) {
    return Error{ErrorCode::kInvalidArgument, "conversation: empty; want something said first"};
  }
  const std::filesystem::path directory = std::filesystem::path(path).parent_path();
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return Error{ErrorCode::kIo,
                 fmt::format("{}: cannot create; {}", directory.string(), error.message())};
  }
  (void)::chmod(directory.c_str(), 0700);
  const std::string text =
      dump({{"schema_version", kSchemaVersion}, {"model", model_name}, {"messages", messages}}) +
      "\n";
  const ::mode_t mask = ::umask(0077);
  const Status status = Env::posix().write_file_atomic(
      path, {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
  ::umask(mask);
  if (!status) return status.error();
  return path;
}

Result<SavedChat> load_chat(const std::string& name) {
  KVASIR_ASSIGN_OR_RETURN(const std::string path, path_of(name));
  SavedChat chat;
  chat.stamp = stamp_of_chat(name);
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    return Error{ErrorCode::kIo, path + ": cannot read; not a regular file"};
  }
  KVASIR_ASSIGN_OR_RETURN(const std::string text, read_input(path));
  KVASIR_ASSIGN_OR_RETURN(nlohmann::ordered_json saved, parse_json(text, path));
  KVASIR_RETURN_IF_ERROR(check(saved, path));
  chat.model_name = member(saved, "model");
  chat.messages = std::move(saved["messages"]);
  return chat;
}

std::vector<std::string> saved_chats() {
  std::vector<std::string> names;
  const auto directory = chats_directory();
  if (!directory) return names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(*directory, error)) {
    const std::string name = entry.path().stem().string();
    if (entry.path().extension() == kExtension && is_safe_name(name)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace kvasir::cli
