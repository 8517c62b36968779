// kvasir run: one prompt, one answer, on stdout.
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include "command.h"
#include "generate.h"
#include "prompting.h"

namespace kvasir::cli {
namespace {

struct RunFlags {
  ModelFlags model;
  SamplingFlags sampling;
  std::vector<std::string> words;
  std::string prompt, file, system, ids;
  bool raw = false, json = false, memory = false;
};

/// Something is piped or redirected in: `cat x | kvasir run "Summarise"`.
bool stdin_is_piped() {
  struct stat info {};
  return ::fstat(STDIN_FILENO, &info) == 0 && (S_ISFIFO(info.st_mode) || S_ISREG(info.st_mode));
}

/// The prompt's words: the argument, then the file or the pipe below it.
Result<std::string> gather_text(const RunFlags& flags) {
  std::string text = flags.prompt;
  for (const std::string& word : flags.words) text += (text.empty() ? "" : " ") + word;
  std::string body;
  if (!flags.file.empty()) {
    KVASIR_ASSIGN_OR_RETURN(body, read_input(flags.file));
  } else if (flags.prompt.empty() && (!flags.words.empty() || !stdin_is_terminal()) &&
             stdin_is_piped()) {
    KVASIR_ASSIGN_OR_RETURN(body, read_stdin());
  }
  if (!text.empty() && !body.empty()) text += "\n\n";
  text += body;
  if (text.empty()) {
    return Error{ErrorCode::kInvalidArgument,
                 "prompt: none given; want text, -f FILE or something on standard input"};
  }
  return text;
}

Result<text::RenderedPrompt> make_prompt(const RunFlags& flags, const engine::Engine& engine) {
  if (!flags.ids.empty()) {
    text::RenderedPrompt prompt;
    KVASIR_ASSIGN_OR_RETURN(prompt.ids, parse_ids(flags.ids));
    return prompt;
  }
  KVASIR_ASSIGN_OR_RETURN(const std::string text, gather_text(flags));
  if (flags.raw) return raw_prompt(engine.tokenizer(), text);
  const auto chat = engine.chat_formatter();
  if (!chat && chat.error().code == ErrorCode::kUnsupported) {
    fmt::print(stderr,
               "kvasir: note: the model has no chat template; the text is completed as it is\n");
    return raw_prompt(engine.tokenizer(), text);
  }
  if (!chat) return chat.error();
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  if (!flags.system.empty()) messages.push_back({{"role", "system"}, {"content", flags.system}});
  messages.push_back({{"role", "user"}, {"content", text}});
  return render_chat(*chat, messages);
}

Exit run(const RunFlags& flags) {
  if (flags.raw && !flags.system.empty()) {
    return report(
        {ErrorCode::kInvalidArgument, "--raw: takes the text as it is; got --system as well"});
  }
  const auto engine = flags.model.load();
  if (!engine) return report(engine.error());
  const auto params = flags.sampling.params(**engine);
  if (!params) return report(params.error());
  const auto prompt = make_prompt(flags, **engine);
  if (!prompt) return report(prompt.error());

  engine::Session session(**engine);
  const auto result = answer(**engine, session, prompt->ids, *params, [&](std::string_view text) {
    if (!flags.json) print(text);
  });
  if (!result) return report(result.error());
  const cache::MemorySummary memory = (*engine)->memory_summary();
  const bool was_interrupted = result->finish_reason == "interrupted";
  if (flags.json) {
    print(dump({{"schema_version", 1},
                {"text", result->text},
                {"ids", result->ids},
                {"prompt_ids", prompt->ids},
                {"finish_reason", result->finish_reason},
                {"usage", usage_json(*result)},
                {"timings", timings_json(*result, (*engine)->load_seconds())},
                {"memory", to_json(memory)}}) +
          "\n");
  } else {
    print("\n");
    fmt::print(stderr, "{}\n", figures(*result, memory));
    if (flags.memory) fmt::print(stderr, "{}", memory.to_string());
  }
  return was_interrupted ? Exit::kInterrupted : Exit::kOk;
}

}  // namespace

void add_run(CLI::App& app, std::vector<Command>& commands) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* sub = app.add_subcommand("run", "answer one prompt (argument, file, pipe)");
  flags->model.add(*sub, ModelFlags::Set::kEngine);
  flags->sampling.add(*sub);
  sub->add_option("prompt", flags->words, "the prompt; a pipe on standard input is put below it");
  auto* prompt =
      sub->add_option("-p,--prompt", flags->prompt, "the prompt; standard input is left alone");
  auto* file = sub->add_option("-f,--file", flags->file,
                               "put this file below the prompt; - : standard input");
  sub->add_option("--system,--system-prompt", flags->system, "a system message before it");
  auto* ids = sub->add_option("--ids", flags->ids, "the prompt as token ids: 1,2,3");
  ids->excludes(prompt)->excludes(file);
  sub->add_flag("--raw", flags->raw, "the text as it is, without the chat template");
  sub->add_flag("--json", flags->json, "one JSON object: text, ids, usage, timings, memory");
  sub->add_flag("--memory", flags->memory, "print bytes by owner at the end");
  commands.push_back({sub, [flags] { return run(*flags); }});
}

}  // namespace kvasir::cli
