// Types of cached K and V as flags name them.
//
//   f32 f16 bf16 int8 int8-g64        row codecs
//   int4 int4-3 int3                  tile codecs: bits by the model's calibration, or 4, 4 and 3
//                                     (V), 3 bits
//   tile3 tile4 tile5                 so many bits everywhere
//   q8_0 q4_0 ...                     llama.cpp's names: the type of ours that takes their place
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "eval/kld_figures.h"

namespace kvasir::cli {

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

/// For comparisons: "f16", "f16/bf16" (K's and V's), and behind either, for tile codecs, ":tail=N",
/// ":sinks=N", ":protect=N", ":basis=0" (K as without a calibrated basis). Errors: kInvalidArgument
/// naming the flag.
Result<eval::KvFormat> parse_kv_format(const char* flag, const std::string& text);
/// One or more of them, separated by commas.
Result<std::vector<eval::KvFormat>> parse_kv_formats(const char* flag, const std::string& text);

/// The flags of a comparison: --base-kv and --kv-type.
void add_kv_comparison(CLI::App& app, std::string& base, std::string& candidates);

/// Says so on stderr when a choice asks for bits by layer and the model's calibration has none, so
/// that every layer has the same. Requires: the choice was resolved before (Engine::kv_format).
void note_missing_plan(engine::Engine& engine, const engine::KvChoice& choice);

}  // namespace kvasir::cli
