// Bases of K in calibrations: the file, what of it is refused, who uses it, and that pages of
// another basis are not found.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/kv_dir_support.h"
#include "engine/kv_plan.h"
#include "support/key_bases.h"

namespace kvasir::engine {
namespace {

using cache::CodecId;
using cache::KeyBases;
using cache::LayerCodecs;

const char* const kLlama = "arch_vectors/llama_9q3kv_hd64.gguf";
constexpr KeyBases::Shape kShape{2, 3, 64}, kSmall{2, 1, 16};
constexpr LayerCodecs kTiles{CodecId::kTile4, CodecId::kTile4};

KvCalibration calibration_of(const std::shared_ptr<const KeyBases>& bases) {
  KvCalibration made;
  made.damage_k[4] = {1, 2};
  made.plans["int4"] = {kTiles, {CodecId::kTile5, CodecId::kTile3}};
  made.key_bases = bases;
  return made;
}

std::string message_of(const std::string& text, int n_layers = 2) {
  const auto read = parse_calibration("a.kv", text, n_layers);
  if (read) return "";
  EXPECT_EQ(read.error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(read.error().message.starts_with("a.kv: ")) << read.error().message;
  return read.error().message;
}

/// Lines of a text: 0 header, 1 model, 2 damage, 3 plan, 4 bases, 5 and 6 the basis of a layer.
std::vector<std::string> lines_of(const KvCalibration& made) {
  std::vector<std::string> lines;
  std::istringstream in(text_of(made));
  for (std::string line; std::getline(in, line);) lines.push_back(line + "\n");
  return lines;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line;
  return text;
}

TEST(KvBasis, IsTheSameAfterItsText) {
  const KvCalibration made = calibration_of(random_key_bases(kShape));
  const std::string text = text_of(made);
  EXPECT_TRUE(text.starts_with("kvasir-kv 2\n"));
  const auto read = parse_calibration("a.kv", text, 2);
  ASSERT_TRUE(read) << read.error().message;
  ASSERT_NE(read->key_bases, nullptr);
  EXPECT_EQ(read->key_bases->shape(), kShape);
  EXPECT_EQ(read->key_bases->fingerprint(), made.key_bases->fingerprint());
  EXPECT_EQ(read->plans, made.plans);
  EXPECT_EQ(text_of(*read), text);
}

TEST(KvBasis, TheTextIsWhatTheFormatSays) {
  std::vector<float> keys(256);
  for (std::size_t i = 0; i < 16; ++i) keys[17 * i] = 1.0f;
  keys[1] = -0.15625f;
  const auto lines = lines_of(calibration_of(*KeyBases::create({1, 1, 16}, keys)));
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_TRUE(lines[4].starts_with("bases 1 16 "));
  EXPECT_EQ(lines[4].size(), 11u + 64 + 1);
  EXPECT_TRUE(lines[5].starts_with("basis 0 0 3f800000be20000000000000"));
}

TEST(KvBasis, AFileWithoutOneIsOfVersionOneAndStaysReadable) {
  const std::string text = text_of(calibration_of(nullptr));
  EXPECT_TRUE(text.starts_with("kvasir-kv 1\n"));
  const auto read = parse_calibration("a.kv", text, 2);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->key_bases, nullptr);
  // Version 1 has none, version 2 one: a file cut off before it is not taken for whole.
  EXPECT_NE(message_of("kvasir-kv 2" + text.substr(11)).find("want a line `bases`"),
            std::string::npos);
  const std::string with = text_of(calibration_of(random_key_bases(kSmall)));
  EXPECT_NE(message_of("kvasir-kv 1" + with.substr(11)).find("want model, damage or plan"),
            std::string::npos);
}

TEST(KvBasis, ADigitThatChangedIsRefused) {
  const std::string text = text_of(calibration_of(random_key_bases(kSmall)));
  for (std::size_t at = text.find("bases"); at < text.size(); at += 41) {
    std::string damaged = text;
    damaged[at] = damaged[at] == '3' ? '4' : '3';
    EXPECT_NE(message_of(damaged), "") << at;
  }
}

TEST(KvBasis, ATextCutAnywhereIsRefused) {
  const std::string text = text_of(calibration_of(random_key_bases(kSmall)));
  for (std::size_t n = text.find("bases") + 1; n + 1 < text.size(); n += 7) {
    EXPECT_NE(message_of(text.substr(0, n)), "") << n;
  }
  EXPECT_EQ(message_of(text.substr(0, text.size() - 1)), "") << "but for the last line's end";
}

TEST(KvBasis, EveryLineThatIsWrongIsRefused) {
  const auto lines = lines_of(calibration_of(random_key_bases(kSmall)));
  ASSERT_EQ(lines.size(), 7u);
  const auto with = [&](std::size_t i, const std::string& line) {
    auto changed = lines;
    changed[i] = line;
    return message_of(joined(changed));
  };
  const std::string matrix = lines[5].substr(10), fingerprint = lines[4].substr(11);
  const char* const bases = "want kv heads, their size and 64 digits, once";
  const char* const basis = "want a layer, a head and its matrix, once, after `bases`";
  const char* const whole = "want a matrix for each layer and head, of this fingerprint";
  const struct {
    std::size_t line;
    std::string text;
    const char* want;
  } rows[] = {
      {4, "", basis},
      {4, "bases\n", bases},
      {4, "bases 1 16 abc\n", bases},
      {4, "bases 0 16 " + fingerprint, bases},
      {4, "bases -1 16 " + fingerprint, bases},
      {4, "bases 1 17 " + fingerprint, bases},
      {4, "bases 1 x " + fingerprint, bases},
      {4, "bases 60000 256 " + fingerprint, bases},  // more than the file can hold
      {4, lines[4] + lines[4], bases},
      {4, "bases 1 16 " + std::string(64, '0') + "\n", whole},
      {5, "", bases},  // no room for it in so short a file
      {5, lines[5] + lines[5], basis},
      {5, "basis 0 0\n", bases},
      {5, "basis 0 0 " + matrix.substr(1), basis},
      {5, "basis 0 1 " + matrix, basis},
      {5, "basis 2 0 " + matrix, basis},
      {5, "basis -1 0 " + matrix, basis},
      {5, "basis 0 0 " + matrix.substr(0, 8) + "+fffffff" + matrix.substr(16), basis},
      {5, "basis 1 0 " + matrix, basis},  // and line 6 is the second of it
  };
  for (const auto& row : rows) {
    const std::string message = with(row.line, row.text);
    EXPECT_NE(message.find(row.want), std::string::npos) << row.text << ": " << message;
  }
}

TEST(KvBasis, OneWithoutInverseIsRefusedByLayerAndHead) {
  const KvCalibration made = calibration_of(random_key_bases(kSmall));
  std::vector<float> keys(made.key_bases->keys().begin(), made.key_bases->keys().end());
  std::fill(keys.begin() + 256, keys.end(), 0.0f);
  auto lines = lines_of(made);
  lines[4] = "bases 1 16 " + cache::PageKey{cache::fingerprint_of(kSmall, keys)}.to_hex() + "\n";
  lines[6] = "basis 1 0 " + std::string(2048, '0') + "\n";
  EXPECT_NE(message_of(joined(lines)).find("layer 1, kv head 0"), std::string::npos);
}

TEST(KvBasis, IsOfPlansAndOfNoOtherChoice) {
  const KvCalibration made = calibration_of(random_key_bases(kShape));
  const auto basis_of = [&](const KvChoice& choice, cache::KvFormat format) {
    return apply_calibration(made, choice, 2, std::move(format))->key_bases;
  };
  const cache::KvFormat uniform{kTiles, {}, 1, 1};
  KvChoice choice;
  choice.codecs = kTiles;
  EXPECT_EQ(basis_of(choice, uniform), nullptr);
  choice.plan = "int4";
  EXPECT_EQ(basis_of(choice, uniform), made.key_bases);
  choice.plan = "int4-3";  // which it has not: but a basis
  EXPECT_EQ(basis_of(choice, uniform), made.key_bases);
  choice.has_key_basis = false;
  EXPECT_EQ(basis_of(choice, uniform), nullptr);
  choice.has_key_basis = true;
  const auto own = random_key_bases(kShape, 2);
  EXPECT_EQ(basis_of(choice, {kTiles, {}, 1, 1, own}), own);
}

/// The model with a calibration beside it.
class KvBasisOfAnEngine : public ::testing::Test {
 protected:
  KvBasisOfAnEngine() {
    std::filesystem::create_directories(directory_.path());
    options_.model_path = directory_.path() + "/model.gguf";
    options_.n_threads = 1;
    std::filesystem::copy_file(testing::kData + kLlama, options_.model_path);
    options_.kv.codecs = kTiles;
    options_.kv.plan = "int4";
  }
  Result<std::unique_ptr<Engine>> load() { return Engine::load(Env::posix(), options_); }
  void write(const std::shared_ptr<const KeyBases>& bases) {
    KvCalibration made = calibration_of(bases);
    EngineOptions plain = options_;
    plain.kv = {};
    made.model = (*Engine::load(Env::posix(), plain))->model_fingerprint();
    std::ofstream(calibration_path(options_.model_path)) << text_of(made);
  }

  testing::KvDirectory directory_;
  EngineOptions options_;
};

TEST_F(KvBasisOfAnEngine, IsThatOfTheFileBesideTheModelAndInTheBudget) {
  const auto bases = random_key_bases(kShape);
  write(nullptr);
  const auto without = load();
  write(bases);
  const auto with = load();
  ASSERT_TRUE(without && with);
  EXPECT_EQ((*without)->kv_format().key_bases, nullptr);
  EXPECT_EQ((*with)->kv_format().key_bases->fingerprint(), bases->fingerprint());
  EXPECT_EQ((*with)->cache().options().key_bases, (*with)->kv_format().key_bases);
  EXPECT_EQ((*with)->memory_summary().reserved_weights,
            (*without)->memory_summary().reserved_weights + bases->bytes());
}

TEST_F(KvBasisOfAnEngine, OfAnotherShapeIsRefusedWithTheFilesName) {
  for (const KeyBases::Shape& shape : {KeyBases::Shape{2, 1, 64}, KeyBases::Shape{2, 3, 32}}) {
    write(random_key_bases(shape));
    const auto engine = load();
    ASSERT_FALSE(engine);
    EXPECT_TRUE(engine.error().message.starts_with(calibration_path(options_.model_path) + ": "));
    EXPECT_NE(engine.error().message.find("want 3 of 64; `kvasir calibrate kv`"), std::string::npos)
        << engine.error().message;
  }
}

/// Pages on the disk of one basis, a prompt over another, or over none.
TEST_F(KvBasisOfAnEngine, PagesOfAnotherBasisAreNotFound) {
  options_.kv_dir = directory_.path() + "/pages";
  options_.prefix_bytes = testing::kPlenty;
  options_.always_load = true;
  const testing::Tokens prompt = testing::run_of(200);
  const auto n_reused = [&](const std::shared_ptr<const KeyBases>& bases) {
    write(bases);
    auto engine = load();
    EXPECT_TRUE(engine) << engine.error().message;
    int n = 0;
    {
      Session session(**engine);
      n = session.prompt(prompt)->n_reused;
    }
    testing::settle(**engine);
    return n;
  };
  const auto one = random_key_bases(kShape, 1), other = random_key_bases(kShape, 2);
  EXPECT_EQ(n_reused(one), 0);
  EXPECT_EQ(n_reused(one), 192);
  EXPECT_EQ(n_reused(other), 0);
  EXPECT_EQ(n_reused(nullptr), 0);
  EXPECT_EQ(n_reused(one), 192);
}

}  // namespace
}  // namespace kvasir::engine
