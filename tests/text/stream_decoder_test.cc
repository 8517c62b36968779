// StreamDecoder: whole code points only, U+FFFD for what can never become one.
#include "text/tokenizer_support.h"
#include "text/unicode.h"

namespace kvasir::testing {
namespace {

constexpr std::string_view kBad = "\xEF\xBF\xBD";

class StreamDecoderTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    tokenizer_ = load_tokenizer(own_data("stories260k/stories260K.gguf")).release();
  }
  static void TearDownTestSuite() {
    delete tokenizer_;
    tokenizer_ = nullptr;
  }
  void SetUp() override { ASSERT_NE(tokenizer_, nullptr); }

  static std::string decoded(const std::vector<std::string_view>& parts) {
    text::StreamDecoder decoder(*tokenizer_);
    std::string out;
    for (const std::string_view part : parts) {
      const std::string text = decoder.push_bytes(part);
      EXPECT_TRUE(is_utf8(text));
      out += text;
    }
    return out + decoder.finish();
  }
  static bool is_utf8(std::string_view text) {
    for (std::size_t pos = 0; pos < text.size();) {
      const text::Decoded decoded = text::decode_utf8(text, pos);
      if (decoded.status != text::Utf8Status::kValid) return false;
      pos += decoded.size;
    }
    return true;
  }
  static text::Tokenizer* tokenizer_;
};

text::Tokenizer* StreamDecoderTest::tokenizer_ = nullptr;

TEST_F(StreamDecoderTest, EverySequenceOfTwoBytesGivesUtf8) {
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const std::string bytes{static_cast<char>(first), static_cast<char>(second)};
      const std::string whole = decoded({bytes});
      ASSERT_TRUE(is_utf8(whole)) << shown(bytes);
      ASSERT_FALSE(whole.empty()) << shown(bytes);
      const std::string_view view = bytes;
      ASSERT_EQ(decoded({view.substr(0, 1), view.substr(1)}), whole) << shown(bytes);
      if (is_utf8(bytes)) {
        ASSERT_EQ(whole, bytes);
      }
    }
  }
}

TEST_F(StreamDecoderTest, EverySplitOfATextGivesTheText) {
  const std::string text = "a\xC3\xA9\xE4\xB8\xAD\xF0\x9F\xA6\x99z\xF4\x8F\xBF\xBF";
  const std::string_view view = text;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    for (std::size_t j = i; j <= text.size(); ++j) {
      ASSERT_EQ(decoded({view.substr(0, i), view.substr(i, j - i), view.substr(j)}), text);
    }
  }
}

TEST_F(StreamDecoderTest, HoldsBackUntilTheCodePointIsWhole) {
  text::StreamDecoder decoder(*tokenizer_);
  EXPECT_EQ(decoder.push_bytes("\xF0"), "");
  EXPECT_EQ(decoder.push_bytes("\x9F\xA6"), "");
  EXPECT_EQ(decoder.push_bytes("\x99x\xE4"), "\xF0\x9F\xA6\x99x");
  EXPECT_EQ(decoder.finish(), kBad);
  EXPECT_EQ(decoder.finish(), "");
}

TEST_F(StreamDecoderTest, OneReplacementForEachMaximalSubpart) {
  const std::string bad(kBad);
  // The table of Unicode 15, section 3.9.
  EXPECT_EQ(decoded({"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82"
                     "A"}),
            bad + bad + bad + bad + bad + bad + bad + bad + "A");
  EXPECT_EQ(decoded({"\xED\xA0\x80"}), bad + bad + bad);
  EXPECT_EQ(decoded({"\xF4\x91\x92\x93\xFF"
                     "A\x80\xBF"
                     "B"}),
            bad + bad + bad + bad + bad + "A" + bad + bad + "B");
  EXPECT_EQ(decoded({"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF"
                     "A"}),
            bad + bad + bad + bad + "A");
  EXPECT_EQ(decoded({"\xF0\x9F\xA6", "x"}), bad + "x");
  EXPECT_EQ(decoded({"\xF0\x9F\xA6"}), bad);
}

TEST_F(StreamDecoderTest, LeadingSpaceOfTheFirstPieceOnly) {
  const Ids ids = plain_ids(*tokenizer_, " two  spaces");
  EXPECT_EQ(decode(*tokenizer_, ids), " two  spaces");
  text::StreamDecoder decoder(*tokenizer_);
  EXPECT_EQ(decoder.push(*tokenizer_->bos()), "");  // says nothing, so the start is still ahead
  std::string out;
  for (int i = 0; i < 2; ++i) {
    for (const TokenId id : plain_ids(*tokenizer_, "Zoo")) out += decoder.push(id);
  }
  EXPECT_EQ(out, "Zoo Zoo");
  text::StreamDecoder continuation(*tokenizer_, text::LeadingSpace::kKeep);
  EXPECT_EQ(continuation.push(plain_ids(*tokenizer_, "Zoo").front()).front(), ' ');
}

TEST_F(StreamDecoderTest, EveryTokenAloneGivesUtf8) {
  for (TokenId id = 0; id < tokenizer_->vocab_size(); ++id) {
    ASSERT_TRUE(is_utf8(decode(*tokenizer_, {id}))) << id;
  }
}

}  // namespace
}  // namespace kvasir::testing
