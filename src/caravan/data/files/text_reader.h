#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>

#include "caravan/data/files/compressed.h"

namespace caravan {

/// Reads a file from front to back without having it in memory: its bytes or, if it is compressed with gzip or zstd,
/// the decompressed bytes. Offsets count output bytes.
class TextReader {
 public:
  static constexpr uint64_t kWhole = std::numeric_limits<uint64_t>::max();

  /// Reads the bytes [offset, end). In a compressed file the bytes before `offset` are decompressed, too. Throws
  /// DataError if the file is missing, shorter than `end` (unless that is kWhole) or damaged, ResourceError if it
  /// cannot be read; so do the methods.
  explicit TextReader(std::filesystem::path path, uint64_t offset = 0, uint64_t end = kWhole);
  ~TextReader();
  TextReader(const TextReader&) = delete;
  TextReader& operator=(const TextReader&) = delete;

  bool is_compressed() const noexcept { return decompressor_ != nullptr; }
  uint64_t offset() const noexcept { return offset_; }
  bool at_end();

  /// The next `bytes`, extended to the end of the line; less at the end of the text. A line that extends past `most`
  /// bytes is cut there, before the character. Memory: the result, and 1 MiB, or the output of 16 KiB of compressed
  /// input.
  std::string take(size_t bytes, size_t most);

 private:
  /// Reads more into the buffer. Returns false at the end.
  bool fill();

  std::filesystem::path path_;
  int descriptor_;
  uint64_t end_;
  uint64_t offset_ = 0;    ///< of the buffer's first byte
  uint64_t position_ = 0;  ///< in the file
  std::string buffer_;     ///< read, but not taken
  std::unique_ptr<Decompressor> decompressor_;
};

}  // namespace caravan
