#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>

#include "caravan/data/files/compressed.h"

namespace caravan {

/// Reads a file from front to back without having it in memory: its bytes, or what they decompress to if it is
/// compressed with gzip or zstd. Offsets count the bytes that come out.
class TextReader {
 public:
  static constexpr uint64_t kWhole = std::numeric_limits<uint64_t>::max();

  /// Reads the bytes [offset, end). Of a compressed file those before `offset` are decompressed, too. Throws DataError
  /// if the file is missing, shorter than `end` (unless that is kWhole) or damaged, ResourceError if it cannot be read;
  /// so do the functions.
  explicit TextReader(std::filesystem::path path, uint64_t offset = 0, uint64_t end = kWhole);
  ~TextReader();
  TextReader(const TextReader&) = delete;
  TextReader& operator=(const TextReader&) = delete;

  bool is_compressed() const noexcept { return decompressor_ != nullptr; }
  uint64_t offset() const noexcept { return offset_; }
  bool at_end();

  /// The next `bytes` and on to the end of their line; less at the end of the text. A line that goes on past `most`
  /// bytes is cut there, before the character. Memory: what it returns, and 1 MiB, or
  /// what 16 KiB decompress to.
  std::string take(size_t bytes, size_t most);

 private:
  /// Adds to the buffer. Returns false if there is nothing more.
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
