#include "text/pretokenizer.h"

#include <fmt/format.h>

#include <array>

#include "text/split_rules.h"

namespace kvasir::text {
namespace {

using enum SplitRule;

constexpr std::array kGpt2Rules{kGpt2};
constexpr std::array kStarcoderRules{kEachNumber, kGpt2};
constexpr std::array kLlama3Rules{kLlama3};
constexpr std::array kQwen2Rules{kQwen2};
constexpr std::array kQwen35Rules{kQwen35};
constexpr std::array kTekkenRules{kTekken};
constexpr std::array kGpt4oRules{kGpt4o};
constexpr std::array kFalconRules{kFalconSymbols, kGpt2, kThreeDigits};
constexpr std::array kDefaultRules{kDefaultSymbols, kGpt2, kNumbers, kThreeDigits};
constexpr std::array kDeepseekLlmRules{kEachNewline,   kDeepseekLetters, kDeepseekPunct,
                                       kTrailingSpace, kDeepseekCjk,     kNumbers};
constexpr std::array kDeepseekCoderRules{kEachNewline, kSpacedLetters, kSpacedPunct, kDeepseekCjk,
                                         kEachNumber};
constexpr std::array kDeepseek3Rules{kThreeNumbers, kDeepseek3Cjk, kDeepseek3};

struct Known {
  std::string_view name;
  std::span<const SplitRule> rules;
  bool ignores_merges = false;
  bool adds_bos = false;
};

constexpr Known kKnown[] = {
    {"default", kDefaultRules},
    {"gpt-2", kGpt2Rules},
    {"phi-2", kGpt2Rules},
    {"mpt", kGpt2Rules},
    {"olmo", kGpt2Rules},
    {"jais", kGpt2Rules},
    {"trillion", kGpt2Rules},
    {"granite-docling", kGpt2Rules},
    {"gigachat", kGpt2Rules},
    {"a.x-4.0", kGpt2Rules},
    {"mellum", kGpt2Rules},
    {"modern-bert", kGpt2Rules},
    {"exaone4", kGpt2Rules},
    {"jina-es", kGpt2Rules},
    {"jina-de", kGpt2Rules},
    {"jina-v2-es", kGpt2Rules},
    {"jina-v2-de", kGpt2Rules},
    {"smollm", kStarcoderRules},
    {"starcoder", kStarcoderRules},
    {"refact", kStarcoderRules},
    {"command-r", kStarcoderRules},
    {"codeshell", kStarcoderRules},
    {"exaone", kStarcoderRules},
    {"minerva-7b", kStarcoderRules},
    {"llama3", kLlama3Rules, true, true},
    {"llama-v3", kLlama3Rules, true, true},
    {"llama-bpe", kLlama3Rules, true, true},
    {"falcon3", kLlama3Rules, true, true},
    {"falcon-h1", kLlama3Rules, true, true},
    {"pixtral", kLlama3Rules, true, true},
    {"midm-2.0", kLlama3Rules, true, true},
    {"lfm2", kLlama3Rules, true, true},
    {"smaug-bpe", kLlama3Rules},
    {"dbrx", kLlama3Rules},
    {"glm4", kLlama3Rules},
    {"chatglm-bpe", kLlama3Rules},
    {"qwen2", kQwen2Rules},
    {"deepseek-r1-qwen", kQwen2Rules},
    {"megrez", kQwen2Rules},
    {"stablelm2", kQwen2Rules},
    {"hunyuan", kQwen2Rules},
    {"grok-2", kQwen2Rules},
    {"solar-open", kQwen2Rules},
    {"qwen35", kQwen35Rules},
    {"tekken", kTekkenRules, true, true},
    {"gpt-4o", kGpt4oRules},
    {"llama4", kGpt4oRules},
    {"falcon", kFalconRules},
    {"deepseek-llm", kDeepseekLlmRules},
    {"deepseek-coder", kDeepseekCoderRules},
    {"deepseek-v3", kDeepseek3Rules},
};

CodePoints decode(std::string_view text) {
  CodePoints out;
  out.code_points.reserve(text.size());
  out.classes.reserve(text.size());
  out.offsets.reserve(text.size() + 1);
  for (std::size_t pos = 0; pos < text.size();) {
    const Decoded decoded = decode_utf8(text, pos);
    const bool valid = decoded.status == Utf8Status::kValid;
    out.code_points.push_back(valid ? decoded.code_point : kReplacement);
    out.classes.push_back(valid ? char_class(decoded.code_point) : kSymbol);
    out.offsets.push_back(static_cast<std::uint32_t>(pos));
    pos += valid ? decoded.size : 1;
  }
  out.offsets.push_back(static_cast<std::uint32_t>(text.size()));
  return out;
}

}  // namespace

Result<PreTokenizer> PreTokenizer::by_name(std::string_view name) {
  for (const Known& known : kKnown) {
    if (known.name != name) continue;
    PreTokenizer out;
    out.rules_ = known.rules;
    out.ignores_merges_ = known.ignores_merges;
    out.adds_bos_ = known.adds_bos;
    return out;
  }
  return Error{
      ErrorCode::kUnsupported,
      fmt::format("tokenizer: key 'tokenizer.ggml.pre' names a pre-tokenizer this build "
                  "does not know; got '{}', want gpt-2, smollm, llama-bpe, qwen2 or another "
                  "of {} known names",
                  name.substr(0, 64), std::size(kKnown))};
}

std::vector<std::uint32_t> PreTokenizer::split(std::string_view text) const {
  if (text.empty()) return {};
  const CodePoints points = decode(text);
  std::vector<std::uint32_t> ends{static_cast<std::uint32_t>(points.code_points.size())};
  std::vector<std::uint32_t> finer;
  for (const SplitRule rule : rules_) {
    finer.clear();
    std::uint32_t begin = 0;
    for (const std::uint32_t end : ends) {
      split_piece(points, rule, begin, end, &finer);
      begin = end;
    }
    ends.swap(finer);
  }
  for (std::uint32_t& end : ends) end = points.offsets[end];
  return ends;
}

}  // namespace kvasir::text
