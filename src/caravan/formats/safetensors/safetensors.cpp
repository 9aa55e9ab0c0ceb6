#include "caravan/formats/safetensors/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/base/text.h"

namespace caravan {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian and read in place");

constexpr uint64_t kLargestHeader = 100'000'000;  ///< the format's own limit
constexpr size_t kAlignment = 64;

[[noreturn]] void misuse(const OutputFile& file, std::string_view name, std::string fact) {
  throw UsageError({.op = "safetensors",
                    .subject = fmt::format("{} of {}", name, file.path().string()),
                    .fact = std::move(fact),
                    .action = "give each tensor once, with the bytes of its shape"});
}

int64_t bytes_of(const OutputFile& file, const SafetensorsSpec& tensor) {
  int64_t bytes = size_bytes(tensor.dtype);
  for (const int64_t size : tensor.shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) {
      misuse(file, tensor.name, fmt::format("has an impossible shape [{}]", join(tensor.shape)));
    }
  }
  return bytes;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path), file_(path, "safetensors") {
  const uint64_t size = file_.bytes().size();
  uint64_t header_bytes = 0;
  const auto refuse = [&](std::string fact) {
    throw DataError({.op = "safetensors",
                     .subject = path.string(),
                     .fact = std::move(fact),
                     .action = "get the file again: it is damaged, or not a safetensors file"});
  };
  if (size < sizeof header_bytes) refuse(fmt::format("has {} bytes; a safetensors file has at least 8", size));
  std::memcpy(&header_bytes, file_.bytes().data(), sizeof header_bytes);
  if (header_bytes > kLargestHeader || header_bytes > size - sizeof header_bytes) {
    refuse(fmt::format("has {} bytes, but a header of {}", size, header_bytes));
  }
  data_offset_ = sizeof header_bytes + header_bytes;
  header_ =
      parse_safetensors_header(file_.text().substr(sizeof header_bytes, header_bytes), size - data_offset_, path_);
}

std::string_view SafetensorsFile::header_text() const noexcept {
  return file_.text().substr(sizeof(uint64_t), data_offset_ - sizeof(uint64_t));
}

const SafetensorsEntry& SafetensorsFile::at(const std::string& name) const {
  const auto found = header_.tensors.find(name);
  if (found != header_.tensors.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, entry] : header_.tensors) names.push_back(known);
  throw DataError({.op = "safetensors",
                   .subject = path_.string(),
                   .fact = fmt::format("has {1} tensors, but not {0}", name, names.size()),
                   .action = names.empty() ? "name another file" : "the nearest name is " + nearest(name, names)});
}

std::span<const std::byte> SafetensorsFile::bytes(const std::string& name) const {
  const SafetensorsEntry& entry = at(name);
  return file_.bytes().subspan(data_offset_ + static_cast<size_t>(entry.begin),
                               static_cast<size_t>(entry.end - entry.begin));
}

SafetensorsWriter::SafetensorsWriter(OutputFile& file, std::vector<SafetensorsSpec> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(file) {
  std::ranges::stable_sort(tensors, std::ranges::greater(),
                           [](const SafetensorsSpec& tensor) { return size_bytes(tensor.dtype); });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t end = 0;
  for (const SafetensorsSpec& tensor : tensors) {
    const int64_t begin = end;
    if (__builtin_add_overflow(begin, bytes_of(file, tensor), &end))
      misuse(file, tensor.name, "makes the file too large");
    if (tensor.name == "__metadata__" || !slots_.emplace(tensor.name, Slot{begin, end}).second) {
      misuse(file, tensor.name, "is a duplicate or reserved name");
    }
    names_.push_back(tensor.name);
    header[tensor.name] = {
        {"dtype", safetensors_name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  text.append((kAlignment - (sizeof(uint64_t) + text.size()) % kAlignment) % kAlignment, ' ');
  const uint64_t header_bytes = text.size();
  const auto data_offset = static_cast<int64_t>(sizeof header_bytes + header_bytes);
  for (auto& [name, slot] : slots_) slot = {slot.next + data_offset, slot.end + data_offset};

  file_bytes_ = data_offset + end;
  file_.reserve(file_bytes_);
  const std::span<const std::byte> prefix = std::as_bytes(std::span(&header_bytes, 1));
  file_.append(prefix);
  file_.append(text);
  hasher_.update(prefix);
  hasher_.update(text);
  hashed_bytes_ = data_offset;
}

void SafetensorsWriter::append(std::string_view name, std::span<const std::byte> bytes) {
  const auto found = slots_.find(name);
  if (found == slots_.end()) misuse(file_, name, "is not among the tensors to write");
  Slot& slot = found->second;
  if (static_cast<int64_t>(bytes.size()) > slot.end - slot.next) {
    misuse(file_, name, fmt::format("got {} bytes, but {} are missing", bytes.size(), slot.end - slot.next));
  }
  file_.write_at(slot.next, bytes);
  if (slot.next == hashed_bytes_) {
    hasher_.update(bytes);
    hashed_bytes_ += static_cast<int64_t>(bytes.size());
  }
  slot.next += static_cast<int64_t>(bytes.size());
}

void SafetensorsWriter::finish() {
  for (const auto& [name, slot] : slots_) {
    if (slot.next != slot.end)
      misuse(file_, name, fmt::format("is incomplete: {} bytes are missing", slot.end - slot.next));
  }
}

ContentHash SafetensorsWriter::hash() const {
  if (hashed_bytes_ == file_bytes_) return hasher_.value();
  throw UsageError({.op = "safetensors",
                    .subject = file_.path().string(),
                    .fact = fmt::format("{} of {} bytes came in the order of the file", hashed_bytes_, file_bytes_),
                    .action = "append the tensors in the order of names() to have their hash"});
}

}  // namespace caravan
