#include "named_chat.h"

#include <algorithm>

#include "console.h"

namespace kvasir::cli {
namespace {

constexpr std::size_t kMessagesShown = 4;
constexpr std::size_t kMessageBytesShown = 70;

std::string on_one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return printable(head_of(text, kMessageBytesShown));
}

}  // namespace

Result<NamedChat> NamedChat::open(const std::string& name) {
  auto saved = load_chat(name);
  if (saved) return NamedChat(name, *std::move(saved));
  if (saved.error().code != ErrorCode::kNotFound) return saved.error();
  KVASIR_RETURN_IF_ERROR(chats_directory());  // better now than after the first answer
  return NamedChat(name, {});
}

Status NamedChat::save(const nlohmann::ordered_json& messages, const std::string& model_name) {
  if (stamp_of_chat(name_) != saved_.stamp) {
    return Error{ErrorCode::kIo, "session " + name_ +
                                     ": another process has changed it; not saved, want another "
                                     "name: /save NAME"};
  }
  const auto path = save_chat(name_, messages, model_name);
  if (!path) return path.error();
  saved_.stamp = stamp_of_chat(name_);
  return {};
}

void NamedChat::show(const std::string& model_name) const {
  if (is_new()) {
    say("session {}: new; it is saved after every answer\n", name_);
    return;
  }
  const auto& messages = saved_.messages;
  say("session {}: {} messages\n", name_, messages.size());
  const std::size_t first = messages.size() - std::min(messages.size(), kMessagesShown);
  if (first > 0) say("  ...\n");
  for (std::size_t i = first; i < messages.size(); ++i) {
    say("  {}: {}\n", messages[i]["role"].get<std::string>(),
        on_one_line(messages[i]["content"].get<std::string>()));
  }
  if (!saved_.model_name.empty() && saved_.model_name != model_name) {
    say("kvasir: note: the session was held with {}, and goes on with {}\n",
        printable(saved_.model_name), printable(model_name));
  }
}

}  // namespace kvasir::cli
