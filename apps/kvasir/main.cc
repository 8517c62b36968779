// The front door: one subcommand per file.
#include <fmt/core.h>

#include <cstdio>
#include <exception>
#include <new>

#include "command.h"

namespace kvasir::cli {
namespace {

constexpr const char* kExamples =
    "\nExamples:\n"
    "  kvasir run \"Why is the sky blue?\"         one answer from the default model\n"
    "  kvasir run -f report.txt \"Summarise\"      a prompt with a file\n"
    "  git diff | kvasir run \"Write a message\"   a prompt with a pipe\n"
    "  kvasir chat                                a conversation that keeps its KV\n"
    "  kvasir inspect model.gguf                  what is in a file\n"
    "  kvasir bench -p 512 -n 64 -d 0,4096        tokens per second at depth\n";

int run(int argc, char** argv) {
  CLI::App app{"Kvasir runs language models in the memory you have.", "kvasir"};
  app.footer(kExamples);
  app.set_version_flag("--version", "kvasir " KVASIR_VERSION);
  app.require_subcommand(1);
  std::vector<Command> commands;
  add_run(app, commands);
  add_chat(app, commands);
  add_inspect(app, commands);
  add_tokenize(app, commands);
  add_doctor(app, commands);
  add_bench(app, commands);
  add_eval(app, commands);
  add_trace(app, commands);
  if (argc == 1) {
    print(app.help());
    return static_cast<int>(Exit::kOk);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help, --version
      app.exit(error);
      return static_cast<int>(Exit::kOk);
    }
    const CLI::App* where = &app;
    for (const Command& command : commands) {
      if (command.app->parsed()) where = command.app;
    }
    fmt::print(stderr, "kvasir: {}\nSee: kvasir {}--help\n", error.what(),
               where == &app ? "" : where->get_name() + " ");
    return static_cast<int>(Exit::kUsage);
  }
  for (const Command& command : commands) {
    if (command.app->parsed()) return static_cast<int>(command.run());
  }
  return static_cast<int>(Exit::kUsage);
}

}  // namespace
}  // namespace kvasir::cli

int main(int argc, char** argv) {
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
