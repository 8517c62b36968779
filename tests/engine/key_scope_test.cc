// Everything that makes K and V of equal tokens differ changes the root key, and its name is told.
#include "engine/key_scope.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <string>

#include "engine/kv_dir_support.h"
#include "engine/session.h"
#include "support/gguf_writer.h"

namespace kvasir::engine {
namespace {

using Bytes = std::vector<std::uint8_t>;

const std::string kModel = KVASIR_SOURCE_DIR "/tests/data/arch_vectors/llama_9q3kv_hd64.gguf";

Bytes model_bytes() {
  std::ifstream in(kModel, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

gguf::File parse(const Bytes& bytes) { return gguf::File::parse(bytes, "test").value(); }

cache::KeyScope scope_of(const Bytes& bytes) {
  ThreadPool pool(2);
  cache::KeyScope scope;
  fingerprint_model(parse(bytes), pool, scope);
  return scope;
}

/// Where `view` lies in `bytes`.
std::size_t offset_in(const Bytes& bytes, const void* view) {
  return static_cast<std::size_t>(static_cast<const std::uint8_t*>(view) - bytes.data());
}

/// The first byte of the value of a number's entry: after the key and its type.
std::size_t number_at(const Bytes& bytes, std::string_view key) {
  const gguf::File file = parse(bytes);
  for (const gguf::File::Entry& entry : file.metadata()) {
    if (entry.key == key) return offset_in(bytes, entry.key.data()) + key.size() + 4;
  }
  ADD_FAILURE() << key;
  return 0;
}

std::string text_entry(std::string_view key) {
  const Bytes bytes = model_bytes();
  const gguf::File file = parse(bytes);
  return std::string(file.get_string(key).value().value());
}

/// `options` on the model with these bytes.
std::unique_ptr<Engine> load(const Bytes& bytes, EngineOptions options = {}) {
  options.model_path = ::testing::TempDir() + "kvasir_key_scope_" +
                       ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".gguf";
  options.n_threads = 1;
  options.prefix_bytes = 1 << 20;
  std::ofstream(options.model_path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
  auto engine = Engine::load(Env::posix(), options);
  EXPECT_TRUE(engine) << engine.error().message;
  std::remove(options.model_path.c_str());
  return engine ? std::move(*engine) : nullptr;
}

/// A change, and the name of the field that it changes.
struct Change {
  const char* name;
  Bytes bytes;
  EngineOptions options = {};
};

std::vector<Change> changes_of(const Bytes& original) {
  std::vector<Change> rows;
  const auto add_bytes = [&](const char* name, std::size_t at) {
    rows.push_back({name, original});
    rows.back().bytes[at] ^= 1;
  };
  const gguf::File file = parse(original);
  // The first and the last byte of the first, a middle and the last tensor.
  for (const std::size_t i :
       {std::size_t{0}, file.tensors().size() / 2, file.tensors().size() - 1}) {
    const auto data = file.tensors()[i].data;
    add_bytes("model", offset_in(original, data.data()));
    add_bytes("model", offset_in(original, data.data()) + data.size() - 4);
  }
  const std::string arch = text_entry("general.architecture");
  add_bytes("model", number_at(original, arch + ".attention.layer_norm_rms_epsilon"));
  add_bytes("rope", number_at(original, arch + ".rope.freq_base"));
  const gguf::Array* tokens = file.get_array("tokenizer.ggml.tokens").value();
  add_bytes("tokenizer", offset_in(original, tokens->string_at(tokens->size() - 1).data()));
  const auto add_options = [&](const char* name, const auto& change) {
    rows.push_back({name, original});
    change(rows.back().options);
  };
  add_options("codec_k", [](auto& options) { options.kv.codecs.k = cache::CodecId::kBF16; });
  add_options("codec_v", [](auto& options) { options.kv.codecs.v = cache::CodecId::kF32; });
  add_options("page_tokens", [](auto& options) { options.page_tokens = 64; });
  add_options("head_order",
              [](auto& options) { options.head_order = cache::HeadOrder::kInterleaved; });
  add_options("activations",
              [](auto& options) { options.activations = model::ActivationMode::kFloat32; });
  add_options("salt", [](auto& options) { options.salt = "tenant 7"; });
  return rows;
}

TEST(KeyScope, EveryChangeIsAnotherRootAndHasAName) {
  const Bytes original = model_bytes();
  const auto engine = load(original);
  std::set<std::string> roots = {engine->root_key().to_hex()};
  for (const Change& row : changes_of(original)) {
    const auto other = load(row.bytes, row.options);
    ASSERT_NE(other, nullptr);
    EXPECT_EQ(cache::first_difference(engine->key_scope(), other->key_scope()), row.name);
    EXPECT_TRUE(roots.insert(other->root_key().to_hex()).second) << row.name;
    EXPECT_EQ(other->root_key(), cache::root_key(other->key_scope()));
  }
}

/// One prompt by an engine on `directory`, whose pages are all there afterwards.
PromptReport prompt_on(const testing::KvDirectory& directory, const Bytes& bytes,
                       EngineOptions options = {}) {
  options.kv_dir = directory.path();
  options.always_load = true;
  const auto engine = load(bytes, options);
  Session session(*engine);
  PromptReport report = session.prompt(testing::run_of(200)).value();
  testing::settle(*engine);
  return report;
}

TEST(KeyScope, AfterEveryChangeNothingOnTheDiskIsReusedAndTheReportSaysWhatDiffers) {
  const Bytes original = model_bytes();
  for (const Change& row : changes_of(original)) {
    SCOPED_TRACE(row.name);
    const testing::KvDirectory directory;
    EXPECT_EQ(prompt_on(directory, original).end, cache::MatchEnd::kEndOfCache);
    const PromptReport report = prompt_on(directory, row.bytes, row.options);
    EXPECT_EQ(report.n_reused, 0);
    EXPECT_EQ(report.scope_difference, row.name);
    const std::set<std::string> of_model = {"model", "tokenizer", "rope"};
    const cache::MatchEnd want = of_model.count(row.name) > 0      ? cache::MatchEnd::kOtherModel
                                 : row.name == std::string("salt") ? cache::MatchEnd::kNamespace
                                                                   : cache::MatchEnd::kOtherCodec;
    EXPECT_EQ(report.end, want) << cache::match_end_name(report.end);
    // And without the change all is reused.
    EXPECT_EQ(prompt_on(directory, original).n_loaded, 192);
  }
}

TEST(KeyScope, WhatChangesNoResultChangesNoKey) {
  Bytes bytes = model_bytes();
  const auto engine = load(bytes);
  EngineOptions options;
  options.n_batch = 3;
  options.n_ctx = 100;
  options.budget_bytes = std::uint64_t{1} << 30;
  const Bytes original = bytes;
  const gguf::File file = parse(original);
  const auto name = file.get_string("general.name").value();
  ASSERT_TRUE(name) << "the model has no name to change";
  bytes[offset_in(original, name->data())] ^= 1;
  const auto renamed = load(bytes, options);
  EXPECT_EQ(cache::first_difference(engine->key_scope(), renamed->key_scope()), "");
  EXPECT_EQ(renamed->root_key(), engine->root_key());
}

TEST(KeyScope, PagesOfABuildWithAnotherOrderOfSumsAreNotFound) {
  const auto engine = load(model_bytes());
  const cache::KeyScope& scope = engine->key_scope();
  const auto read = parse_manifest(manifest_of(scope, "name"));
  ASSERT_TRUE(read);
  EXPECT_EQ(cache::first_difference(read->scope, scope), "");
  cache::KeyScope first = scope;
  first.arithmetic_version = 1;  // of which neither key nor manifest says a word
  const std::string manifest = manifest_of(first, "name");
  EXPECT_EQ(manifest.find("arithmetic_version"), std::string::npos);
  ASSERT_TRUE(parse_manifest(manifest));
  EXPECT_EQ(cache::first_difference(parse_manifest(manifest)->scope, scope), "arithmetic_version");
  EXPECT_NE(cache::root_key(first), cache::root_key(scope));
}

/// Only the scope stands between a tenant and another's pages.
TEST(KeyScope, UnderAnotherSaltNothingIsFound) {
  const auto engine = load(model_bytes());
  std::vector<TokenId> tokens;
  for (TokenId token = 3; token < 203; ++token) tokens.push_back(token);
  Session session(*engine);
  ASSERT_TRUE(session.prompt(tokens));
  cache::KeyScope scope = engine->key_scope();
  cache::Match match;
  engine->cache().open(cache::root_key(scope), tokens, match);
  EXPECT_EQ(match.position, 192);
  scope.salt = "other";
  engine->cache().open(cache::root_key(scope), tokens, match);
  EXPECT_EQ(match.position, 0);
  EXPECT_EQ(match.end, cache::MatchEnd::kEndOfCache);
}

/// No two files that a model could tell apart give the same bytes to be hashed.
TEST(KeyScope, TypesAndBordersOfEntriesCount) {
  const auto file_with = [](const auto& fill) {
    kvasir::testing::GgufWriter writer;
    writer.add_string("general.architecture", "llama");
    fill(writer);
    writer.add_f32_tensor("a", {2}, {1, 2});
    return writer.build();
  };
  const std::string zeros(8, '\0');
  std::vector<Bytes> files = {
      file_with([](auto& w) { w.add_string_array("x", {""}); }),
      file_with([](auto& w) { w.add_array("x", std::vector<std::int64_t>{0}); }),
      file_with([](auto& w) { w.add_array("x", std::vector<std::uint64_t>{0}); }),
      file_with([](auto& w) { w.add_array("x", std::vector<double>{0}); }),
      file_with([](auto& w) { w.add_uint64("x", 0); }),
      file_with([](auto& w) { w.add_int64("x", 0); }),
      file_with([](auto& w) { w.add_string("x", ""); }),
      file_with([&](auto& w) { w.add_string("x", zeros); }),
      file_with([](auto& w) {
        w.add_string_array("x", {"ab", "c"});
      }),
      file_with([](auto& w) {
        w.add_string_array("x", {"a", "bc"});
      }),
      file_with([](auto& w) {
        w.add_f32_tensor("b", {2}, {1, 2});
      }),
      file_with([](auto& w) {
        w.add_f32_tensor("b", {2, 1}, {1, 2});
      }),
      file_with([](auto& w) {
        w.add_f32_tensor("b", {1, 2}, {1, 2});
      }),
  };
  // The same bytes of two tensors under each other's names.
  for (const char* const name : {"c", "d"}) {
    files.push_back(file_with([&](auto& w) {
      w.add_f32_tensor(name, {1}, {1});
      w.add_f32_tensor(name[0] == 'c' ? "d" : "c", {1}, {2});
    }));
  }
  std::set<cache::Fingerprint> seen;
  for (const Bytes& bytes : files) seen.insert(scope_of(bytes).model);
  EXPECT_EQ(seen.size(), files.size() - 1) << "only {2} and {2, 1} are one shape";
}

}  // namespace
}  // namespace kvasir::engine
