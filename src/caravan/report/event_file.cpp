#include "caravan/report/event_file.h"

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "caravan/base/system/file.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "fixed-width fields are little-endian");

constexpr std::array<uint32_t, 256> crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t rest = i;
    for (int bit = 0; bit < 8; ++bit) rest = (rest & 1) != 0 ? rest >> 1 ^ 0x82f63b78U : rest >> 1;
    table[i] = rest;
  }
  return table;
}

/// Records hold checksums that are rotated and offset, so that data with checksums inside does not weaken them.
uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8U;
}

template <typename T>
std::string raw(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

// The wire format of protobuf: a field's number and kind, then its value.
constexpr int kVarint = 0;
constexpr int kFixed64 = 1;
constexpr int kBytes = 2;
constexpr int kFixed32 = 5;

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

std::string key(int field, int kind) { return varint(static_cast<uint64_t>(field << 3 | kind)); }

std::string field_bytes(int field, std::string_view value) {
  return key(field, kBytes) + varint(value.size()) + std::string(value);
}

// Event: wall_time = 1 (double), step = 2, file_version = 3, summary = 5. Summary: value = 1, repeated. Value: tag = 1,
// simple_value = 2 (float).
std::string event(double seconds, int64_t step) {
  return key(1, kFixed64) + raw(seconds) + key(2, kVarint) + varint(static_cast<uint64_t>(step));
}

}  // namespace

uint32_t crc32c(std::string_view bytes) noexcept {
  static constexpr std::array<uint32_t, 256> kTable = crc_table();
  uint32_t crc = 0xffffffffU;
  for (const char byte : bytes) crc = crc >> 8 ^ kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xff];
  return ~crc;
}

EventFile::EventFile(const fs::path& folder, double seconds, const std::string& host) {
  create_folders("tensorboard", folder);
  std::error_code error;
  std::vector<fs::path> earlier;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().filename().string().starts_with("events.out.tfevents.")) earlier.push_back(entry.path());
  }
  for (const fs::path& path : earlier) fs::remove(path, error);
  path_ = folder / fmt::format("events.out.tfevents.{}.{}", static_cast<int64_t>(seconds), host);
  file_.open(path_, std::ios::binary | std::ios::trunc);
  if (!file_) throw_file_error("tensorboard", path_, "cannot be created", errno);
  write_record(event(seconds, 0) + field_bytes(3, "brain.Event:2"));
}

void EventFile::write(int64_t step, double seconds, const Scalars& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    summary += field_bytes(1, field_bytes(1, tag) + key(2, kFixed32) + raw(static_cast<float>(value)));
  }
  write_record(event(seconds, step) + field_bytes(5, summary));
}

void EventFile::write_record(const std::string& message) {
  const std::string length = raw(static_cast<uint64_t>(message.size()));
  errno = 0;
  file_ << length << raw(masked_crc(length)) << message << raw(masked_crc(message)) << std::flush;
  if (!file_) throw_file_error("tensorboard", path_, "cannot be written", errno != 0 ? errno : ENOSPC);
}

}  // namespace caravan
