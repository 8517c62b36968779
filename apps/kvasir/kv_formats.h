// Types of cached K and V as flags name them.
//
//   f32 f16 bf16 int8 int8-g64        row codecs
//   int4 int4-3 int3                  tile codecs: bits by the model's calibration, or 4, 4 and 3
//                                     (V), 3 bits
//   tile3 tile4 tile5                 so many bits everywhere
//   q8_0 q4_0 ...                     llama.cpp's names: the type of ours that takes their place
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "eval/kld_figures.h"

namespace kvasir::cli {

/// Our name of a type: of llama.cpp's the one that takes its place, others as they are.
std::string our_kv_type(const std::string& name);

/// Codecs and plan of one type's name. Errors: kInvalidArgument naming the flag.
Result<engine::KvChoice> parse_kv_type(const char* flag, const std::string& name);

/// What --kv-type, --kv-type-k and --kv-type-v say together; empty: not given. With a note to
/// stderr where a name of llama.cpp's was mapped.
Result<engine::KvChoice> choose_kv_types(const std::string& both, const std::string& k,
                                         const std::string& v);

/// --kv-tail and --kv-sinks: tokens to whole tiles. Errors: kInvalidArgument (beyond 0..4096; a
/// tail that is no multiple of 64).
Status set_kv_tail(const char* flag, int n_tokens, engine::KvChoice& choice);
Status set_kv_sinks(const char* flag, int n_tokens, engine::KvChoice& choice);

/// Whether the choice has what `flag` speaks of: tiles, or, for --kv-protect, K in tiles. Errors:
/// kInvalidArgument; `got` is the type.
Status check_has_tiles(const std::string& flag, const std::string& got,
                       const engine::KvChoice& choice);

/// For comparisons: "f16", "f16/bf16" (K's and V's), and behind either, for tile codecs, ":tail=N",
/// ":sinks=N", ":protect=N", ":basis=0" or ":basis=1" (whether a calibrated basis of K is used).
/// Errors: kInvalidArgument naming the flag.
Result<eval::KvFormat> parse_kv_format(const char* flag, const std::string& text);
/// One or more of them, separated by commas. Where one of them has tiles, the others may name what
/// concerns tiles alone: so one may put the same behind all.
Result<std::vector<eval::KvFormat>> parse_kv_formats(const char* flag, const std::string& text);

/// For reports: "int4", and "q4_0 (int4)" where llama.cpp's name was given.
std::string shown_name(const eval::KvFormat& format);
/// A table's first cells: the name as it was given, and, where some of `formats` has another one
/// of ours, that. Without `format` their head.
std::string name_cells(const std::vector<eval::KvFormat>& formats,
                       const eval::KvFormat* format = nullptr);
/// "kv_type", and "kv_type_resolved" where it differs; or the same of `key`.
void add_name(nlohmann::json& json, const eval::KvFormat& format, const char* key = "kv_type");

/// "int8" or "f32", as --act has it.
const char* activation_name(const engine::EngineOptions& engine);
/// What every comparison's JSON begins with: schema_version, model, act, base_kv.
nlohmann::json comparison_json(const engine::EngineOptions& engine, const eval::KvFormat& base);

/// The flags of a comparison: --base-kv and --kv-type.
void add_kv_comparison(CLI::App& app, std::string& base, std::string& candidates);

/// Says so on stderr when a choice asks for bits by layer and the model's calibration has none, so
/// that every layer has the same. Requires: the choice was resolved before (Engine::kv_format).
void note_missing_plan(engine::Engine& engine, const engine::KvChoice& choice);

/// What a comparison says on stderr of its types before it begins: note_missing_plan, and, once a
/// type, when no tile of it is ever read in `what` of `n_tokens` tokens, of which the last one is
/// not fed: then it measures int8.
void note_formats(engine::Engine& engine, const eval::KvFormat& base,
                  const std::vector<eval::KvFormat>& candidates, const char* what, int n_tokens);

}  // namespace kvasir::cli
