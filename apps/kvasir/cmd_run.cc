// kvasir run: one prompt, one answer, on stdout.
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include "command.h"
#include "generate.h"
#include "prompting.h"

namespace kvasir::cli {
namespace {

constexpr int kWordsMax = 1 << 20;

struct RunFlags {
  ModelFlags model;
  SamplingFlags sampling;
  std::vector<std::string> words;
  std::string prompt, file, system, ids;
  bool raw = false, json = false, memory = false, explain = false;
};

/// Something is piped or redirected in: `cat x | kvasir run "Summarise"`.
bool stdin_is_piped() {
  struct stat info {};
  return ::fstat(STDIN_FILENO, &info) == 0 && (S_ISFIFO(info.st_mode) || S_ISREG(info.st_mode));
}

/// The prompt's words: the argument, below it the file, below that the pipe.
Result<std::string> gather_text(const RunFlags& flags) {
  std::string text = flags.prompt;
  for (const std::string& word : flags.words) text += (text.empty() ? "" : " ") + word;
  const auto put_below = [&](const std::string& body) {
    if (!text.empty() && !body.empty()) text += "\n\n";
    text += body;
  };
  if (!flags.file.empty()) {
    KVASIR_ASSIGN_OR_RETURN(const std::string body, read_input(flags.file));
    put_below(body);
  }
  if (flags.prompt.empty() && flags.file != "-" && stdin_is_piped()) {
    KVASIR_ASSIGN_OR_RETURN(const std::string body, read_stdin());
    put_below(body);
  }
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
  KVASIR_RETURN_IF_ERROR(check_length(text, engine.n_ctx()));
  if (flags.raw) return raw_prompt(engine.tokenizer(), text);
  const auto chat = engine.chat_formatter();
  if (!chat && chat.error().code == ErrorCode::kUnsupported) {
    if (!flags.system.empty()) {
      return Error{ErrorCode::kInvalidArgument,
                   "--system: the model has no chat template; want one that has, or no --system"};
    }
    say("kvasir: note: the model has no chat template; the text is completed as it is\n");
    return raw_prompt(engine.tokenizer(), text);
  }
  if (!chat) return chat.error();
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  if (!flags.system.empty()) messages.push_back({{"role", "system"}, {"content", flags.system}});
  messages.push_back({{"role", "user"}, {"content", text}});
  return render_chat(*chat, messages);
}

nlohmann::json answer_json(const Answer& answer, const std::vector<TokenId>& prompt_ids,
                           engine::Engine& engine) {
  nlohmann::json json = {{"schema_version", 1},
                         {"text", answer.text},
                         {"ids", answer.ids},
                         {"prompt_ids", prompt_ids},
                         {"finish_reason", answer.finish_reason},
                         {"seed", answer.seed},
                         {"usage", usage_json(answer)},
                         {"timings", timings_json(answer, engine.load_seconds())},
                         {"faults", faults_json(answer)},
                         {"memory", to_json(engine.memory_summary())}};
  if (answer.error) json["error"] = answer.error->message;
  return json;
}

Exit run(const RunFlags& flags) {
  const auto engine = flags.model.load();
  if (!engine) return report(engine.error());
  const auto params = flags.sampling.params(**engine);
  if (!params) return report(params.error());
  const auto prompt = make_prompt(flags, **engine);
  if (!prompt) return report(prompt.error());

  engine::Session session(**engine);
  session.set_shifted_reuse(flags.model.shifted_reuse());
  const auto result = answer(**engine, session, prompt->ids, *params, [&](std::string_view text) {
    if (!flags.json) print(text);
  });
  if (!result) return report(result.error());
  if (flags.json) {
    print(dump(answer_json(*result, prompt->ids, **engine)) + "\n");
  } else {
    const cache::MemorySummary memory = (*engine)->memory_summary();
    print("\n");
    say("{}\n", figures(*result, memory));
    if (flags.memory) write_stderr(memory.to_string());
    if (flags.explain) say("{}\n", explain(result->prompt, (*engine)->tokenizer()));
  }
  note_full_context(*result, (*engine)->n_ctx(), "");
  if (result->error) return report(*result->error);
  return result->finish_reason == "interrupted" ? Exit::kInterrupted : Exit::kOk;
}

}  // namespace

void add_run(CLI::App& app, std::vector<Command>& commands) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* sub = app.add_subcommand("run", "answer one prompt (argument, file, pipe)");
  flags->model.add(*sub, ModelFlags::Set::kPrompts);
  flags->sampling.add(*sub);
  // Many single values rather than one list: of a list CLI11 would take "[a, b]" apart.
  auto* words = sub->add_option("prompt", flags->words,
                                "the prompt; a pipe on standard input is put below it")
                    ->expected(kWordsMax)
                    ->take_all()
                    ->allow_extra_args(false);
  auto* prompt =
      sub->add_option("-p,--prompt", flags->prompt, "the prompt; standard input is left alone");
  auto* file = sub->add_option("-f,--file", flags->file,
                               "put this file below the prompt, and what is piped in below that;\n"
                               "- : standard input alone");
  auto* system = sub->add_option("--system,--system-prompt", flags->system,
                                 "a system message before it; needs a chat template");
  auto* ids = sub->add_option("--ids", flags->ids, "the prompt as token ids: 1,2,3");
  auto* raw = sub->add_flag("--raw", flags->raw,
                            "the text as it is, without the chat template; in it names of special\n"
                            "tokens, such as <|im_end|>, are the tokens");
  sub->add_flag("--json", flags->json, "one JSON object: text, ids, usage, timings, memory");
  sub->add_flag("--memory", flags->memory, "print bytes by owner at the end");
  sub->add_flag("--explain", flags->explain,
                "say what of the prompt was not computed again, and why no more");
  ids->excludes(words)->excludes(prompt)->excludes(file)->excludes(system);
  prompt->excludes(words);
  raw->excludes(system);
  sub->footer(
      "Examples:\n"
      "  kvasir run \"Why is the sky blue?\"           one answer from the default model\n"
      "  kvasir run -f report.txt \"Summarise\"        a prompt with a file\n"
      "  git diff | kvasir run \"Write a message\"     a prompt with a pipe\n"
      "  kvasir run --raw -n 32 \"Once upon a time\"   go on with a text\n"
      "  kvasir run --json --seed 7 \"Name a colour\"  the same answer every time, as JSON\n");
  commands.push_back({sub, [flags] { return run(*flags); }});
}

}  // namespace kvasir::cli
