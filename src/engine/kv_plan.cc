#include "engine/kv_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>

#include "cache/page/geometry.h"
#include "cache/page/pool.h"
#include "gguf/printable.h"

namespace kvasir::engine {
namespace {

using cache::CodecId;

/// Of files with a basis of K, and of those without.
constexpr std::string_view kHeader = "kvasir-kv 2", kHeaderWithout = "kvasir-kv 1";
/// What plans choose among.
constexpr int kLeastBits = 3, kMostBits = 5;
/// What a bit more leaves of a damage: half the step, a quarter of the squared error.
constexpr double kDamagePerBit = 0.25;
/// Of f16's bytes, for int4-3.
constexpr double kMostShare = 0.25;

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
    if (*end != '\0' || !std::isfinite(damages.back()) || damages.back() < 0) return false;
  }
  auto& of_side = words[1] == "k" ? calibration.damage_k : calibration.damage_v;
  return of_side.emplace(std::atoi(words[2].c_str()), damages).second;
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
  return calibration.plans.emplace(words[1], std::move(plan)).second;
}

template <class T>
bool parse_whole(std::string_view text, T& value, int base = 10) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  return error == std::errc() && end == text.data() + text.size();
}

/// The lines of a basis of K, as far as they were read.
class BasisLines {
 public:
  /// `bases HEADS HEAD_DIM HEX`, once, in a file of `file_bytes`, which bounds what is allocated.
  bool begin(const std::vector<std::string>& words, int n_layers, std::size_t file_bytes) {
    if (words.size() != 4 || has_begun()) return false;
    cache::KeyBases::Shape shape{n_layers, 0, 0};
    const auto key = cache::PageKey::from_hex(words[3]);
    if (!parse_whole(words[1], shape.n_kv_heads) || !parse_whole(words[2], shape.head_dim)) {
      return false;
    }
    constexpr int kMostHeads = 1 << 16;
    if (!key || shape.n_kv_heads < 1 || shape.n_kv_heads > kMostHeads ||
        !cache::is_coded_head_dim(shape.head_dim) || shape.floats() > file_bytes / kDigits) {
      return false;
    }
    shape_ = shape;
    fingerprint_ = key->bytes;
    keys_.resize(shape.floats());
    is_read_.resize(static_cast<std::size_t>(n_layers * shape.n_kv_heads));
    return true;
  }

  /// `basis LAYER HEAD HEX`, after `begin`, each once.
  bool add(const std::vector<std::string>& words) {
    int layer = 0, head = 0;
    if (words.size() != 4 || !parse_whole(words[1], layer) || !parse_whole(words[2], head)) {
      return false;
    }
    if (layer < 0 || layer >= shape_.n_layers || head < 0 || head >= shape_.n_kv_heads) {
      return false;
    }
    const auto unit = static_cast<std::size_t>(layer * shape_.n_kv_heads + head);
    const std::string_view digits = words[3];
    if (is_read_[unit] || digits.size() != kDigits * shape_.matrix_floats()) return false;
    is_read_[unit] = true;
    float* to = keys_.data() + unit * shape_.matrix_floats();
    for (std::size_t i = 0; i < digits.size(); i += kDigits) {
      std::uint32_t bits = 0;
      if (!parse_whole(digits.substr(i, kDigits), bits, 16)) return false;
      *to++ = std::bit_cast<float>(bits);
    }
    return true;
  }

  bool has_begun() const { return !is_read_.empty(); }
  /// Whether each was there, and is what was written.
  bool is_whole() const {
    return std::find(is_read_.begin(), is_read_.end(), false) == is_read_.end() &&
           cache::fingerprint_of(shape_, keys_) == fingerprint_;
  }
  Result<std::shared_ptr<const cache::KeyBases>> bases() const {
    return cache::KeyBases::create(shape_, keys_);
  }

 private:
  static constexpr std::size_t kDigits = 8;  ///< of a value
  cache::KeyBases::Shape shape_;
  cache::Fingerprint fingerprint_{};
  std::vector<float> keys_;
  std::vector<bool> is_read_;  ///< [n_layers][n_kv_heads]
};

std::string text_of(const cache::KeyBases& bases) {
  const cache::KeyBases::Shape& shape = bases.shape();
  std::string text = fmt::format("bases {} {} {}\n", shape.n_kv_heads, shape.head_dim,
                                 cache::PageKey{bases.fingerprint()}.to_hex());
  auto out = std::back_inserter(text);
  const float* value = bases.keys().data();
  for (int layer = 0; layer < shape.n_layers; ++layer) {
    for (int head = 0; head < shape.n_kv_heads; ++head) {
      fmt::format_to(out, "basis {} {} ", layer, head);
      for (std::size_t i = 0; i < shape.matrix_floats(); ++i) {
        fmt::format_to(out, "{:08x}", std::bit_cast<std::uint32_t>(*value++));
      }
      text += '\n';
    }
  }
  return text;
}

/// One side of one layer on its way to more bits.
struct Unit {
  bool is_v;
  std::size_t layer;
  int bits = kLeastBits;
};

}  // namespace

std::string calibration_path(const std::string& model_path) { return model_path + ".kv"; }

std::string text_of(const KvCalibration& calibration) {
  cache::PageKey hex;
  hex.bytes = calibration.model;
  const bool has_bases = calibration.key_bases != nullptr;
  std::string text =
      fmt::format("{}\nmodel {}\n", has_bases ? kHeader : kHeaderWithout, hex.to_hex());
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
  return has_bases ? text + text_of(*calibration.key_bases) : text;
}

Result<KvCalibration> parse_calibration(const std::string& where, std::string_view text,
                                        int n_layers) {
  KvCalibration calibration;
  std::istringstream in{std::string(text)};
  std::string line;
  bool has_model = false;
  BasisLines basis;
  const auto bad = [&](std::string_view want) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{}: not a calibration of this model's K and V; got '{}', want {}; "
                             "`kvasir calibrate kv` makes a new one",
                             where, gguf::printable(line, 60), want)};
  };
  std::getline(in, line);
  const bool may_have_basis = line == kHeader;
  if (!may_have_basis && line != kHeaderWithout) return bad(kHeader);
  while (std::getline(in, line)) {
    const std::vector<std::string> words = words_of(line);
    if (words.empty()) continue;
    if (words[0] == "model") {
      const auto key = words.size() == 2 ? cache::PageKey::from_hex(words[1]) : std::nullopt;
      if (!key || has_model) return bad("one line `model HEX`, 64 digits");
      calibration.model = key->bytes;
      has_model = true;
    } else if (words[0] == "damage") {
      if (!parse_damage(words, static_cast<std::size_t>(n_layers), calibration)) {
        return bad(fmt::format("k or v, bits and {} numbers, once", n_layers));
      }
    } else if (words[0] == "plan") {
      if (!parse_plan(words, static_cast<std::size_t>(n_layers), calibration)) {
        return bad(fmt::format("a name, k, {0} times 3, 4, 5 or 8, v, and {0} again", n_layers));
      }
    } else if (may_have_basis && words[0] == "bases") {
      if (!basis.begin(words, n_layers, text.size())) {
        return bad("kv heads, their size and 64 digits, once, and all that follows of it");
      }
    } else if (may_have_basis && words[0] == "basis") {
      if (!basis.add(words)) return bad("a layer, a head and its matrix, once, after `bases`");
    } else {
      return bad("model, damage or plan");
    }
  }
  line.clear();
  if (!has_model) return bad("a line `model HEX`");
  if (!may_have_basis) return calibration;
  if (!basis.has_begun()) return bad("a line `bases`, which this version has");
  if (!basis.is_whole()) return bad("a matrix for each layer and head, of this fingerprint");
  auto bases = basis.bases();
  if (!bases) return Error{bases.error().code, where + ": " + bases.error().message};
  calibration.key_bases = *std::move(bases);
  return calibration;
}

Result<cache::KvFormat> apply_calibration(const KvCalibration& calibration, const KvChoice& choice,
                                          int n_layers, cache::KvFormat format) {
  const auto plan = calibration.plans.find(choice.plan);
  if (plan != calibration.plans.end()) format.layers = plan->second;
  const bool wants_basis = !choice.plan.empty() && choice.has_key_basis;
  if (wants_basis && format.key_bases == nullptr) format.key_bases = calibration.key_bases;
  if (choice.n_protected < 0 || choice.n_protected > n_layers) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("--kv-protect: got {}, want 0 to {}", choice.n_protected, n_layers)};
  }
  if (choice.n_protected == 0 || !format.has_tiles(n_layers)) return format;
  const auto damages = calibration.damage_k.find(4);
  if (damages == calibration.damage_k.end()) {
    return Error{ErrorCode::kInvalidArgument,
                 "--kv-protect: which layers suffer most is not known; run `kvasir calibrate kv`"};
  }
  std::vector<int> order;
  for (int layer = 0; layer < n_layers; ++layer) order.push_back(layer);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return damages->second[static_cast<std::size_t>(a)] >
           damages->second[static_cast<std::size_t>(b)];
  });
  if (format.layers.empty()) format.layers.assign(static_cast<std::size_t>(n_layers), format.all);
  for (int i = 0; i < choice.n_protected; ++i) {
    CodecId& k = format.layers[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])].k;
    if (cache::is_tile_codec(k)) k = CodecId::kInt8;
  }
  return format;
}

void fill_in_damages(DamageByBits& damages) {
  const auto derive = [&](int from, int to, double factor) {
    if (!damages.contains(from) || damages.contains(to)) return;
    std::vector<double> derived = damages.at(from);
    for (double& damage : derived) damage *= factor;
    damages[to] = std::move(derived);
  };
  for (int bits = kLeastBits; bits < kMostBits; ++bits) derive(bits, bits + 1, kDamagePerBit);
  for (int bits = kMostBits; bits > kLeastBits; --bits) derive(bits, bits - 1, 1 / kDamagePerBit);
}

std::vector<cache::LayerCodecs> allocate_bits(const KvCalibration& calibration, double mean_bits) {
  const std::size_t n_layers = calibration.damage_k.at(kLeastBits).size();
  std::vector<Unit> units;
  for (std::size_t layer = 0; layer < n_layers; ++layer) {
    units.push_back({false, layer});
    units.push_back({true, layer});
  }
  const auto damage = [&](const Unit& unit, int bits) {
    return (unit.is_v ? calibration.damage_v : calibration.damage_k).at(bits)[unit.layer];
  };
  // The best of the next bits together: a bit that by the luck of measuring spares nothing is not
  // in the way of the one behind it.
  const auto spared_per_bit = [&](const Unit& unit) {
    double most = -1;
    for (int bits = unit.bits + 1; bits <= kMostBits; ++bits) {
      most = std::max(most, (damage(unit, unit.bits) - damage(unit, bits)) / (bits - unit.bits));
    }
    return most;
  };
  const double n_units = static_cast<double>(units.size());
  const auto n_bits = static_cast<int>((mean_bits - kLeastBits) * n_units + 1e-6);
  for (int i = 0; i < std::min(n_bits, (kMostBits - kLeastBits) * static_cast<int>(units.size()));
       ++i) {
    Unit* best = nullptr;
    for (Unit& unit : units) {
      if (unit.bits == kMostBits) continue;
      if (best == nullptr || spared_per_bit(unit) > spared_per_bit(*best)) best = &unit;
    }
    ++best->bits;
  }
  std::vector<cache::LayerCodecs> plan(n_layers);
  for (const Unit& unit : units) {
    const CodecId codec = *codec_of_bits(std::to_string(unit.bits));
    (unit.is_v ? plan[unit.layer].v : plan[unit.layer].k) = codec;
  }
  return plan;
}

Result<double> share_of_f16(std::span<const cache::GroupSpec> groups,
                            std::span<const cache::LayerCodecs> layers) {
  constexpr std::size_t kPages = kShareTokens / cache::kTileTokens;
  constexpr std::size_t kRowPages = 3;
  constexpr std::size_t kEntryBytes = sizeof(std::uint8_t*) + sizeof(cache::PageId);
  std::size_t bytes = 0, f16_bytes = 0;
  for (const cache::GroupSpec& group : groups) {
    cache::PageGeometry::Options options;
    options.shape = {static_cast<int>(group.layers.size()), group.n_kv_heads, group.head_dim};
    options.page_tokens = cache::kTileTokens;
    std::vector<cache::LayerCodecs> rows;
    for (const int layer : group.layers) {
      const cache::LayerCodecs codecs = layers[static_cast<std::size_t>(layer)];
      options.layer_codecs.push_back(codecs);
      rows.push_back({cache::row_codec_of(codecs.k), cache::row_codec_of(codecs.v)});
    }
    KVASIR_ASSIGN_OR_RETURN(const auto tiles, cache::PageGeometry::create(options));
    options.layer_codecs = rows;
    KVASIR_ASSIGN_OR_RETURN(const auto row_pages, cache::PageGeometry::create(options));
    bytes += kPages * tiles.frame_bytes() + kRowPages * row_pages.frame_bytes() +
             2 * kPages * kEntryBytes;
    f16_bytes += 2 * sizeof(std::uint16_t) * group.layers.size() *
                 static_cast<std::size_t>(group.n_kv_heads) *
                 static_cast<std::size_t>(group.head_dim) * kShareTokens;
  }
  return static_cast<double>(bytes) / static_cast<double>(f16_bytes);
}

Status add_plans(std::span<const cache::GroupSpec> groups, KvCalibration& calibration) {
  calibration.plans["int4"] = allocate_bits(calibration, 4.25);
  calibration.plans["int3"] = allocate_bits(calibration, 3.1);
  calibration.plans["int4-3"] = allocate_bits(calibration, 3.5);
  const auto n_units = static_cast<int>(2 * calibration.damage_k.at(kLeastBits).size());
  for (int n_bits = 0; n_bits <= (kMostBits - kLeastBits) * n_units; ++n_bits) {
    auto plan = allocate_bits(calibration, kLeastBits + static_cast<double>(n_bits) / n_units);
    KVASIR_ASSIGN_OR_RETURN(const double share, share_of_f16(groups, plan));
    if (share > kMostShare) break;
    calibration.plans["int4-3"] = std::move(plan);
  }
  return {};
}

}  // namespace kvasir::engine
