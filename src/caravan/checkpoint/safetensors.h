#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/base/file.h"
#include "caravan/comm/types.h"

namespace caravan {

/// "F32", "BF16", "BOOL": a dtype as safetensors files spell it.
std::string_view safetensors_name(Dtype dtype) noexcept;
/// The dtype spelled so. Throws DataError naming `file` and `tensor` for one that Caravan has not.
Dtype safetensors_dtype(std::string_view name, const std::filesystem::path& file, std::string_view tensor);

/// A tensor of a safetensors file: row-major, little-endian.
struct SafetensorsEntry {
  Dtype dtype = Dtype::fp32;
  std::vector<int64_t> shape;
  int64_t begin = 0;  ///< bytes behind the header
  int64_t end = 0;
};

/// What the header of a safetensors file says.
struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry> tensors;
  std::map<std::string, std::string> metadata;  ///< __metadata__
};

/// Reads the header of a file of which `data_bytes` lie behind it. Throws DataError naming `file` unless it is JSON
/// without duplicate keys that gives each tensor a known dtype, a shape and the range of bytes that they need, and the
/// ranges follow each other from 0 to data_bytes without gap or overlap. Nothing is allocated from its numbers.
SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t data_bytes,
                                           const std::filesystem::path& file);

/// A safetensors file, mapped and checked.
class SafetensorsFile {
 public:
  /// Throws DataError for a file that is missing, truncated or not a sound safetensors file.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const noexcept { return path_; }
  const std::map<std::string, SafetensorsEntry>& tensors() const noexcept { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const noexcept { return header_.metadata; }
  bool has(const std::string& name) const { return header_.tensors.contains(name); }

  /// Throws DataError, naming the nearest name that is there, if `name` is not.
  const SafetensorsEntry& at(const std::string& name) const;
  /// The tensor's bytes, in the mapping: valid as long as this file; on any byte in files of others, so copy before use
  /// as elements.
  std::span<const std::byte> bytes(const std::string& name) const;

 private:
  std::filesystem::path path_;
  MappedFile file_;
  size_t data_offset_ = 0;
  SafetensorsHeader header_;
};

/// A tensor that is to be written.
struct SafetensorsSpec {
  std::string name;
  Dtype dtype = Dtype::fp32;
  std::vector<int64_t> shape;
};

/// Writes a safetensors file: the header at once, then each tensor's bytes as they come, in any order and in pieces.
/// The data begins on 64 bytes of the file, and tensors lie in the order of falling element size, else as given, so
/// that each is aligned to its elements.
class SafetensorsWriter {
 public:
  /// Takes the space of the whole file, then writes the header to `file`, which is empty and outlives the writer.
  /// Throws UsageError for a name given twice or reserved, or a negative size; ResourceError.
  SafetensorsWriter(OutputFile& file, std::vector<SafetensorsSpec> tensors,
                    const std::map<std::string, std::string>& metadata = {});

  /// The next bytes of tensor `name`. Throws UsageError for a name or for more bytes than were announced.
  void append(std::string_view name, std::span<const std::byte> bytes);
  /// Throws UsageError unless every tensor has all its bytes. Flushing the file is its owner's.
  void finish();

 private:
  struct Slot {
    int64_t next;  ///< offset in the file
    int64_t end;
  };
  OutputFile& file_;
  std::map<std::string, Slot, std::less<>> slots_;
};

}  // namespace caravan
