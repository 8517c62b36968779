// kvasir chat: a conversation. Every turn reuses the K/V of the turns before it; Ctrl-C stops an
// answer and keeps what was computed.
#include <fmt/core.h>

#include "command.h"
#include "generate.h"
#include "line_reader.h"
#include "named_chat.h"
#include "prompting.h"
#include "saved_chats.h"

namespace kvasir::cli {
namespace {

constexpr const char* kQuotes = "\"\"\"";
constexpr const char* kHelp =
    "/help         this\n"
    "/clear        forget the conversation and give its memory back\n"
    "/cache        what the conversation holds in memory\n"
    "/save NAME    write the conversation to a file\n"
    "/load NAME    read it back; without a name: list what was saved\n"
    "/bye          leave (also Ctrl-D)\n"
    "\"\"\"           begins and ends a message of several lines\n"
    "Ctrl-C        stops an answer, keeping what was computed; drops what is being typed\n"
    "Arrow keys edit the line and bring back earlier ones; pasted lines are one message.\n";

struct ChatFlags {
  ModelFlags model;
  SamplingFlags sampling;
  std::string system, session;
};

class Chat {
 public:
  Chat(engine::Engine& engine, text::ChatFormatter chat, const engine::GenerationParams& params,
       const ChatFlags& flags, std::optional<NamedChat> named)
      : engine_(engine),
        chat_(std::move(chat)),
        params_(params),
        system_(flags.system),
        named_(std::move(named)),
        session_(engine) {
    session_.set_shifted_reuse(flags.model.shifted_reuse());
    forget();
  }

  /// The whole conversation. kError also when its end is not in the file it should be in.
  Exit run();

 private:
  Exit loop();
  /// Goes on with what the named conversation holds. Errors: it does not go with this model or
  /// with --system.
  Status resume();
  const std::string& model_name() const { return engine_.model().config().name; }
  /// The named conversation, if any, into its file.
  void keep();
  enum class Next { kGoOn, kLeave };
  /// One line, or several between two lines that begin and end with three quotes.
  LineReader::Outcome read_message(std::string& message);
  void forget();
  Next command(const std::string& line);
  void turn(const std::string& text);
  Status save(const std::string& name);
  Status load(const std::string& name);
  void show_cache();

  engine::Engine& engine_;
  text::ChatFormatter chat_;
  engine::GenerationParams params_;
  std::string system_;
  std::optional<NamedChat> named_;
  bool is_kept_ = true;  // what was said is in the file of named_
  engine::Session session_;
  nlohmann::ordered_json messages_;
  LineReader reader_;
};

bool is_blank(const std::string& text) {
  return text.find_first_not_of(" \t\r\n") == std::string::npos;
}

bool ends_with_quotes(const std::string& text) {
  return text.size() >= 3 && text.compare(text.size() - 3, 3, kQuotes) == 0;
}

LineReader::Outcome Chat::read_message(std::string& message) {
  using Outcome = LineReader::Outcome;
  Outcome outcome = reader_.read(">>> ", message);
  if (outcome == Outcome::kInterrupted) say("(Ctrl-D or /bye to leave)\n");
  if (outcome != Outcome::kLine || message.rfind(kQuotes, 0) != 0) return outcome;
  message.erase(0, 3);
  bool is_first = true;
  std::string line;
  while (!ends_with_quotes(message)) {
    outcome = reader_.read("... ", line);
    if (outcome != Outcome::kLine) {
      const bool is_dropped = outcome == Outcome::kInterrupted;
      say("(the message was {})\n", is_dropped ? "dropped" : "not sent: its end is missing");
      return outcome;
    }
    message += (is_first && message.empty() ? "" : "\n") + line;
    is_first = false;
  }
  message.resize(message.size() - 3);
  if (!message.empty() && message.back() == '\n') message.pop_back();  // quotes on their own line
  return outcome;
}

Status Chat::resume() {
  if (!named_ || named_->is_new()) return {};
  const auto& messages = named_->messages();
  const bool has_system = messages[0]["role"] == "system" && messages[0]["content"] == system_;
  if (!system_.empty() && !has_system) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("--system: session {} began without it; want the one it has, or none",
                             named_->name())};
  }
  if (const auto prompt = render_chat(chat_, messages); !prompt) return prompt.error();
  messages_ = messages;
  return {};
}

void Chat::keep() {
  if (!named_) return;
  const Status saved = named_->save(messages_, model_name());
  is_kept_ = saved.has_value();
  if (!saved) report(saved.error());
}

Exit Chat::run() {
  if (const Status resumed = resume(); !resumed) return report(resumed.error());
  if (stdin_is_terminal()) {
    set_second_interrupt(SecondInterrupt::kChangesNothing);
    say("{}; /help for commands\n", model_name());
  }
  if (named_) named_->show(model_name());
  const Exit code = loop();
  return code == Exit::kOk && !is_kept_ ? Exit::kError : code;
}

Exit Chat::loop() {
  std::string message;
  while (true) {
    // From a pipe there is no one to leave in another way.
    if (!stdin_is_terminal() && interrupted().load()) return Exit::kInterrupted;
    const auto outcome = read_message(message);
    if (outcome == LineReader::Outcome::kFailed) return Exit::kError;
    if (outcome == LineReader::Outcome::kEnd) return Exit::kOk;
    if (outcome == LineReader::Outcome::kInterrupted) {
      if (!stdin_is_terminal()) return Exit::kInterrupted;
      continue;
    }
    if (is_blank(message)) continue;
    if (message[0] == '/' && message.find('\n') == std::string::npos) {
      if (command(message) == Next::kLeave) return Exit::kOk;
    } else {
      turn(message);
    }
  }
}

void Chat::forget() {
  session_.clear();
  messages_ = nlohmann::ordered_json::array();
  if (!system_.empty()) messages_.push_back({{"role", "system"}, {"content", system_}});
}

void Chat::turn(const std::string& text) {
  interrupted().store(false);
  messages_.push_back({{"role", "user"}, {"content", text}});
  const auto fail = [&](const Error& error) {
    report(error);
    messages_.erase(messages_.size() - 1);  // the turn did not happen
  };
  if (const Status fits = check_length(text, engine_.n_ctx()); !fits) return fail(fits.error());
  const auto prompt = render_chat(chat_, messages_);
  if (!prompt) return fail(prompt.error());
  const auto result = answer(engine_, session_, prompt->ids, params_, print);
  if (!result) return fail(result.error());
  print("\n");
  messages_.push_back({{"role", "assistant"}, {"content", result->text}});
  say("[{}{}]\n", figures(*result, engine_.memory_summary()),
      result->finish_reason == "interrupted" ? "; stopped" : "");
  keep();
  if (result->error) report(*result->error);
  note_full_context(*result, engine_.n_ctx(), "; /clear begins again");
}

Status Chat::save(const std::string& name) {
  if (named_ && name == named_->name()) {
    keep();
    if (is_kept_) say("saved {} messages\n", messages_.size());
    return {};
  }
  KVASIR_ASSIGN_OR_RETURN(const std::string path, save_chat(name, messages_, model_name()));
  say("saved {} messages to {}\n", messages_.size(), path);
  is_kept_ = true;
  return {};
}

Status Chat::load(const std::string& name) {
  if (name.empty()) {
    KVASIR_ASSIGN_OR_RETURN(const std::string directory, chats_directory());
    const std::vector<std::string> names = saved_chats();
    say("{} saved in {}\n", names.empty() ? "nothing" : fmt::format("{}", names.size()), directory);
    for (const std::string& one : names) say("  {}\n", one);
    return {};
  }
  KVASIR_ASSIGN_OR_RETURN(SavedChat saved, load_chat(name));
  // Rendering it once proves it usable before the running conversation is given up.
  if (const auto prompt = render_chat(chat_, saved.messages); !prompt) return prompt.error();
  messages_ = saved.messages;
  say("loaded {} messages of {}\n", messages_.size(), name);
  if (!named_) return {};
  // The next answer must not replace what the session so far has in its file.
  named_ = NamedChat(name, std::move(saved));
  is_kept_ = true;
  say("the session is now {}\n", name);
  return {};
}

void Chat::show_cache() {
  say("{} tokens of {} in this conversation\n{}", session_.n_tokens(), engine_.n_ctx(),
      engine_.memory_summary().to_string());
}

void show_help() {
  const auto directory = chats_directory();
  write_stderr(kHelp);
  say("Conversations are saved in {}\n", directory ? *directory : "no place: $HOME is not set");
}

Chat::Next Chat::command(const std::string& line) {
  const std::string words = line.substr(0, line.find_last_not_of(" \t") + 1);
  const std::string verb = words.substr(0, words.find(' '));
  const std::size_t name_at = words.find_first_not_of(' ', verb.size());
  const std::string name = name_at == std::string::npos ? "" : words.substr(name_at);
  Status status;
  if (verb == "/bye" || verb == "/exit" || verb == "/quit") {
    return Next::kLeave;
  } else if (verb == "/help" || verb == "/?") {
    show_help();
  } else if (verb == "/clear") {
    forget();
    say("cleared{}\n",
        named_ ? "; the next answer replaces what session " + named_->name() + " holds" : "");
  } else if (verb == "/cache") {
    show_cache();
  } else if (verb == "/save") {
    status = save(name);
  } else if (verb == "/load") {
    status = load(name);
  } else {
    status = Error{ErrorCode::kInvalidArgument,
                   fmt::format("chat: unknown command; got '{}', want one that /help lists", verb)};
  }
  if (!status) report(status.error());
  return Next::kGoOn;
}

Exit chat(const ChatFlags& flags) {
  std::optional<NamedChat> named;
  if (!flags.session.empty()) {  // before the model: a bad name is said at once
    auto opened = NamedChat::open(flags.session);
    if (!opened) return report(opened.error());
    named = *std::move(opened);
  }
  const auto engine = flags.model.load();
  if (!engine) return report(engine.error());
  const auto params = flags.sampling.params(**engine);
  if (!params) return report(params.error());
  auto formatter = (*engine)->chat_formatter();
  if (!formatter) return report(formatter.error());
  if (interrupted().load()) return Exit::kInterrupted;  // while it loaded
  return Chat(**engine, *std::move(formatter), *params, flags, std::move(named)).run();
}

}  // namespace

void add_chat(CLI::App& app, std::vector<Command>& commands) {
  auto flags = std::make_shared<ChatFlags>();
  CLI::App* sub = app.add_subcommand("chat", "a conversation that keeps its KV between turns");
  flags->model.add(*sub, ModelFlags::Set::kPrompts);
  flags->sampling.add(*sub);
  sub->add_option("--system,--system-prompt", flags->system, "a system message before it");
  sub->add_option("--session", flags->session,
                  "go on with the conversation of this name, or begin it; it is saved after every\n"
                  "answer (/load lists what is saved)");
  sub->footer(
      "Examples:\n"
      "  kvasir chat                                   with the default model\n"
      "  kvasir chat --system \"Answer in one sentence\"\n"
      "  kvasir chat --session trip                    go on tomorrow where this ends\n"
      "  kvasir chat -m model.gguf --kv-budget 512M    in a bounded memory\n");
  commands.push_back({sub, [flags] { return chat(*flags); }});
}

}  // namespace kvasir::cli
