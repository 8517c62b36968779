// Where each pre-tokenizer cuts, worked out by hand from its regular expression.
#include "text/pretokenizer.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::text {
namespace {

/// `text` with '|' at every cut.
std::string cut(std::string_view name, std::string_view text) {
  const Result<PreTokenizer> pretokenizer = PreTokenizer::by_name(name);
  if (!pretokenizer) return pretokenizer.error().message;
  std::string out;
  std::size_t begin = 0;
  for (const std::uint32_t end : pretokenizer->split(text)) {
    if (begin > 0) out.push_back('|');
    out.append(text.substr(begin, end - begin));
    begin = end;
  }
  EXPECT_EQ(begin, text.size());
  return out;
}

TEST(PreTokenizer, Gpt2) {
  EXPECT_EQ(cut("gpt-2", "Hello world"), "Hello| world");
  EXPECT_EQ(cut("gpt-2", "I've 'RE we'll"), "I|'ve| '|RE| we|'ll");
  EXPECT_EQ(cut("gpt-2", "abc123 456"), "abc|123| 456");
  EXPECT_EQ(cut("gpt-2", "a   b"), "a|  | b");
  EXPECT_EQ(cut("gpt-2", "a\n\nb"), "a|\n|\n|b");
  EXPECT_EQ(cut("gpt-2", "a  "), "a|  ");
  EXPECT_EQ(cut("gpt-2", " !? \t"), " !?| \t");
  EXPECT_EQ(cut("gpt-2", ""), "");
}

TEST(PreTokenizer, StarcoderCutsEveryNumber) {
  EXPECT_EQ(cut("smollm", "in 2024, x1"), "in| |2|0|2|4|,| x|1");
  EXPECT_EQ(cut("smollm", "\xC2\xBD\xE2\x85\xA7"), "\xC2\xBD|\xE2\x85\xA7");  // 1/2, roman VIII
}

TEST(PreTokenizer, Llama3) {
  EXPECT_EQ(cut("llama-bpe", "12345"), "123|45");
  EXPECT_EQ(cut("llama-bpe", "I'VE it'S"), "I|'VE| it|'S");
  EXPECT_EQ(cut("llama-bpe", "$abc (def"), "$abc| (|def");
  EXPECT_EQ(cut("llama-bpe", "a!!\n\n b"), "a|!!\n\n| b");
  EXPECT_EQ(cut("llama-bpe", "a \n \n  b"), "a| \n \n| | b");
  EXPECT_EQ(cut("llama-bpe", "a\tb"), "a|\tb");
  EXPECT_EQ(cut("llama-bpe", "\r\nb"), "\r\n|b");
}

TEST(PreTokenizer, Qwen) {
  EXPECT_EQ(cut("qwen2", "v12 a"), "v|1|2| a");
  // e with a combining acute: a mark ends qwen2's letters but not qwen35's.
  EXPECT_EQ(cut("qwen2", "ae\xCC\x81z"), "ae|\xCC\x81z");
  EXPECT_EQ(cut("qwen35", "ae\xCC\x81z"), "ae\xCC\x81z");
  EXPECT_EQ(cut("qwen35", "\xCC\x81"), "\xCC\x81");
}

TEST(PreTokenizer, TekkenAndGpt4o) {
  EXPECT_EQ(cut("tekken", "fooBar HTTPServer"), "foo|Bar| HTTPServer");
  EXPECT_EQ(cut("tekken", "it's A1 b//\n"), "it|'s| A|1| b|//\n");
  EXPECT_EQ(cut("gpt-4o", "it's IT'S fooBar 1234"), "it's| IT'S| foo|Bar| |123|4");
  EXPECT_EQ(cut("gpt-4o", "ABC"), "ABC");
  // Upper case, one letter of neither case, upper case: the first alternative gives back to it.
  EXPECT_EQ(cut("gpt-4o",
                "A\xE4\xB8\xAD"
                "BC"),
            "A\xE4\xB8\xAD|BC");
  EXPECT_EQ(cut("gpt-4o", "\xCC\x81"), "\xCC\x81");
}

TEST(PreTokenizer, Falcon) {
  EXPECT_EQ(cut("falcon", "a+b=12345"), "a|+|b|=|123|45");
  EXPECT_EQ(cut("falcon", "x`y don't"), "x|`|y| don|'|t");
  EXPECT_EQ(cut("default", "x `y"), "x| `|y");  // the grave accent is no symbol there
  EXPECT_EQ(cut("default", "a1234"), "a|123|4");
}

TEST(PreTokenizer, Deepseek) {
  EXPECT_EQ(cut("deepseek-coder", "a\n\nb 12"), "a|\n|\n|b| |1|2");
  EXPECT_EQ(cut("deepseek-coder", "f (x);  y"), "f| (|x|);| | y");
  EXPECT_EQ(cut("deepseek-llm", "ab  12  "), "ab|  |12|  ");
  EXPECT_EQ(cut("deepseek-llm", "ab \xE4\xB8\xAD\xE6\x96\x87!"), "ab| |\xE4\xB8\xAD\xE6\x96\x87|!");
  EXPECT_EQ(cut("deepseek-v3", "12345a.foo ab .b"), "123|45|a|.foo| ab| .|b");
  EXPECT_EQ(cut("deepseek-v3", "a\xE4\xB8\xAD"), "a|\xE4\xB8\xAD");
}

TEST(PreTokenizer, UnknownNameIsUnsupported) {
  const Result<PreTokenizer> unknown = PreTokenizer::by_name("x-none");
  ASSERT_FALSE(unknown.has_value());
  EXPECT_EQ(unknown.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(unknown.error().message.find("x-none"), std::string::npos);
}

TEST(PreTokenizer, CutsAreAscendingAndCoverAnyBytes) {
  std::mt19937 random(3);
  const std::string_view alphabet = " \n\t'sA7!/\xCC\x81\xE4\xB8\xAD\xFF";
  for (const char* name : {"default", "gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "tekken",
                           "gpt-4o", "falcon", "deepseek-llm", "deepseek-coder", "deepseek-v3"}) {
    const Result<PreTokenizer> pretokenizer = PreTokenizer::by_name(name);
    ASSERT_TRUE(pretokenizer.has_value()) << name;
    for (int i = 0; i < 2000; ++i) {
      std::string text(1 + random() % 30, ' ');
      for (char& c : text) c = alphabet[random() % alphabet.size()];
      std::uint32_t previous = 0;
      for (const std::uint32_t end : pretokenizer->split(text)) {
        ASSERT_GT(end, previous) << name;
        previous = end;
      }
      ASSERT_EQ(previous, text.size()) << name;
    }
  }
}

}  // namespace
}  // namespace kvasir::text
