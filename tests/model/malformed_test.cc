// Files whose fault lies in the model: the s* files of tests/data/gguf_malformed.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "model/harness.h"

namespace kvasir::model {
namespace {

/// Their fault is the tokenizer's or the chat template's; the model in them is sound.
const std::set<std::string> kTextFaults = {"s24_toktype_u8.gguf",        "s29_merge_nospace.gguf",
                                           "s30_merge_unknown.gguf",     "s35_token_dup.gguf",
                                           "s36_byte_missing.gguf",      "s37_template_ssti.gguf",
                                           "s38_template_unclosed.gguf", "s39_template_loop.gguf",
                                           "s43_model_tok_unknown.gguf", "s44_pre_unknown.gguf"};

std::vector<nlohmann::json> index_entries() {
  std::ifstream stream(testing::data_path("gguf_malformed/index.jsonl"));
  std::vector<nlohmann::json> entries;
  for (std::string line; std::getline(stream, line);) {
    auto entry = nlohmann::json::parse(line);
    if (entry["file"].get<std::string>()[0] == 's') entries.push_back(std::move(entry));
  }
  return entries;
}

/// What loaded must also run, or say that its weights give no finite logits; never a crash.
void run_a_little(const gguf::File& file, ActivationMode mode) {
  ThreadPool pool(2);
  cache::ByteBudget budget;
  LoadOptions options;
  options.activations = mode;
  auto model = Model::load(file, options, budget, pool);
  ASSERT_TRUE(model.has_value());
  cache::CacheOptions cache_options;
  cache_options.groups = (*model)->cache_groups();
  auto kv = cache::KvCache::create(cache_options, budget);
  ASSERT_TRUE(kv.has_value());
  cache::Sequence sequence = (*kv)->open();
  const auto tokens = testing::random_tokens(20, (*model)->config().vocab_size, 3);
  ASSERT_TRUE(sequence.append(20).has_value());
  const auto views = sequence.views();
  const ForwardItem item{.tokens = tokens, .first_pos = 0, .layers = views, .n_logits = 2};
  std::vector<float> logits;
  const Status status = (*model)->forward({&item, 1}, pool, logits);
  EXPECT_TRUE(status.has_value() || status.error().code == ErrorCode::kInvalidModel);
  EXPECT_EQ(logits.size(), 2u * static_cast<std::size_t>((*model)->config().vocab_size));
}

TEST(MalformedModels, EveryFileIsTreatedAsItsIndexSays) {
  const auto entries = index_entries();
  EXPECT_EQ(entries.size(), 22u);
  for (const auto& entry : entries) {
    const auto name = entry["file"].get<std::string>();
    const auto expect = entry["expect"].get<std::string>();
    SCOPED_TRACE(name + ": " + entry["desc"].get<std::string>());
    auto file =
        gguf::File::open(Env::posix(), testing::data_path("gguf_malformed/" + name).string());
    if (!file) {
      EXPECT_NE(expect, "accept") << file.error().message;
      continue;
    }
    ThreadPool pool(1);
    cache::ByteBudget budget;
    bool loads = false;
    {
      auto model = Model::load(*file, {}, budget, pool);
      loads = model.has_value();
      if (!loads) {
        EXPECT_EQ(model.error().message.rfind("model: ", 0), 0u) << model.error().message;
      }
    }
    EXPECT_EQ(budget.reserved(), 0u);
    if (expect == "accept" || kTextFaults.contains(name)) {
      EXPECT_TRUE(loads);
    } else if (expect == "reject") {
      EXPECT_FALSE(loads);
    }
    if (!loads) continue;
    run_a_little(*file, ActivationMode::kInt8);
    run_a_little(*file, ActivationMode::kFloat32);
  }
}

}  // namespace
}  // namespace kvasir::model
