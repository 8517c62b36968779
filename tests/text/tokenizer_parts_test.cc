// The parts of the tokenizer: UTF-8, classes, hash tables, trie, merge queue.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "text/hash_index.h"
#include "text/merge_queue.h"
#include "text/trie.h"
#include "text/unicode.h"

namespace kvasir::text {
namespace {

TEST(Unicode, EveryCodePointSurvives) {
  std::string text;
  for (char32_t code_point = 0; code_point < 0x110000; ++code_point) {
    if (code_point >= 0xD800 && code_point <= 0xDFFF) continue;
    text.clear();
    append_utf8(&text, code_point);
    const Decoded decoded = decode_utf8(text, 0);
    ASSERT_EQ(decoded.status, Utf8Status::kValid) << std::hex << static_cast<unsigned>(code_point);
    ASSERT_EQ(decoded.code_point, code_point);
    ASSERT_EQ(decoded.size, text.size());
    ASSERT_NE(char_class(code_point), 0);
  }
}

TEST(Unicode, IllFormed) {
  const auto status = [](std::string_view text) { return decode_utf8(text, 0).status; };
  for (const std::string_view text :
       {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xE4\xB8x", "\xC3x"}) {
    EXPECT_EQ(status(text), Utf8Status::kInvalid);
  }
  for (const std::string_view text : {"\xC3", "\xE4", "\xE4\xB8", "\xF0\x9F", "\xF0\x9F\xA6"}) {
    EXPECT_EQ(status(text), Utf8Status::kTruncated);
    EXPECT_EQ(decode_utf8(text, 0).size, text.size());
  }
  std::string surrogate;
  append_utf8(&surrogate, 0xD800);
  EXPECT_EQ(surrogate, "\xEF\xBF\xBD");
}

TEST(Unicode, Classes) {
  EXPECT_EQ(char_class('A'), kUpper);
  EXPECT_EQ(char_class(0x01C5), kUpper);  // title case
  EXPECT_EQ(char_class(0xE9), kLower);
  EXPECT_EQ(char_class(0x4E2D), kCaseless);
  EXPECT_EQ(char_class(0x0301), kMark);
  EXPECT_EQ(char_class(0xBD), kNumber);
  EXPECT_EQ(char_class('_'), kPunctuation);
  EXPECT_EQ(char_class('+'), kSymbol);
  EXPECT_EQ(char_class(0x1F999), kSymbol);
  for (const char32_t space : {0x09, 0x0A, 0x0D, 0x20, 0x85, 0xA0, 0x1680, 0x2003, 0x3000}) {
    EXPECT_EQ(char_class(space), kSpace);
  }
  EXPECT_EQ(char_class(0x1C), kControl);
  EXPECT_EQ(char_class(0x200B), kControl);
  EXPECT_EQ(char_class(0x10FFFF), kOther);
}

TEST(StringIndex, FindsTheFirstOfEqualTexts) {
  const std::vector<StringIndex::Item> items{
      {"a", 1}, {"bc", 2}, {"a", 3}, {"0123456789abcdef", 4}};
  const StringIndex index(items);
  EXPECT_EQ(index.find("a"), 1);
  EXPECT_EQ(index.find("bc"), 2);
  EXPECT_EQ(index.find("0123456789abcdef"), 4);
  EXPECT_EQ(index.find("0123456789abcdeg"), -1);
  EXPECT_EQ(index.find(""), -1);
  EXPECT_EQ(index.find(std::string_view("a\0", 2)), -1);
  EXPECT_EQ(index.longest(), 16u);
  EXPECT_EQ(StringIndex().find("a"), -1);
}

TEST(StringIndex, ManyTexts) {
  std::vector<std::string> texts;
  for (int i = 0; i < 20000; ++i) texts.push_back(std::to_string(i * 7));
  std::vector<StringIndex::Item> items;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    items.push_back({texts[i], static_cast<TokenId>(i)});
  }
  const StringIndex index(items);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    ASSERT_EQ(index.find(texts[i]), static_cast<TokenId>(i));
    ASSERT_EQ(index.find(texts[i] + "x"), -1);
  }
}

TEST(MergeTable, FindsTheFirstOfEqualPairs) {
  const std::vector<MergeTable::Item> items{
      {1, 2, {0, 10}}, {2, 1, {1, 11}}, {1, 2, {2, 12}}, {-1, 2, {3, 13}}};
  const MergeTable table(items);
  EXPECT_EQ(table.find(1, 2).id, 10);
  EXPECT_EQ(table.find(2, 1).id, 11);
  EXPECT_EQ(table.find(1, 1).rank, Merge::kNever);
  EXPECT_EQ(table.find(-1, 2).rank, Merge::kNever);
  EXPECT_EQ(table.find(-1, -1).rank, Merge::kNever);
  EXPECT_EQ(MergeTable().find(1, 2).rank, Merge::kNever);
}

TEST(Trie, LongestMatch) {
  const std::string long_text(Trie::kTextBytesMax + 1, 'z');
  const std::vector<Trie::Item> items{{"ab", 1}, {"abcd", 2}, {"b", 3},       {"ab", 4},
                                      {"", 5},   {"\xFF", 6}, {long_text, 7}, {"abce", 8}};
  const Trie trie(items);
  const auto match = [&](std::string_view text, std::size_t pos) {
    const Trie::Match found = trie.longest_match(text, pos);
    return std::pair(found.id, found.size);
  };
  EXPECT_EQ(match("abcd", 0), std::pair(2, std::size_t{4}));
  EXPECT_EQ(match("abce", 0), std::pair(8, std::size_t{4}));
  EXPECT_EQ(match("abcx", 0), std::pair(1, std::size_t{2}));
  EXPECT_EQ(match("abc", 1), std::pair(3, std::size_t{1}));
  EXPECT_EQ(match("\xFF", 0), std::pair(6, std::size_t{1}));
  EXPECT_EQ(match("a", 0).first, -1);
  EXPECT_EQ(match(long_text, 0).first, -1);
  EXPECT_TRUE(Trie().empty());
  EXPECT_EQ(Trie().longest_match("a", 0).id, -1);
}

/// The definition itself: merge the leftmost of the lowest-ranked pairs until there is none.
std::vector<TokenId> merged_naively(std::vector<TokenId> ids, const MergeTable& table) {
  while (true) {
    Merge best;
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const Merge merge = table.find(ids[i], ids[i + 1]);
      if (merge.rank < best.rank) {
        best = merge;
        at = i;
      }
    }
    if (best.rank == Merge::kNever) return ids;
    ids[at] = best.id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

TEST(MergeQueue, EqualsTheDefinitionAtAnyLength) {
  std::mt19937 random(11);
  MergeQueue queue;
  for (int round = 0; round < 3000; ++round) {
    // Ranks in no order at all, equal ones too: as SPM scores may be, not only as BPE trains them.
    std::vector<MergeTable::Item> items;
    for (int i = 0; i < 12; ++i) {
      const auto any = [&] { return static_cast<TokenId>(random() % 7); };
      items.push_back({any(), any(), {static_cast<std::uint32_t>(random() % 9), any()}});
    }
    const MergeTable table(items);
    const std::size_t n = random() % (3 * MergeQueue::kShort);
    std::vector<TokenId> ids;
    std::vector<Symbol> symbols;
    for (std::uint32_t i = 0; i < n; ++i) {
      ids.push_back(static_cast<TokenId>(random() % 4) - (random() % 20 == 0 ? 10 : 0));
      symbols.push_back({i, 1, ids.back()});
    }
    queue.run(&symbols, [&](const Symbol& left, const Symbol& right) {
      return table.find(left.id, right.id);
    });
    std::vector<TokenId> got;
    std::uint32_t covered = 0;
    for (const Symbol& symbol : symbols) {
      if (symbol.size == 0) continue;
      ASSERT_EQ(symbol.begin, covered);
      covered += symbol.size;
      got.push_back(symbol.id);
    }
    ASSERT_EQ(covered, n);
    ASSERT_EQ(got, merged_naively(ids, table)) << "n " << n;
  }
}

}  // namespace
}  // namespace kvasir::text
