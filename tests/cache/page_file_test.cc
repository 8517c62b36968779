#include "cache/tier/page_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <numeric>
#include <string_view>

#include "cache/tier/checksum.h"

namespace kvasir::cache {
namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

void append(Bytes& bytes, const Bytes& more) {
  bytes.insert(bytes.end(), more.begin(), more.end());
}

Bytes ascending(std::uint8_t first, std::size_t n) {
  Bytes bytes(n);
  std::iota(bytes.begin(), bytes.end(), first);
  return bytes;
}

/// docs/formats/page-file.md, written down byte by byte; the checksums by Python's xxhash.
Bytes hand_made() {
  Bytes bytes = bytes_of("KVSRPAGE");                               // 0 magic
  append(bytes, {1, 0, 0, 0});                                      // 8 version, zero
  append(bytes, {192, 0, 0, 0});                                    // 12 header bytes
  append(bytes, {3, 0, 0, 0, 0, 0, 0, 0});                          // 16 payload bytes
  append(bytes, {0x45, 0xed, 0x17, 0xaa, 0xf0, 0x8c, 0xd4, 0x07});  // 24 payload checksum
  append(bytes, ascending(0, 32));                                  // 32 key
  append(bytes, ascending(32, 32));                                 // 64 parent
  append(bytes, ascending(64, 32));                                 // 96 root
  append(bytes, {0, 0, 0, 0, 0x65, 0, 0, 0});                       // 128 created
  append(bytes, {0, 0, 0, 0});                                      // 136 flags
  append(bytes, {128, 0, 0, 0});                                    // 140 first token
  append(bytes, {2, 0, 0, 0});                                      // 144 number of tokens
  append(bytes, {3, 0, 0, 0});                                      // 148 description bytes
  append(bytes, {1, 0, 0, 0, 4, 3, 2, 1});                          // 152 tokens
  append(bytes, bytes_of("f16"));                                   // 160 description
  append(bytes, Bytes(21, 0));                                      // 163 zero
  append(bytes, {0x10, 0x32, 0x29, 0x90, 0xeb, 0xf0, 0x9f, 0x15});  // 184 header checksum
  return bytes;
}

const std::vector<TokenId> kTokens = {1, 0x01020304};
const Bytes kPayload = bytes_of("\xaa\xbb\xcc");

PageRecord example() {
  PageRecord record;
  std::iota(record.key.bytes.begin(), record.key.bytes.end(), std::uint8_t{0});
  std::iota(record.parent.bytes.begin(), record.parent.bytes.end(), std::uint8_t{32});
  std::iota(record.root.bytes.begin(), record.root.bytes.end(), std::uint8_t{64});
  record.first_token = 128;
  record.tokens = kTokens;
  record.description = "f16";
  record.payload = kPayload;
  return record;
}
constexpr std::int64_t kCreated = 0x6500000000;

template <class T>
void patch(Bytes& header, std::size_t offset, T value) {
  std::memcpy(header.data() + offset, &value, sizeof value);
  // Checksummed anew: as if somebody had written it so.
  const std::size_t end = header.size() - 8;
  const std::uint64_t checksum = xxh3_64(std::span<const std::uint8_t>(header).first(end));
  std::memcpy(header.data() + end, &checksum, 8);
}

TEST(Checksum, IsXxh3) {
  // The reference implementation's own numbers.
  EXPECT_EQ(xxh3_64(Bytes{}), 0x2d06800538d394c2u);
  EXPECT_EQ(xxh3_64(bytes_of("a")), 0xe6c632b61e964e1fu);
  EXPECT_EQ(xxh3_64(bytes_of("abc")), 0x78af5f94892f3950u);
}

TEST(Checksum, OfTwoPartsIsThatOfTheirBytesSideBySide) {
  const Bytes bytes = ascending(3, 4000);
  const std::span<const std::uint8_t> all = bytes;
  for (const std::size_t cut : {0u, 1u, 32u, 240u, 1024u, 3999u, 4000u}) {
    EXPECT_EQ(xxh3_64(all.first(cut), all.subspan(cut)), xxh3_64(all)) << cut;
  }
}

TEST(PageFile, EncodesTheHandMadeBytes) {
  const auto header = encode_page_header(example(), kCreated);
  ASSERT_TRUE(header) << header.error().message;
  EXPECT_EQ(*header, hand_made());
}

TEST(PageFile, DecodesTheHandMadeBytes) {
  const auto header = decode_page_header(hand_made());
  ASSERT_TRUE(header) << header.error().message;
  const PageRecord want = example();
  EXPECT_EQ(header->key, want.key);
  EXPECT_EQ(header->parent, want.parent);
  EXPECT_EQ(header->root, want.root);
  EXPECT_EQ(header->first_token, 128);
  EXPECT_EQ(header->tokens, (std::vector<TokenId>{1, 0x01020304}));
  EXPECT_EQ(header->description, "f16");
  EXPECT_EQ(header->created_seconds, kCreated);
  EXPECT_EQ(header->payload_bytes, 3u);
  EXPECT_EQ(header->header_bytes, 192u);
  EXPECT_TRUE(check_payload(*header, kPayload));
}

TEST(PageFile, TheLargestHeaderIsWhatTheLimitSays) {
  const std::vector<TokenId> tokens(kPageFileTokensMax, 7);
  const std::string description(kPageFileDescriptionBytesMax, 'd');
  PageRecord record = example();
  const Bytes payload(1, 0);
  record.payload = payload;
  record.tokens = tokens;
  record.description = description;
  const auto encoded = encode_page_header(record, -1);
  ASSERT_TRUE(encoded) << encoded.error().message;
  EXPECT_EQ(encoded->size(), kPageHeaderBytesMax);
  const auto header = decode_page_header(*encoded);
  ASSERT_TRUE(header) << header.error().message;
  EXPECT_EQ(header->tokens, tokens);
  EXPECT_EQ(header->description, description);
  EXPECT_EQ(header->created_seconds, -1);
}

TEST(PageFile, RefusesToEncodeWhatTheFormatCannotHold) {
  const std::vector<TokenId> too_many(kPageFileTokensMax + 1, 7);
  const std::string too_long(kPageFileDescriptionBytesMax + 1, 'd');
  std::vector<PageRecord> records(5, example());
  ASSERT_TRUE(encode_page_header(records[0], 0));
  records[0].tokens = {};
  records[1].tokens = too_many;
  records[2].description = too_long;
  records[3].payload = {};
  records[4].first_token = -1;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const auto header = encode_page_header(records[i], 0);
    ASSERT_FALSE(header) << i;
    EXPECT_EQ(header.error().code, ErrorCode::kInvalidArgument) << i;
  }
}

TEST(PageFile, ThePayloadsChecksumIsBoundToTheKey) {
  PageRecord record = example();
  record.key.bytes[31] ^= 1;
  const auto other = decode_page_header(*encode_page_header(record, kCreated));
  ASSERT_TRUE(other);
  const auto header = decode_page_header(hand_made());
  EXPECT_NE(other->payload_checksum, header->payload_checksum);
  // The right payload under a header of another key.
  PageHeader wrong = *header;
  wrong.key = other->key;
  EXPECT_EQ(check_payload(wrong, kPayload).error().code, ErrorCode::kCorruption);
}

TEST(PageFile, ADamagedOrShorterPayloadDoesNotCheck) {
  const auto header = decode_page_header(hand_made());
  for (const Bytes& payload : {Bytes{0xaa, 0xbb, 0xcd}, Bytes{0xaa, 0xbb}, Bytes{},
                               Bytes{0xaa, 0xbb, 0xcc, 0}, Bytes{0xbb, 0xaa, 0xcc}}) {
    EXPECT_EQ(check_payload(*header, payload).error().code, ErrorCode::kCorruption);
  }
}

TEST(PageFile, AHeaderCutOffAnywhereIsDamage) {
  const Bytes bytes = hand_made();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const auto header = decode_page_header(std::span(bytes).first(size));
    ASSERT_FALSE(header) << size;
    EXPECT_EQ(header.error().code, ErrorCode::kCorruption) << size;
  }
}

TEST(PageFile, EveryBitOfAHeaderCounts) {
  for (std::size_t bit = 0; bit < 8 * hand_made().size(); ++bit) {
    Bytes bytes = hand_made();
    bytes[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    const auto header = decode_page_header(bytes);
    ASSERT_FALSE(header) << "bit " << bit;
    const bool in_version = bit / 8 == 8;
    EXPECT_EQ(header.error().code, in_version ? ErrorCode::kUnsupported : ErrorCode::kCorruption)
        << "bit " << bit << ": " << header.error().message;
  }
}

TEST(PageFile, OtherVersionsAndFlagsAreNotDamage) {
  for (const int version : {0, 2, 255}) {
    Bytes bytes = hand_made();
    bytes[8] = static_cast<std::uint8_t>(version);
    // Everything but magic and version may mean something else there, its checksum too.
    EXPECT_EQ(decode_page_header(bytes).error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(page_header_bytes(bytes).error().code, ErrorCode::kUnsupported);
  }
  for (const std::uint32_t flags : {1u, 0x80000000u}) {
    Bytes bytes = hand_made();
    patch(bytes, 136, flags);
    EXPECT_EQ(decode_page_header(bytes).error().code, ErrorCode::kUnsupported);
  }
}

TEST(PageFile, ACorrectChecksumDoesNotMakeNonsenseSense) {
  const auto expect_damage = [](std::size_t offset, auto value, const char* words) {
    Bytes bytes = hand_made();
    patch(bytes, offset, value);
    const auto header = decode_page_header(bytes);
    ASSERT_FALSE(header) << words;
    EXPECT_EQ(header.error().code, ErrorCode::kCorruption) << words;
    EXPECT_NE(header.error().message.find(words), std::string::npos) << header.error().message;
  };
  const std::uint32_t huge = std::numeric_limits<std::uint32_t>::max();
  expect_damage(12, std::uint32_t{0}, "header size");
  expect_damage(12, std::uint32_t{128}, "header size");
  expect_damage(12, std::uint32_t{193}, "header size");
  expect_damage(12, std::uint32_t{kPageHeaderBytesMax + 64}, "header size");
  expect_damage(12, huge, "header size");
  expect_damage(16, std::uint64_t{0}, "payload size");
  expect_damage(16, kPageFilePayloadBytesMax + 1, "payload size");
  expect_damage(16, std::numeric_limits<std::uint64_t>::max(), "payload size");
  expect_damage(140, std::int32_t{-1}, "position");
  expect_damage(144, std::uint32_t{0}, "tokens");
  expect_damage(144, std::uint32_t{100}, "tokens");
  expect_damage(144, huge, "tokens");
  expect_damage(148, std::uint32_t{100}, "description");
  expect_damage(148, huge, "description");
}

}  // namespace
}  // namespace kvasir::cache
