// Calibrations of K and V: the file, what a choice makes of it, how bits are given, what is
// refused.
#include "engine/kv_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "engine/kv_dir_support.h"

namespace kvasir::engine {
namespace {

using cache::CodecId;
using cache::LayerCodecs;

const std::string kModel = KVASIR_SOURCE_DIR "/tests/data/arch_vectors/llama_9q3kv_hd64.gguf";
constexpr LayerCodecs kK4V3{CodecId::kTile4, CodecId::kTile3};

/// Of three layers.
KvCalibration calibration_of(std::vector<double> k3, std::vector<double> v3) {
  KvCalibration made;
  made.damage_k[3] = std::move(k3);
  made.damage_v[3] = std::move(v3);
  fill_in_damages(made.damage_k);
  fill_in_damages(made.damage_v);
  return made;
}

KvCalibration some_calibration() {
  KvCalibration made = calibration_of({1e-3, 0.25, 3e-7}, {0, 2e-4, 1});
  made.model[0] = 0xab;
  made.plans["int4"] = {kK4V3, {CodecId::kTile5, CodecId::kInt8}, kK4V3};
  made.plans["int3"] = std::vector<LayerCodecs>(3, {CodecId::kTile3, CodecId::kTile3});
  return made;
}

std::string bits_of(const std::vector<LayerCodecs>& plan) {
  std::string bits;
  for (const LayerCodecs& codecs : plan) {
    bits += std::to_string(cache::codec_bits(codecs.k)) +
            std::to_string(cache::codec_bits(codecs.v)) + " ";
  }
  return bits;
}

TEST(KvPlan, ACalibrationIsTheSameAfterItsText) {
  const KvCalibration made = some_calibration();
  const auto read = parse_calibration("a.kv", text_of(made), 3);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->model, made.model);
  EXPECT_EQ(read->damage_k, made.damage_k);
  EXPECT_EQ(read->damage_v, made.damage_v);
  EXPECT_EQ(read->plans, made.plans);
  EXPECT_EQ(text_of(*read), text_of(made));
}

TEST(KvPlan, TheTextIsWhatTheFormatSays) {
  KvCalibration made;
  made.damage_k[4] = {0.5, 1e-9};
  made.plans["int4"] = {kK4V3, {CodecId::kTile5, CodecId::kInt8}};
  EXPECT_EQ(text_of(made), "kvasir-kv 1\nmodel " + std::string(64, '0') +
                               "\ndamage k 4 0.5 1e-09\nplan int4 k 4 5 v 3 8\n");
}

TEST(KvPlan, EveryLineThatIsWrongIsShownWithWhatIsWanted) {
  const std::string head = "kvasir-kv 1\n", model = "model " + std::string(64, 'a') + "\n";
  const struct {
    std::string text, got, want;
  } rows[] = {
      {"", "''", "kvasir-kv 2"},
      {"kvasir-kv 3\n" + model, "'kvasir-kv 3'", "kvasir-kv 2"},
      {head, "''", "model HEX"},
      {head + "damage k 3 1 2\n", "''", "model HEX"},
      {head + "model abc\n", "'model abc'", "64 digits"},
      {head + "model\n", "'model'", "64 digits"},
      {head + "model e2\x1b]0;x\x07\xff\n", "'model e2\\x1b]0;x\\x07\\xff'", "64 digits"},
      {head + model + model, "'model aaa", "one line"},
      {head + model + "colour red\n", "'colour red'", "model, damage or plan"},
      {head + model + "damage k 3 1\n", "'damage k 3 1'", "2 numbers"},
      {head + model + "damage k 3 1 2 3\n", "'damage k 3 1 2 3'", "2 numbers"},
      {head + model + "damage q 3 1 2\n", "'damage q 3 1 2'", "k or v"},
      {head + model + "damage k 6 1 2\n", "'damage k 6 1 2'", "bits"},
      {head + model + "damage k 3 1 x\n", "'damage k 3 1 x'", "numbers"},
      {head + model + "damage k 3 1 2x\n", "'damage k 3 1 2x'", "numbers"},
      {head + model + "damage k 3 1 nan\n", "'damage k 3 1 nan'", "numbers"},
      {head + model + "damage k 3 1 1e999\n", "'damage k 3 1 1e999'", "numbers"},
      {head + model + "damage k 3 1 -2\n", "'damage k 3 1 -2'", "numbers"},
      {head + model + "damage k 3 1 2\ndamage k 3 1 2\n", "'damage k 3 1 2'", "once"},
      {head + model + "plan a k 4 4 v 3\n", "'plan a k 4 4 v 3'", "v, and 2 again"},
      {head + model + "plan a k 4 4 v 3 6\n", "'plan a k 4 4 v 3 6'", "3, 4, 5 or 8"},
      {head + model + "plan a v 4 4 k 3 3\n", "'plan a v 4 4 k 3 3'", "2 times"},
      {head + model + "plan\n", "'plan'", "a name"},
      {head + model + "plan a k 4 4 v 3 3\nplan a k 4 4 v 3 3\n", "'plan a k", "a name"},
  };
  for (const auto& row : rows) {
    const auto read = parse_calibration("some/model.gguf.kv", row.text, 2);
    ASSERT_FALSE(read) << row.text;
    EXPECT_EQ(read.error().code, ErrorCode::kInvalidArgument);
    const std::string& message = read.error().message;
    EXPECT_TRUE(message.starts_with("some/model.gguf.kv: ")) << message;
    EXPECT_NE(message.find("got " + row.got), std::string::npos) << message;
    EXPECT_NE(message.find(row.want, message.find("want")), std::string::npos) << message;
    EXPECT_NE(message.find("kvasir calibrate kv"), std::string::npos) << message;
  }
}

TEST(KvPlan, ATextCutAnywhereIsRefusedOrHasNoWrongLayer) {
  const std::string text = text_of(some_calibration());
  const auto whole = parse_calibration("a.kv", text, 3);
  for (std::size_t n = 0; n < text.size(); ++n) {
    const auto read = parse_calibration("a.kv", text.substr(0, n), 3);
    if (!read) continue;
    for (const auto& [name, plan] : read->plans) EXPECT_EQ(plan, whole->plans.at(name)) << n;
  }
}

TEST(KvPlan, WhatWasNotMeasuredIsAQuarterPerBit) {
  DamageByBits k = {{3, {16, 8}}, {4, {1, 2}}};
  fill_in_damages(k);
  EXPECT_EQ(k, (DamageByBits{{3, {16, 8}}, {4, {1, 2}}, {5, {0.25, 0.5}}}));
  DamageByBits v = {{3, {16, 8}}};
  fill_in_damages(v);
  EXPECT_EQ(v, (DamageByBits{{3, {16, 8}}, {4, {4, 2}}, {5, {1, 0.5}}}));
  DamageByBits up = {{5, {1}}};
  fill_in_damages(up);
  EXPECT_EQ(up, (DamageByBits{{3, {16}}, {4, {4}}, {5, {1}}}));
}

TEST(KvPlan, BitsGoWhereTheySpareTheMost) {
  // Of a damage of 3 bits, the 4th spares 3/4 and the 5th 3/16.
  const KvCalibration made = calibration_of({100, 1, 10}, {30, 0, 2});
  const char* const want[] = {"33 33 33 ", "43 33 33 ", "44 33 33 ", "54 33 33 ", "54 33 43 ",
                              "55 33 43 ", "55 33 53 ", "55 33 54 ", "55 43 54 "};
  for (int n_bits = 0; n_bits < 9; ++n_bits) {
    EXPECT_EQ(bits_of(allocate_bits(made, 3 + n_bits / 6.0)), want[n_bits]) << n_bits;
  }
  EXPECT_EQ(bits_of(allocate_bits(made, 3.3)), want[1]) << "at most the mean";
  EXPECT_EQ(bits_of(allocate_bits(made, 5)), "55 55 55 ");
  EXPECT_EQ(bits_of(allocate_bits(made, 9)), "55 55 55 ");
}

TEST(KvPlan, ABitThatSparesNothingIsNotInTheWayOfTheNextOne) {
  KvCalibration made = calibration_of({10, 1, 1}, {1, 1, 1});
  made.damage_k[4][0] = 11;  // the luck of measuring
  made.damage_k[5][0] = 0.1;
  EXPECT_EQ(bits_of(allocate_bits(made, 3 + 2 / 6.0)), "53 33 33 ");
}

TEST(KvPlan, NoOtherPlanOfAsManyBitsHasLessDamage) {
  const KvCalibration made = calibration_of({3, 70, 5}, {11, 2, 29});
  const auto damage = [&](const std::vector<int>& bits) {
    double sum = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      sum += made.damage_k.at(bits[2 * i])[i] + made.damage_v.at(bits[2 * i + 1])[i];
    }
    return sum;
  };
  std::vector<double> least(13, std::numeric_limits<double>::infinity());
  for (int code = 0; code < 729; ++code) {
    std::vector<int> bits;
    int sum = 0;
    for (int rest = code, i = 0; i < 6; ++i, rest /= 3) bits.push_back(3 + rest % 3);
    for (const int b : bits) sum += b - 3;
    least[static_cast<std::size_t>(sum)] =
        std::min(least[static_cast<std::size_t>(sum)], damage(bits));
  }
  for (int n_bits = 0; n_bits <= 12; ++n_bits) {
    std::vector<int> bits;
    for (const LayerCodecs& codecs : allocate_bits(made, 3 + n_bits / 6.0)) {
      bits.push_back(cache::codec_bits(codecs.k));
      bits.push_back(cache::codec_bits(codecs.v));
    }
    EXPECT_DOUBLE_EQ(damage(bits), least[static_cast<std::size_t>(n_bits)]) << n_bits;
  }
}

/// One group of `n_layers` layers, as of SmolLM2.
cache::GroupSpec group_of(int n_layers, int head_dim = 64) {
  cache::GroupSpec group;
  for (int layer = 0; layer < n_layers; ++layer) group.layers.push_back(layer);
  group.n_kv_heads = 3;
  group.head_dim = head_dim;
  return group;
}

TEST(KvPlan, TheShareOfF16IsWhatACacheUses) {
  const std::vector<LayerCodecs> layers = {kK4V3, {CodecId::kTile5, CodecId::kTile3}, kK4V3};
  const cache::GroupSpec groups[] = {group_of(3)};
  cache::ByteBudget budget(0);
  cache::CacheOptions options;
  options.groups = {groups[0]};
  options.layer_codecs = layers;
  options.page_tokens = cache::kTileTokens;
  const auto cache = cache::KvCache::create(options, budget);
  ASSERT_TRUE(cache) << cache.error().message;
  cache::Sequence sequence = (*cache)->open();
  // One less: with a tile's last token its rows are not filling any more.
  for (int n = 0; n < kShareTokens - 1; ++n) {
    sequence.free_below_windows();
    ASSERT_TRUE(sequence.append(1));
  }
  sequence.free_below_windows();
  const cache::MemorySummary used = (*cache)->memory_summary();
  double bytes = static_cast<double>(used.used);
  for (const auto& group : used.groups) bytes += 12 * (kShareTokens / group.page_tokens);
  const double f16_bytes = 3.0 * 3 * 64 * 2 * 2 * kShareTokens;
  const auto share = share_of_f16(groups, layers);
  ASSERT_TRUE(share) << share.error().message;
  EXPECT_DOUBLE_EQ(*share, bytes / f16_bytes);
}

TEST(KvPlan, PlansHaveTheBitsOfTheirTypes) {
  KvCalibration made;
  for (int layer = 0; layer < 30; ++layer) {
    made.damage_k[3].push_back(1 + 7 * layer % 11);
    made.damage_v[3].push_back(1 + 5 * layer % 13);
  }
  fill_in_damages(made.damage_k);
  fill_in_damages(made.damage_v);
  const cache::GroupSpec groups[] = {group_of(30)};
  ASSERT_TRUE(add_plans(groups, made));
  const auto n_bits = [&](const char* name) {
    int sum = 0;
    for (const LayerCodecs& codecs : made.plans.at(name)) {
      sum += cache::codec_bits(codecs.k) + cache::codec_bits(codecs.v);
    }
    return sum;
  };
  EXPECT_EQ(n_bits("int4"), 255);  // 60 * 4.25
  EXPECT_EQ(n_bits("int3"), 186);
  const auto share = share_of_f16(groups, made.plans.at("int4-3"));
  EXPECT_LE(*share, 0.25);
  const auto more = allocate_bits(made, (n_bits("int4-3") + 1) / 60.0);
  EXPECT_GT(*share_of_f16(groups, more), 0.25);
}

TEST(KvPlan, WhereThreeBitsAreMoreThanAQuarterThePlanHasTheBitsOfNone) {
  KvCalibration made = calibration_of({4, 2, 1}, {4, 2, 1});
  const cache::GroupSpec small[] = {group_of(3, 16)}, odd[] = {group_of(3, 8)};
  ASSERT_TRUE(add_plans(small, made));
  EXPECT_EQ(bits_of(made.plans.at("int4-3")), "44 43 33 ");
  const Status refused = add_plans(odd, made);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
}

TEST(KvPlan, AChoiceGetsItsPlanOrKeepsItsCodecs) {
  const KvCalibration made = some_calibration();
  const cache::KvFormat uniform{kK4V3, {}, 2, 3};
  KvChoice choice;
  choice.plan = "int4";
  const auto planned = apply_calibration(made, choice, 3, uniform);
  ASSERT_TRUE(planned);
  EXPECT_EQ(planned->layers, made.plans.at("int4"));
  EXPECT_EQ(planned->n_sink_tiles, 2);
  EXPECT_EQ(planned->n_tail_tiles, 3);
  choice.plan = "int4-3";  // which it has not
  EXPECT_TRUE(apply_calibration(made, choice, 3, uniform)->layers.empty());
}

TEST(KvPlan, ProtectsTheKeysThatSufferMostAndNoMoreThanThereAre) {
  const KvCalibration made = some_calibration();
  const cache::KvFormat uniform{kK4V3, {}, 1, 1};
  KvChoice choice;
  const auto bits = [&](int n_protected) {
    choice.n_protected = n_protected;
    return bits_of(apply_calibration(made, choice, 3, uniform)->layers);
  };
  EXPECT_EQ(bits(0), "");
  EXPECT_EQ(bits(1), "43 83 43 ");
  EXPECT_EQ(bits(2), "83 83 43 ");
  EXPECT_EQ(bits(3), "83 83 83 ");
  for (const int n : {4, -1}) {
    choice.n_protected = n;
    const auto refused = apply_calibration(made, choice, 3, uniform);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().message, "--kv-protect: got " + std::to_string(n) + ", want 0 to 3");
  }
  choice.n_protected = 1;
  choice.plan = "int4";
  EXPECT_EQ(bits_of(apply_calibration(made, choice, 3, uniform)->layers), "43 88 43 ");
}

TEST(KvPlan, OnlyTilesAreProtected) {
  KvChoice choice;
  choice.n_protected = 3;
  cache::KvFormat format{{CodecId::kF16, CodecId::kF16}, {}, 1, 1};
  const auto whole = apply_calibration({}, choice, 3, format);
  ASSERT_TRUE(whole) << whole.error().message;
  EXPECT_TRUE(whole->layers.empty());
  format.all = {CodecId::kF16, CodecId::kTile4};
  EXPECT_EQ(bits_of(apply_calibration(some_calibration(), choice, 3, format)->layers),
            "164 164 164 ");
}

/// The model with something beside it.
class KvPlanOfAnEngine : public ::testing::Test {
 protected:
  KvPlanOfAnEngine() {
    std::filesystem::create_directories(directory_.path());
    options_.model_path = directory_.path() + "/model.gguf";
    options_.n_threads = 1;
    std::filesystem::copy_file(kModel, options_.model_path);
    choice_.codecs = {CodecId::kTile4, CodecId::kTile4};
    choice_.plan = "int4";
    calibration_.damage_k[4] = {1, 2};
    calibration_.plans["int4"] = {kK4V3, {CodecId::kTile5, CodecId::kTile4}};
    calibration_.model = load()->model_fingerprint();
  }

  std::unique_ptr<Engine> load() {
    auto engine = Engine::load(Env::posix(), options_);
    EXPECT_TRUE(engine) << engine.error().message;
    return engine ? std::move(*engine) : nullptr;
  }
  std::string path() const { return calibration_path(options_.model_path); }
  void write(const std::string& text) { std::ofstream(path()) << text; }
  /// Of loading with `choice_`; empty: it works.
  std::string message_of_load() {
    EngineOptions options = options_;
    options.kv = choice_;
    const auto engine = Engine::load(Env::posix(), options);
    if (engine) return "";
    EXPECT_EQ(engine.error().code, ErrorCode::kInvalidArgument);
    return engine.error().message;
  }

  testing::KvDirectory directory_;
  EngineOptions options_;
  KvChoice choice_;
  KvCalibration calibration_;
};

TEST_F(KvPlanOfAnEngine, IsThatOfTheFileBesideTheModel) {
  write(text_of(calibration_));
  for (const std::uint64_t prefix_bytes : {0, 1 << 20}) {
    options_.prefix_bytes = prefix_bytes;
    options_.kv = choice_;
    const auto engine = load();
    EXPECT_EQ(bits_of(engine->kv_format().layers), "43 54 ");
    EXPECT_EQ(engine->cache().options().layer_codecs, calibration_.plans.at("int4"));
    KvChoice other = choice_;
    other.n_protected = 1;
    EXPECT_EQ(bits_of((*engine->make_cache(other))->options().layer_codecs), "43 84 ");
    other.plan = "int3";
    EXPECT_EQ(bits_of(engine->kv_format(other)->layers), "44 84 ");
  }
}

TEST_F(KvPlanOfAnEngine, WithoutAFileTheUniformCodecsServe) {
  EXPECT_EQ(message_of_load(), "");
  const auto engine = load();
  const auto format = engine->kv_format(choice_);
  ASSERT_TRUE(format) << format.error().message;
  EXPECT_TRUE(format->layers.empty());
  EXPECT_EQ(format->all, choice_.codecs);
  choice_.n_protected = 1;
  EXPECT_NE(message_of_load().find("run `kvasir calibrate kv`"), std::string::npos);
}

TEST_F(KvPlanOfAnEngine, OfAnotherModelOrBrokenIsRefusedEveryTimeWithTheFilesName) {
  KvCalibration other = calibration_;
  other.model[7] ^= 1;
  for (const std::string& text : {text_of(other), std::string("kvasir-kv 1\nplan\n")}) {
    write(text);
    EXPECT_TRUE(message_of_load().starts_with(path() + ": ")) << message_of_load();
    const auto engine = load();  // f16: it is not looked at
    for (int i = 0; i < 2; ++i) EXPECT_FALSE(engine->kv_format(choice_));
  }
  write(text_of(calibration_));
  EXPECT_EQ(message_of_load(), "");
}

TEST_F(KvPlanOfAnEngine, LayersGivenOneByOneAreThose) {
  write(text_of(calibration_));
  KvChoice choice;
  choice.layers = {kK4V3, kK4V3};
  EXPECT_EQ(load()->kv_format(choice)->layers, choice.layers);
}

}  // namespace
}  // namespace kvasir::engine
