// The front door: one subcommand per file.
#include <fmt/core.h>

#include <exception>
#include <new>
#include <string_view>
#include <vector>

#include "command.h"

namespace kvasir::cli {
namespace {

constexpr const char* kExamples =
    "Examples (more: kvasir COMMAND --help):\n"
    "  kvasir run \"Why is the sky blue?\"          one answer from the default model\n"
    "  kvasir run -f report.txt \"Summarise\"       a prompt with a file\n"
    "  git diff | kvasir run \"Write a message\"    a prompt with a pipe\n"
    "  kvasir chat                                a conversation that keeps its KV\n"
    "  kvasir inspect model.gguf                  what is in a file\n"
    "  kvasir bench -p 512 -n 64 -d 0,4096        tokens per second at depth\n";

/// CLI11's help, with less beside each flag: name, type, default.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_usage(const CLI::Option* option) const override {
    const bool is_many = option->get_expected_max() > 1;
    const std::string name = make_option_name(option, true) + (is_many ? "..." : "");
    return option->get_required() ? name : "[" + name + "]";
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_type_name().empty()) return "";  // a flag
    const std::string& value = option->get_default_str();
    const bool has_default = !value.empty() && value != "[]";
    return (option->get_positional() ? "" : " VALUE") + (has_default ? "=" + value : "");
  }
};

/// "kvasir eval ppl --help", of the innermost subcommand that was recognized.
std::string help_command(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  if (parsed.empty()) return app.get_name() + " --help";
  return app.get_name() + " " + help_command(*parsed.back());
}

/// The arguments, with llama.cpp's names that have several letters behind one dash spelled out:
/// here one dash has one letter.
std::vector<const char*> spell_out(int argc, char** argv) {
  std::vector<const char*> args(argv, argv + argc);
  for (const char*& arg : args) {
    const std::string_view name = arg;
    if (name == "--") break;  // what follows is no flag
    if (name == "-ctk") arg = "--cache-type-k";
    if (name == "-ctv") arg = "--cache-type-v";
  }
  return args;
}

/// Where a subcommand belongs stands another word: that is the error, whatever follows.
Status check_subcommands(const CLI::App& app, int argc, const char* const* argv) {
  const CLI::App* where = &app;
  for (int i = 1; i < argc && argv[i][0] != '-'; ++i) {
    const auto subcommands = where->get_subcommands([](const CLI::App*) { return true; });
    if (subcommands.empty()) return {};
    const CLI::App* found = nullptr;
    std::string names;
    for (const CLI::App* sub : subcommands) {
      if (sub->get_name() == argv[i]) found = sub;
      names += (names.empty() ? "" : ", ") + sub->get_name();
    }
    if (found == nullptr) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("subcommand: got '{}', want {}", argv[i], names)};
    }
    where = found;
  }
  return {};
}

int run(int argc, char** argv) {
  CLI::App app{"Kvasir runs language models in the memory you have.", "kvasir"};
  app.formatter(std::make_shared<HelpFormatter>());
  app.option_defaults()->always_capture_default();  // shown by --help
  app.set_version_flag("--version", "kvasir " KVASIR_VERSION);
  app.require_subcommand(1);
  std::vector<Command> commands;
  add_run(app, commands);
  add_chat(app, commands);
  add_cache(app, commands);
  add_inspect(app, commands);
  add_tokenize(app, commands);
  add_doctor(app, commands);
  add_bench(app, commands);
  add_eval(app, commands);
  add_calibrate(app, commands);
  add_trace(app, commands);
  app.footer(kExamples);  // now, or each subcommand would inherit it
  check_values(app);
  if (argc == 1) {
    print(app.help());
    return static_cast<int>(Exit::kOk);
  }
  const std::vector<const char*> args = spell_out(argc, argv);
  if (const Status status = check_subcommands(app, argc, args.data()); !status) {
    return static_cast<int>(report(status.error()));
  }
  try {
    app.parse(argc, args.data());
  } catch (const CLI::CallForVersion& version) {
    print(version.what() + std::string("\n"));
    return static_cast<int>(Exit::kOk);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help
      print(app.help());
      return static_cast<int>(Exit::kOk);
    }
    const Exit code = report({ErrorCode::kInvalidArgument, error.what()});
    say("See: {}\n", help_command(app));
    return static_cast<int>(code);
  }
  for (const Command& command : commands) {
    if (command.app->parsed()) return static_cast<int>(command.run());
  }
  return static_cast<int>(Exit::kUsage);
}

}  // namespace
}  // namespace kvasir::cli

int main(int argc, char** argv) {
  kvasir::cli::occupy_standard_streams();
  kvasir::cli::install_signal_handlers();
  try {
    return kvasir::cli::run(argc, argv);
  } catch (const std::bad_alloc&) {
    return static_cast<int>(kvasir::cli::report(
        {kvasir::ErrorCode::kExhausted, "memory: the system has no more to give"}));
  } catch (const std::exception& error) {
    return static_cast<int>(
        kvasir::cli::report({kvasir::ErrorCode::kIo, std::string("unexpected: ") + error.what()}));
  }
}
