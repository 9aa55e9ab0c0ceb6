#include "caravan/report/event_file.h"

#include <cstring>

#include <gtest/gtest.h>

#include "tests/data/support.h"

namespace caravan::event_file_test {
namespace {

template <typename T>
T take(std::string_view& bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  bytes.remove_prefix(sizeof(T));
  return value;
}

uint32_t masked(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

/// The messages of a file whose checksums are right.
std::vector<std::string> records(const std::string& file) {
  std::vector<std::string> all;
  std::string_view rest = file;
  while (!rest.empty()) {
    const std::string_view length_bytes = rest.substr(0, 8);
    const auto length = take<uint64_t>(rest);
    EXPECT_EQ(take<uint32_t>(rest), masked(length_bytes));
    all.emplace_back(rest.substr(0, length));
    rest.remove_prefix(length);
    EXPECT_EQ(take<uint32_t>(rest), masked(all.back()));
  }
  return all;
}

TEST(Crc32c, IsCastagnoli) {
  EXPECT_EQ(crc32c(""), 0U);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);  // the check value of RFC 3720
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
}

/// Bytes of the message, written out by the format's definition.
TEST(EventFile, HasTheBytesOfTheFormat) {
  const TemporaryFolder folder;
  EventFile file(folder / "tensorboard", 12.5, "host");
  file.write(300, 13, {{"a/b", 1.5}});
  EXPECT_EQ(file.path().filename(), "events.out.tfevents.12.host");
  const std::vector<std::string> found = records(read_file(file.path()));
  ASSERT_EQ(found.size(), 2U);
  EXPECT_TRUE(
      found[0].ends_with("\x1a\x0d"
                         "brain.Event:2"));
  const std::string value = std::string(
                                "\x0a\x03"
                                "a/b") +
                            '\x15' + std::string("\x00\x00\xc0\x3f", 4);
  std::string want = std::string("\x09\x00\x00\x00\x00\x00\x00\x2a\x40", 9) + "\x10\xac\x02";
  want += std::string("\x2a") + static_cast<char>(value.size() + 2) + '\x0a' + static_cast<char>(value.size()) + value;
  EXPECT_EQ(found[1], want);
}

TEST(EventFile, ReplacesFilesOfEarlierParts) {
  const TemporaryFolder folder;
  { const EventFile first(folder.path(), 5, "host"); }
  write_file(folder / "notes.txt", "of the user");
  const EventFile second(folder.path(), 9, "host");
  EXPECT_FALSE(std::filesystem::exists(folder / "events.out.tfevents.5.host"));
  EXPECT_TRUE(std::filesystem::exists(folder / "notes.txt"));
}

}  // namespace
}  // namespace caravan::event_file_test
