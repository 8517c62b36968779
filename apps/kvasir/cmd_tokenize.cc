// kvasir tokenize: text on standard input to token ids on standard output.
#include <fmt/core.h>

#include "command.h"
#include "gguf/file.h"
#include "prompting.h"

namespace kvasir::cli {
namespace {

struct TokenizeFlags {
  ModelFlags model;
  bool parse_special = false, add_special = false, chat = false, batch = false;
};

std::string ids_line(const std::vector<TokenId>& ids) { return dump(nlohmann::json(ids)) + "\n"; }

/// One JSON string per line in, one array of ids per line out.
Status tokenize_batch(const text::Tokenizer& tokenizer, const std::string& input,
                      text::AddSpecial add_special, text::ParseSpecial parse_special) {
  std::string out;
  std::size_t begin = 0;
  for (int line_number = 1; begin < input.size(); ++line_number) {
    const std::size_t end = std::min(input.find('\n', begin), input.size());
    const std::string_view line(input.data() + begin, end - begin);
    begin = end + 1;
    const std::string where = fmt::format("stdin line {}", line_number);
    if (line.empty()) {  // left out, it would shift the lines of the output
      return Error{ErrorCode::kInvalidArgument, where + ": empty; want a JSON string"};
    }
    KVASIR_ASSIGN_OR_RETURN(const nlohmann::ordered_json json, parse_json(line, where));
    if (!json.is_string()) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("{}: got {}, want a JSON string", where, json.type_name())};
    }
    out += ids_line(tokenizer.encode(json.get<std::string>(), add_special, parse_special));
  }
  print(out);
  return {};
}

Status tokenize(const TokenizeFlags& flags) {
  KVASIR_ASSIGN_OR_RETURN(const std::string path, flags.model.path());
  KVASIR_ASSIGN_OR_RETURN(const gguf::File file, gguf::File::open(Env::posix(), path));
  KVASIR_ASSIGN_OR_RETURN(const text::Tokenizer tokenizer, text::Tokenizer::load(file));
  KVASIR_ASSIGN_OR_RETURN(const std::string input, read_stdin());
  const auto add = flags.add_special ? text::AddSpecial::kYes : text::AddSpecial::kNo;
  const auto parse = flags.parse_special ? text::ParseSpecial::kYes : text::ParseSpecial::kNo;
  if (flags.batch) return tokenize_batch(tokenizer, input, add, parse);
  if (!flags.chat) {
    print(ids_line(tokenizer.encode(input, add, parse)));
    return {};
  }
  KVASIR_ASSIGN_OR_RETURN(const nlohmann::ordered_json request, parse_json(input, "stdin"));
  // An array of messages, or an object with messages, tools and template variables beside them.
  const bool is_object = request.is_object();
  if (is_object && !request.contains("messages")) {
    return Error{ErrorCode::kInvalidArgument,
                 "stdin: got an object without messages, want an array of messages or an object "
                 "with \"messages\""};
  }
  KVASIR_ASSIGN_OR_RETURN(const text::ChatFormatter chat,
                          text::ChatFormatter::load(file, tokenizer));
  const auto member = [&](const char* name) {
    return is_object && request.contains(name) ? request[name] : nlohmann::ordered_json(nullptr);
  };
  KVASIR_ASSIGN_OR_RETURN(const text::RenderedPrompt prompt,
                          render_chat(chat, is_object ? member("messages") : request,
                                      member("tools"), member("chat_template_kwargs")));
  print(dump({{"prompt", prompt.text}, {"ids", prompt.ids}}) + "\n");
  return {};
}

}  // namespace

void add_tokenize(CLI::App& app, std::vector<Command>& commands) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* sub = app.add_subcommand("tokenize", "text on standard input to token ids");
  flags->model.add(*sub, ModelFlags::Set::kModelOnly);
  auto* parse = sub->add_flag("--parse-special", flags->parse_special,
                              "\"<|im_start|>\" is the token, not text");
  auto* add =
      sub->add_flag("--add-special", flags->add_special, "BOS and EOS where the model adds them");
  auto* chat = sub->add_flag("--chat", flags->chat,
                             "input: a JSON array of messages; output: {\"prompt\", \"ids\"}");
  auto* batch = sub->add_flag("--batch", flags->batch, "input: one JSON string per line");
  chat->excludes(batch)->excludes(parse)->excludes(add);  // a template says it all
  sub->footer(
      "Examples:\n"
      "  printf 'Hello' | kvasir tokenize\n"
      "  printf '\"one\"\\n\"two\"\\n' | kvasir tokenize --batch\n"
      "  echo '[{\"role\": \"user\", \"content\": \"Hi\"}]' | kvasir tokenize --chat\n");
  commands.push_back({sub, [flags] {
                        const Status status = tokenize(*flags);
                        return status ? Exit::kOk : report(status.error());
                      }});
}

}  // namespace kvasir::cli
