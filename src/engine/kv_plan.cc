#include "engine/kv_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>

namespace kvasir::engine {
namespace {

using cache::CodecId;

constexpr std::string_view kHeader = "kvasir-kv 1";

std::optional<CodecId> codec_of_bits(std::string_view bits) {
  if (bits == "3") return CodecId::kTile3;
  if (bits == "4") return CodecId::kTile4;
  if (bits == "5") return CodecId::kTile5;
  if (bits == "8") return CodecId::kInt8;
  return std::nullopt;
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

/// `damage SIDE BITS D0 D1 ...`
bool parse_damage(const std::vector<std::string>& words, std::size_t n_layers,
                  KvCalibration& calibration) {
  if (words.size() != 3 + n_layers || (words[1] != "k" && words[1] != "v")) return false;
  if (!codec_of_bits(words[2])) return false;
  std::vector<double> damages;
  for (std::size_t i = 3; i < words.size(); ++i) {
    char* end = nullptr;
    damages.push_back(std::strtod(words[i].c_str(), &end));
    if (*end != '\0' || !std::isfinite(damages.back())) return false;
  }
  auto& of_side = words[1] == "k" ? calibration.damage_k : calibration.damage_v;
  of_side[std::atoi(words[2].c_str())] = damages;
  return true;
}

/// `plan NAME k BITS... v BITS...`
bool parse_plan(const std::vector<std::string>& words, std::size_t n_layers,
                KvCalibration& calibration) {
  if (words.size() != 4 + 2 * n_layers) return false;
  if (words[2] != "k" || words[3 + n_layers] != "v") return false;
  std::vector<cache::LayerCodecs> plan;
  for (std::size_t layer = 0; layer < n_layers; ++layer) {
    const auto k = codec_of_bits(words[3 + layer]), v = codec_of_bits(words[4 + n_layers + layer]);
    if (!k || !v) return false;
    plan.push_back({*k, *v});
  }
  calibration.plans[words[1]] = std::move(plan);
  return true;
}

/// One side of one layer on its way to more bits.
struct Unit {
  bool is_v;
  std::size_t layer;
  int bits = 3;
};

}  // namespace

std::string calibration_path(const std::string& model_path) { return model_path + ".kv"; }

std::string text_of(const KvCalibration& calibration) {
  cache::PageKey hex;
  hex.bytes = calibration.model;
  std::string text = fmt::format("{}\nmodel {}\n", kHeader, hex.to_hex());
  const auto add_damages = [&](const char* side, const auto& damages) {
    for (const auto& [bits, by_layer] : damages) {
      text += fmt::format("damage {} {}", side, bits);
      for (const double damage : by_layer) text += fmt::format(" {:.9g}", damage);
      text += '\n';
    }
  };
  add_damages("k", calibration.damage_k);
  add_damages("v", calibration.damage_v);
  for (const auto& [name, plan] : calibration.plans) {
    text += fmt::format("plan {} k", name);
    for (const auto& codecs : plan) text += fmt::format(" {}", cache::codec_bits(codecs.k));
    text += " v";
    for (const auto& codecs : plan) text += fmt::format(" {}", cache::codec_bits(codecs.v));
    text += '\n';
  }
  return text;
}

Result<KvCalibration> parse_calibration(const std::string& where, std::string_view text,
                                        int n_layers) {
  KvCalibration calibration;
  std::istringstream in{std::string(text)};
  std::string line;
  bool has_model = false;
  const auto bad = [&](std::string_view want) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{}: not a calibration of this model's K and V; got '{}', want {}; "
                             "`kvasir calibrate kv` makes a new one",
                             where, line.substr(0, 60), want)};
  };
  if (!std::getline(in, line) || line != kHeader) return bad(kHeader);
  while (std::getline(in, line)) {
    const std::vector<std::string> words = words_of(line);
    if (words.empty()) continue;
    if (words[0] == "model" && words.size() == 2) {
      const auto key = cache::PageKey::from_hex(words[1]);
      if (!key) return bad("model HEX");
      calibration.model = key->bytes;
      has_model = true;
    } else if (words[0] == "damage") {
      if (!parse_damage(words, static_cast<std::size_t>(n_layers), calibration)) {
        return bad(fmt::format("a side, bits and {} numbers", n_layers));
      }
    } else if (words[0] == "plan") {
      if (!parse_plan(words, static_cast<std::size_t>(n_layers), calibration)) {
        return bad(fmt::format("a name, and 3, 4, 5 or 8 bits of {} layers' k and v", n_layers));
      }
    } else {
      return bad("model, damage or plan");
    }
  }
  line.clear();
  if (!has_model) return bad("a line `model HEX`");
  return calibration;
}

Result<cache::KvFormat> apply_calibration(const KvCalibration& calibration, const KvChoice& choice,
                                          int n_layers, cache::KvFormat format) {
  const auto plan = calibration.plans.find(choice.plan);
  if (plan != calibration.plans.end()) format.layers = plan->second;
  if (choice.n_protected == 0) return format;
  const auto damages = calibration.damage_k.find(4);
  if (damages == calibration.damage_k.end()) {
    return Error{ErrorCode::kInvalidArgument,
                 "--kv-protect: which layers suffer most is not known; run `kvasir calibrate kv`"};
  }
  if (choice.n_protected > n_layers) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("--kv-protect: got {}, want 0 to {}", choice.n_protected, n_layers)};
  }
  std::vector<int> order;
  for (int layer = 0; layer < n_layers; ++layer) order.push_back(layer);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return damages->second[static_cast<std::size_t>(a)] >
           damages->second[static_cast<std::size_t>(b)];
  });
  if (format.layers.empty()) format.layers.assign(static_cast<std::size_t>(n_layers), format.all);
  for (int i = 0; i < choice.n_protected; ++i) {
    format.layers[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])].k = CodecId::kInt8;
  }
  return format;
}

std::vector<cache::LayerCodecs> allocate_bits(const KvCalibration& calibration, double mean_bits) {
  const std::size_t n_layers = calibration.damage_k.at(3).size();
  std::vector<Unit> units;
  for (std::size_t layer = 0; layer < n_layers; ++layer) {
    units.push_back({false, layer});
    units.push_back({true, layer});
  }
  const auto damage = [&](const Unit& unit, int bits) {
    return (unit.is_v ? calibration.damage_v : calibration.damage_k).at(bits)[unit.layer];
  };
  const double n_units = static_cast<double>(units.size());
  for (double spent = 3 * n_units; spent + 1 <= mean_bits * n_units + 1e-9; spent += 1) {
    Unit* best = nullptr;
    double most = -1;
    for (Unit& unit : units) {
      if (unit.bits == 5) continue;
      const double spared = damage(unit, unit.bits) - damage(unit, unit.bits + 1);
      if (spared > most) {
        most = spared;
        best = &unit;
      }
    }
    if (best == nullptr) break;
    ++best->bits;
  }
  std::vector<cache::LayerCodecs> plan(n_layers);
  for (const Unit& unit : units) {
    const CodecId codec = *codec_of_bits(std::to_string(unit.bits));
    (unit.is_v ? plan[unit.layer].v : plan[unit.layer].k) = codec;
  }
  return plan;
}

}  // namespace kvasir::engine
