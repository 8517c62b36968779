// kvasir chat: a conversation. Every turn reuses the K/V of the turns before it; Ctrl-C stops an
// answer and keeps what was computed.
#include <fmt/core.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "base/units.h"
#include "command.h"
#include "generate.h"
#include "prompting.h"

namespace kvasir::cli {
namespace {

constexpr const char* kHelp =
    "/help         this\n"
    "/clear        forget the conversation and give its memory back\n"
    "/cache        what the conversation holds in memory\n"
    "/save NAME    write the conversation to a file of that name in your data directory\n"
    "/load NAME    read it back\n"
    "/bye          leave (also Ctrl-D)\n"
    "\"\"\"           begins and ends a message of several lines\n"
    "Ctrl-C        stops an answer; what was computed is kept\n";

struct ChatFlags {
  ModelFlags model;
  SamplingFlags sampling;
  std::string system;
};

/// Saved conversations: $XDG_DATA_HOME/kvasir/chats, mode 0700.
std::filesystem::path chats_directory() {
  if (const char* data_home = std::getenv("XDG_DATA_HOME"); data_home != nullptr && *data_home) {
    return std::filesystem::path(data_home) / "kvasir" / "chats";
  }
  const char* home = std::getenv("HOME");
  return std::filesystem::path(home != nullptr ? home : ".") / ".local/share/kvasir/chats";
}

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

class Chat {
 public:
  Chat(engine::Engine& engine, text::ChatFormatter chat, const engine::GenerationParams& params,
       std::string system)
      : engine_(engine),
        chat_(std::move(chat)),
        params_(params),
        system_(std::move(system)),
        session_(engine) {
    forget();
  }

  Exit loop();

 private:
  enum class Next { kGoOn, kLeave };
  void forget();
  Next command(const std::string& line);
  void turn(const std::string& text);
  Status save(const std::string& name) const;
  Status load(const std::string& name);
  void show_cache();

  engine::Engine& engine_;
  text::ChatFormatter chat_;
  engine::GenerationParams params_;
  std::string system_;
  engine::Session session_;
  nlohmann::ordered_json messages_;
};

/// A line of standard input without its newline; nullopt at its end. Ctrl-C gives an empty line.
std::optional<std::string> read_line(const char* prompt) {
  if (stdin_is_terminal()) fmt::print(stderr, "{}", prompt);
  char* buffer = nullptr;
  std::size_t capacity = 0;
  errno = 0;
  const ssize_t n = ::getline(&buffer, &capacity, stdin);
  std::optional<std::string> line;
  if (n >= 0) {
    line.emplace(buffer, static_cast<std::size_t>(n));
    if (!line->empty() && line->back() == '\n') line->pop_back();
  } else if (errno == EINTR) {
    std::clearerr(stdin);
    interrupted().store(false);
    fmt::print(stderr, "\n(Ctrl-D or /bye to leave)\n");
    line.emplace();
  }
  std::free(buffer);
  return line;
}

/// A message: one line, or several between two lines that begin and end with three quotes.
std::optional<std::string> read_message() {
  std::optional<std::string> line = read_line(">>> ");
  if (!line || line->rfind("\"\"\"", 0) != 0) return line;
  std::string message = line->substr(3);
  while (true) {
    if (message.size() >= 3 && message.compare(message.size() - 3, 3, "\"\"\"") == 0) {
      message.resize(message.size() - 3);
      return message;
    }
    line = read_line("... ");
    if (!line) return message;
    message += (message.empty() ? "" : "\n") + *line;
  }
}

Exit Chat::loop() {
  if (stdin_is_terminal())
    fmt::print(stderr, "{}; /help for commands\n", engine_.model().config().name);
  while (const std::optional<std::string> message = read_message()) {
    if (message->empty()) continue;
    if ((*message)[0] == '/' && message->find('\n') == std::string::npos) {
      if (command(*message) == Next::kLeave) return Exit::kOk;
    } else {
      turn(*message);
    }
  }
  return Exit::kOk;
}

void Chat::forget() {
  session_.clear();
  messages_ = nlohmann::ordered_json::array();
  if (!system_.empty()) messages_.push_back({{"role", "system"}, {"content", system_}});
}

void Chat::turn(const std::string& text) {
  messages_.push_back({{"role", "user"}, {"content", text}});
  const auto fail = [&](const Error& error) {
    report(error);
    messages_.erase(messages_.size() - 1);  // the turn did not happen
  };
  const auto prompt = render_chat(chat_, messages_);
  if (!prompt) return fail(prompt.error());
  const auto result = answer(engine_, session_, prompt->ids, params_, print);
  interrupted().store(false);
  if (!result) return fail(result.error());
  print("\n");
  messages_.push_back({{"role", "assistant"}, {"content", result->text}});
  fmt::print(stderr, "[{}{}]\n", figures(*result, engine_.memory_summary()),
             result->finish_reason == "interrupted" ? "; stopped" : "");
  if (result->finish_reason == "context_full") {
    fmt::print(stderr, "kvasir: note: the context of {} tokens is full; /clear begins again\n",
               engine_.n_ctx());
  }
}

Status Chat::save(const std::string& name) const {
  const std::filesystem::path directory = chats_directory();
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return Error{ErrorCode::kIo,
                 fmt::format("{}: cannot create; {}", directory.string(), error.message())};
  }
  (void)::chmod(directory.c_str(), 0700);
  const std::string text =
      dump(nlohmann::json({{"schema_version", 1}, {"messages", messages_}})) + "\n";
  return Env::posix().write_file_atomic(
      (directory / (name + ".json")).string(),
      {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
}

Status Chat::load(const std::string& name) {
  const std::string path = (chats_directory() / (name + ".json")).string();
  KVASIR_ASSIGN_OR_RETURN(const std::string text, Env::posix().read_file(path, 64u << 20));
  KVASIR_ASSIGN_OR_RETURN(const nlohmann::ordered_json saved, parse_json(text, path));
  if (!saved.is_object() || !saved.contains("messages") || !saved["messages"].is_array()) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{}: not a saved conversation; want messages", path)};
  }
  // Rendering it once proves it usable before the running conversation is given up.
  KVASIR_RETURN_IF_ERROR([&]() -> Status {
    const auto prompt = render_chat(chat_, saved["messages"]);
    return prompt ? Status{} : Status{prompt.error()};
  }());
  messages_ = saved["messages"];
  return {};
}

void Chat::show_cache() {
  fmt::print(stderr, "{} tokens of {} in this conversation\n{}", session_.n_tokens(),
             engine_.n_ctx(), engine_.memory_summary().to_string());
}

Chat::Next Chat::command(const std::string& line) {
  const std::size_t space = line.find(' ');
  const std::string verb = line.substr(0, space);
  const std::string name = space == std::string::npos ? "" : line.substr(space + 1);
  if (verb == "/bye" || verb == "/exit" || verb == "/quit") return Next::kLeave;
  if (verb == "/help" || verb == "/?") {
    fmt::print(stderr, "{}", kHelp);
  } else if (verb == "/clear") {
    forget();
    fmt::print(stderr, "cleared\n");
  } else if (verb == "/cache") {
    show_cache();
  } else if (verb == "/save" || verb == "/load") {
    if (!is_safe_name(name)) {
      fmt::print(stderr, "kvasir: {}: got '{}', want a name of 1 to 64 letters, digits, . _ -\n",
                 verb, name);
      return Next::kGoOn;
    }
    const Status status = verb == "/save" ? save(name) : load(name);
    if (!status) {
      report(status.error());
    } else {
      fmt::print(stderr, "{} {} ({} messages)\n", verb == "/save" ? "saved" : "loaded", name,
                 messages_.size());
    }
  } else {
    fmt::print(stderr, "kvasir: unknown command {}; /help lists them\n", verb);
  }
  return Next::kGoOn;
}

}  // namespace

void add_chat(CLI::App& app, std::vector<Command>& commands) {
  auto flags = std::make_shared<ChatFlags>();
  CLI::App* sub = app.add_subcommand("chat", "a conversation that keeps its KV between turns");
  flags->model.add(*sub, ModelFlags::Set::kEngine);
  flags->sampling.add(*sub);
  sub->add_option("--system,--system-prompt", flags->system, "a system message before it");
  commands.push_back({sub, [flags] {
                        const auto engine = flags->model.load();
                        if (!engine) return report(engine.error());
                        const auto params = flags->sampling.params(**engine);
                        if (!params) return report(params.error());
                        auto chat = (*engine)->chat_formatter();
                        if (!chat) return report(chat.error());
                        return Chat(**engine, *std::move(chat), *params, flags->system).loop();
                      }});
}

}  // namespace kvasir::cli
