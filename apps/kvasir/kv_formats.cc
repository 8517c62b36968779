#include "kv_formats.h"

#include <fmt/core.h>

#include <algorithm>
#include <climits>
#include <optional>
#include <set>
#include <string_view>

#include "command.h"

namespace kvasir::cli {
namespace {

using cache::CodecId;

struct TypeName {
  std::string_view name;
  CodecId k, v;
  bool has_plan = false;  ///< the calibration may have bits by layer under this name
  /// Whether the calibration's basis of K is used: it takes 2 % of prefill, which types of few bits
  /// are worth (docs/kv-quantization.md).
  bool has_key_basis = false;
};
constexpr TypeName kTypes[] = {
    {"f32", CodecId::kF32, CodecId::kF32},
    {"f16", CodecId::kF16, CodecId::kF16},
    {"bf16", CodecId::kBF16, CodecId::kBF16},
    {"int8", CodecId::kInt8, CodecId::kInt8},
    {"int8-g64", CodecId::kInt8G64, CodecId::kInt8G64},
    {"int4", CodecId::kTile4, CodecId::kTile4, true},
    {"int4-3", CodecId::kTile4, CodecId::kTile3, true, true},
    {"int3", CodecId::kTile3, CodecId::kTile3, true, true},
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
      if (choice.plan.empty()) {
        return Error{
            ErrorCode::kInvalidArgument,
            fmt::format("{}: got ':{}', want it behind int4, int4-3 or int3 alone", flag, option)};
      }
      choice.has_key_basis = value[0] == 1;
      return {};
    }
  }
  return Error{
      ErrorCode::kInvalidArgument,
      fmt::format("{}: got ':{}', want :tail=N, :sinks=N, :protect=N or :basis=0|1", flag, option)};
}

/// A format's text in parts.
struct FormatText {
  std::string k;
  std::optional<std::string> v;      ///< absent: as `k`
  std::vector<std::string> options;  ///< "tail=0"
};

FormatText split_format(const std::string& text) {
  FormatText parts;
  const std::size_t colon = text.find(':');
  const std::string types = text.substr(0, colon);
  const std::size_t slash = types.find('/');
  parts.k = types.substr(0, slash);
  if (slash != std::string::npos) parts.v = types.substr(slash + 1);
  for (std::size_t begin = colon; begin != std::string::npos;) {
    const std::size_t end = text.find(':', begin + 1);
    parts.options.push_back(
        text.substr(begin + 1, end == std::string::npos ? end : end - begin - 1));
    begin = end;
  }
  return parts;
}

/// Without a look at whether options have tiles to speak of.
Result<eval::KvFormat> read_format(const char* flag, const std::string& text) {
  const FormatText parts = split_format(text);
  eval::KvFormat format;
  format.name = text;
  KVASIR_ASSIGN_OR_RETURN(format.choice, parse_kv_type(flag, parts.k));
  note_alias(parts.k);
  std::string resolved = our_kv_type(parts.k);
  if (parts.v) {
    KVASIR_ASSIGN_OR_RETURN(const engine::KvChoice side, parse_kv_type(flag, *parts.v));
    if (*parts.v != parts.k) note_alias(*parts.v);
    format.choice.codecs.v = side.codecs.v;
    format.choice.plan.clear();
    resolved += "/" + our_kv_type(*parts.v);
  }
  for (const std::string& option : parts.options) {
    KVASIR_RETURN_IF_ERROR(set_option(flag, option, format.choice));
    resolved += ":" + option;
  }
  if (resolved != text) format.resolved = resolved;
  return format;
}

/// Of a format's options, unless `others` has one with tiles.
Status check_options(const char* flag, const eval::KvFormat& format,
                     const std::vector<eval::KvFormat>& others) {
  const FormatText parts = split_format(format.name);
  for (const std::string& option : parts.options) {
    const std::string name = ":" + option.substr(0, option.find('='));
    const auto has = [&](const eval::KvFormat& one) {
      return check_has_tiles(name, one.name, one.choice).has_value();
    };
    if (std::any_of(others.begin(), others.end(), has)) continue;
    const Status status = check_has_tiles(name, format.name, format.choice);
    if (!status) {
      return Error{status.error().code, fmt::format("{}: {}", flag, status.error().message)};
    }
  }
  return {};
}

/// The first position whose query reads a tile, in any layer; none: INT_MAX.
int first_reading_position(const engine::Engine& engine, const cache::KvFormat& format) {
  int first = INT_MAX;
  for (const cache::GroupSpec& group : engine.model().cache_groups()) {
    const bool has_tiles = std::any_of(group.layers.begin(), group.layers.end(), [&](int layer) {
      return cache::is_tile_codec(format.of(layer).k) || cache::is_tile_codec(format.of(layer).v);
    });
    // Behind a window nothing is kept for being first; it must reach beyond the tail.
    const bool sees_beyond_tail =
        group.window == 0 || group.window > cache::kTileTokens * format.n_tail_tiles + 1;
    if (!has_tiles || !sees_beyond_tail) continue;
    const int n_sinks = group.window == 0 ? format.n_sink_tiles : 0;
    first = std::min(first, cache::kTileTokens * (n_sinks + format.n_tail_tiles + 1));
  }
  return first;
}

}  // namespace

std::string our_kv_type(const std::string& name) { return std::string(ours_of(name)); }

Result<engine::KvChoice> parse_kv_type(const char* flag, const std::string& name) {
  for (const TypeName& type : kTypes) {
    if (type.name != ours_of(name)) continue;
    engine::KvChoice choice;
    choice.codecs = {type.k, type.v};
    if (type.has_plan) choice.plan = type.name;
    choice.has_key_basis = type.has_key_basis;
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

Status check_has_tiles(const std::string& flag, const std::string& got,
                       const engine::KvChoice& choice) {
  const bool k_has = cache::is_tile_codec(choice.codecs.k);
  const bool is_of_k = flag == "--kv-protect" || flag == ":protect";
  if (k_has || (!is_of_k && cache::is_tile_codec(choice.codecs.v))) return {};
  return Error{ErrorCode::kInvalidArgument,
               fmt::format("{}: concerns {} in tiles alone; got {}, want int4, int4-3 or int3",
                           flag, is_of_k ? "K" : "K and V", got)};
}

Result<eval::KvFormat> parse_kv_format(const char* flag, const std::string& text) {
  KVASIR_ASSIGN_OR_RETURN(eval::KvFormat format, read_format(flag, text));
  KVASIR_RETURN_IF_ERROR(check_options(flag, format, {}));
  return format;
}

Result<std::vector<eval::KvFormat>> parse_kv_formats(const char* flag, const std::string& text) {
  std::vector<eval::KvFormat> formats;
  std::size_t begin = 0, end = 0;
  for (; end != std::string::npos; begin = end + 1) {
    end = text.find(',', begin);
    KVASIR_ASSIGN_OR_RETURN(eval::KvFormat format,
                            read_format(flag, text.substr(begin, end - begin)));
    formats.push_back(std::move(format));
  }
  for (const eval::KvFormat& format : formats) {
    KVASIR_RETURN_IF_ERROR(check_options(flag, format, formats));
  }
  return formats;
}

std::string shown_name(const eval::KvFormat& format) {
  return format.resolved.empty() ? format.name
                                 : fmt::format("{} ({})", format.name, format.resolved);
}

std::string name_cells(const std::vector<eval::KvFormat>& formats, const eval::KvFormat* format) {
  const bool has_resolved =
      std::any_of(formats.begin(), formats.end(),
                  [](const eval::KvFormat& one) { return !one.resolved.empty(); });
  std::string cells = fmt::format("{:<16}", format == nullptr ? "KV type" : format->name);
  if (!has_resolved) return cells;
  const std::string ours = format == nullptr          ? "stored as"
                           : format->resolved.empty() ? format->name
                                                      : format->resolved;
  return cells + fmt::format(" {:<16}", ours);
}

void add_name(nlohmann::json& json, const eval::KvFormat& format, const char* key) {
  json[key] = format.name;
  if (!format.resolved.empty()) json[std::string(key) + "_resolved"] = format.resolved;
}

const char* activation_name(const engine::EngineOptions& engine) {
  return engine.activations == model::ActivationMode::kInt8 ? "int8" : "f32";
}

nlohmann::json comparison_json(const engine::EngineOptions& engine, const eval::KvFormat& base) {
  nlohmann::json json = {
      {"schema_version", 1}, {"model", engine.model_path}, {"act", activation_name(engine)}};
  add_name(json, base, "base_kv");
  return json;
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

void note_formats(engine::Engine& engine, const eval::KvFormat& base,
                  const std::vector<eval::KvFormat>& candidates, const char* what, int n_tokens) {
  for (const eval::KvFormat& one : candidates) note_missing_plan(engine, one.choice);
  std::vector<eval::KvFormat> all = candidates;
  all.insert(all.begin(), base);
  std::set<std::string> said;
  for (const eval::KvFormat& one : all) {
    const auto format = engine.kv_format(one.choice);
    if (!format || !format->has_tiles(engine.model().config().n_layers)) continue;
    const int first = first_reading_position(engine, *format);
    if (n_tokens - 2 >= first || !said.insert(one.name).second) continue;
    say("kvasir: note: kv type {}: in {} of {} tokens no tile is ever read, so this measures int8 "
        "alone; {}\n",
        one.name, what, n_tokens,
        first == INT_MAX ? "the model's window ends before the first one"
                         : fmt::format("the least that reads one is {}", first + 2));
  }
}

}  // namespace kvasir::cli
