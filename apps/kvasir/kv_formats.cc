#include "kv_formats.h"

#include <fmt/core.h>

#include <string_view>

#include "command.h"

namespace kvasir::cli {
namespace {

using cache::CodecId;

struct TypeName {
  std::string_view name;
  CodecId k, v;
  bool has_plan = false;  ///< the calibration may have bits by layer under this name
};
constexpr TypeName kTypes[] = {
    {"f32", CodecId::kF32, CodecId::kF32},
    {"f16", CodecId::kF16, CodecId::kF16},
    {"bf16", CodecId::kBF16, CodecId::kBF16},
    {"int8", CodecId::kInt8, CodecId::kInt8},
    {"int8-g64", CodecId::kInt8G64, CodecId::kInt8G64},
    {"int4", CodecId::kTile4, CodecId::kTile4, true},
    {"int4-3", CodecId::kTile4, CodecId::kTile3, true},
    {"int3", CodecId::kTile3, CodecId::kTile3, true},
    {"tile3", CodecId::kTile3, CodecId::kTile3},
    {"tile4", CodecId::kTile4, CodecId::kTile4},
    {"tile5", CodecId::kTile5, CodecId::kTile5},
};
constexpr const char* kWanted = "f32, f16, bf16, int8, int8-g64, int4, int4-3 or int3";

/// llama.cpp's names, and which of ours loses less than they do.
struct Alias {
  std::string_view theirs, ours;
};
constexpr Alias kAliases[] = {{"q8_0", "int8"}, {"q5_0", "int8"}, {"q5_1", "int8"},
                              {"q4_0", "int4"}, {"q4_1", "int4"}, {"iq4_nl", "int4"}};

std::string_view ours_of(std::string_view name) {
  for (const Alias& alias : kAliases) {
    if (alias.theirs == name) return alias.ours;
  }
  return name;
}

void note_alias(const std::string& name) {
  const std::string_view ours = ours_of(name);
  if (ours != name) say("kvasir: note: kv type {}: {} takes its place\n", name, ours);
}

constexpr int kMostTokens = 4096;

Error bad_tokens(const char* flag, int got, const char* want) {
  return Error{ErrorCode::kInvalidArgument, fmt::format("{}: got {}, want {}", flag, got, want)};
}

/// ":tail=0" and the like behind a type.
Status set_option(const char* flag, const std::string& option, engine::KvChoice& choice) {
  const std::size_t equals = option.find('=');
  const std::string name = option.substr(0, equals);
  if (equals != std::string::npos) {
    KVASIR_ASSIGN_OR_RETURN(
        const std::vector<int> value,
        parse_numbers(flag, option.substr(equals + 1), 0, "a number of tokens or layers"));
    if (name == "tail") return set_kv_tail(flag, value[0], choice);
    if (name == "sinks") return set_kv_sinks(flag, value[0], choice);
    if (name == "protect") {
      choice.n_protected = value[0];
      return {};
    }
    if (name == "basis" && (value[0] == 0 || value[0] == 1)) {
      choice.has_key_basis = value[0] == 1;
      return {};
    }
  }
  return Error{
      ErrorCode::kInvalidArgument,
      fmt::format("{}: got ':{}', want :tail=N, :sinks=N, :protect=N or :basis=0", flag, option)};
}

}  // namespace

Result<engine::KvChoice> parse_kv_type(const char* flag, const std::string& name) {
  for (const TypeName& type : kTypes) {
    if (type.name != ours_of(name)) continue;
    engine::KvChoice choice;
    choice.codecs = {type.k, type.v};
    if (type.has_plan) choice.plan = type.name;
    return choice;
  }
  return Error{ErrorCode::kInvalidArgument,
               fmt::format("{}: got '{}', want {}", flag, name, kWanted)};
}

Result<engine::KvChoice> choose_kv_types(const std::string& both, const std::string& k,
                                         const std::string& v) {
  KVASIR_ASSIGN_OR_RETURN(engine::KvChoice choice, parse_kv_type("--kv-type", both));
  note_alias(both);
  // Sides that are asked for one by one are what their names say, in every layer.
  if (!k.empty()) {
    KVASIR_ASSIGN_OR_RETURN(const engine::KvChoice side, parse_kv_type("--kv-type-k", k));
    note_alias(k);
    choice.codecs.k = side.codecs.k;
    choice.plan.clear();
  }
  if (!v.empty()) {
    KVASIR_ASSIGN_OR_RETURN(const engine::KvChoice side, parse_kv_type("--kv-type-v", v));
    if (v != k) note_alias(v);
    choice.codecs.v = side.codecs.v;
    choice.plan.clear();
  }
  return choice;
}

Status set_kv_tail(const char* flag, int n_tokens, engine::KvChoice& choice) {
  if (n_tokens < 0 || n_tokens > kMostTokens || n_tokens % cache::kTileTokens != 0) {
    return bad_tokens(flag, n_tokens, "a multiple of 64 tokens, 0 to 4096");
  }
  choice.n_tail_tiles = n_tokens / cache::kTileTokens;
  return {};
}

Status set_kv_sinks(const char* flag, int n_tokens, engine::KvChoice& choice) {
  if (n_tokens < 0 || n_tokens > kMostTokens) return bad_tokens(flag, n_tokens, "0 to 4096 tokens");
  choice.n_sink_tiles = (n_tokens + cache::kTileTokens - 1) / cache::kTileTokens;
  return {};
}

Result<eval::KvFormat> parse_kv_format(const char* flag, const std::string& text) {
  const std::size_t colon = text.find(':');
  const std::string types = text.substr(0, colon);
  const std::size_t slash = types.find('/');
  eval::KvFormat format;
  format.name = text;
  KVASIR_ASSIGN_OR_RETURN(format.choice, parse_kv_type(flag, types.substr(0, slash)));
  note_alias(types.substr(0, slash));
  if (slash != std::string::npos) {
    KVASIR_ASSIGN_OR_RETURN(const engine::KvChoice side,
                            parse_kv_type(flag, types.substr(slash + 1)));
    note_alias(types.substr(slash + 1));
    format.choice.codecs.v = side.codecs.v;
    format.choice.plan.clear();
  }
  for (std::size_t begin = colon; begin != std::string::npos;) {
    const std::size_t end = text.find(':', begin + 1);
    KVASIR_RETURN_IF_ERROR(
        set_option(flag, text.substr(begin + 1, end == std::string::npos ? end : end - begin - 1),
                   format.choice));
    begin = end;
  }
  return format;
}

Result<std::vector<eval::KvFormat>> parse_kv_formats(const char* flag, const std::string& text) {
  std::vector<eval::KvFormat> formats;
  std::size_t begin = 0, end = 0;
  for (; end != std::string::npos; begin = end + 1) {
    end = text.find(',', begin);
    KVASIR_ASSIGN_OR_RETURN(eval::KvFormat format,
                            parse_kv_format(flag, text.substr(begin, end - begin)));
    formats.push_back(std::move(format));
  }
  return formats;
}

void add_kv_comparison(CLI::App& app, std::string& base, std::string& candidates) {
  app.add_option("--base-kv", base, "type of the exact run's K and V");
  app.add_option("--kv-type", candidates,
                 "types to compare: int8,int4; K's and V's: int8/int4; int4:tail=0")
      ->required();
}

void note_missing_plan(engine::Engine& engine, const engine::KvChoice& choice) {
  if (choice.plan.empty()) return;
  const auto format = engine.kv_format(choice);
  if (!format || engine.has_plan(choice.plan)) return;
  say("kvasir: note: kv type {}: no calibration beside the model has bits by layer for it; every "
      "layer has the same (`kvasir calibrate kv` makes one)\n",
      choice.plan);
}

}  // namespace kvasir::cli
