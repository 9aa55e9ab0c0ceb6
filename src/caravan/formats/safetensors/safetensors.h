#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/base/content_hash.h"
#include "caravan/base/system/file.h"
#include "caravan/comm/types.h"

namespace caravan {

/// The name of a dtype in safetensors files: "F32", "BF16", "BOOL".
std::string_view safetensors_name(Dtype dtype) noexcept;
/// The dtype with this name. Throws DataError naming `file` and `tensor` if Caravan does not have it.
Dtype safetensors_dtype(std::string_view name, const std::filesystem::path& file, std::string_view tensor);

/// A tensor of a safetensors file: row-major, little-endian.
struct SafetensorsEntry {
  Dtype dtype = Dtype::fp32;
  std::vector<int64_t> shape;
  int64_t begin = 0;  ///< bytes after the header
  int64_t end = 0;
};

/// The header of a safetensors file.
struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry> tensors;
  std::map<std::string, std::string> metadata;  ///< __metadata__
};

/// Reads the header of a file with `data_bytes` after the header. Throws DataError naming `file` unless the header is
/// JSON without duplicate keys, each tensor has a known dtype, a shape and a byte range of matching size, and the
/// ranges cover 0 to data_bytes without gap or overlap. Allocates nothing by its numbers.
SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t data_bytes,
                                           const std::filesystem::path& file);

/// A safetensors file, mapped into memory and checked.
class SafetensorsFile {
 public:
  /// Throws DataError for a file that is missing, truncated or not a valid safetensors file.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const noexcept { return path_; }
  const std::map<std::string, SafetensorsEntry>& tensors() const noexcept { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const noexcept { return header_.metadata; }
  /// The text of the header, and the bytes of the file.
  std::string_view header_text() const noexcept;
  int64_t size_bytes() const noexcept { return static_cast<int64_t>(file_.bytes().size()); }
  bool has(const std::string& name) const { return header_.tensors.contains(name); }

  /// Throws DataError naming the nearest name if there is no tensor `name`.
  const SafetensorsEntry& at(const std::string& name) const;
  /// The tensor's bytes in the mapping, valid as long as this object. Files written by other programs may not align
  /// them: copy before using them as elements.
  std::span<const std::byte> bytes(const std::string& name) const;

 private:
  std::filesystem::path path_;
  MappedFile file_;
  size_t data_offset_ = 0;
  SafetensorsHeader header_;
};

/// A tensor to write.
struct SafetensorsSpec {
  std::string name;
  Dtype dtype = Dtype::fp32;
  std::vector<int64_t> shape;
};

/// Writes a safetensors file: the header first, then the bytes of the tensors in any order and in pieces. The data is
/// aligned to 64 bytes in the file, and tensors are stored by descending element size, so that each is aligned to its
/// elements.
class SafetensorsWriter {
 public:
  /// Reserves the space of the whole file, then writes the header to `file`, which is empty and outlives the writer.
  /// Throws UsageError for a duplicate or reserved name or a negative size; ResourceError.
  SafetensorsWriter(OutputFile& file, std::vector<SafetensorsSpec> tensors,
                    const std::map<std::string, std::string>& metadata = {});

  /// The tensors in the order of the file.
  const std::vector<std::string>& names() const noexcept { return names_; }

  /// Writes the next bytes of tensor `name`. Throws UsageError for an unknown name or too many bytes.
  void append(std::string_view name, std::span<const std::byte> bytes);
  /// Throws UsageError unless every tensor is complete. The owner of the file flushes it.
  void finish();
  /// content_hash of the whole file, computed without reading it. Throws UsageError unless every tensor is complete and
  /// the bytes came in the order of names().
  ContentHash hash() const;

 private:
  struct Slot {
    int64_t next;  ///< offset in the file
    int64_t end;
  };
  OutputFile& file_;
  std::vector<std::string> names_;
  ContentHasher hasher_;  ///< of the file's first `hashed_bytes_`
  int64_t hashed_bytes_ = 0;
  int64_t file_bytes_ = 0;
  std::map<std::string, Slot, std::less<>> slots_;
};

}  // namespace caravan
