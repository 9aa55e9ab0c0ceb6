#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "caravan/base/content_hash.h"
#include "caravan/base/file.h"

namespace caravan {

class Tokenizer;

/// What the header of a token file says.
struct TokenFileInfo {
  int64_t num_tokens = 0;
  int64_t vocab_size = 0;  ///< every id is smaller
  int64_t text_bytes = 0;  ///< UTF-8 bytes that the ids stand for: what bits per byte divide by
  ContentHash content;     ///< of the text and the tokenizer
  bool operator==(const TokenFileInfo&) const = default;
};

/// The ids of a text, mapped from a file: two bytes each for a vocabulary of up to 65,536, else four. Any number of
/// threads may read it.
class TokenFile {
 public:
  /// Reads the file once, to check all of it: sizes, hash, ids. Throws DataError, before anything is allocated from its
  /// numbers, for a file that is missing, truncated, altered or something else.
  static TokenFile open(const std::filesystem::path& path);

  const TokenFileInfo& info() const noexcept { return info_; }
  int64_t size() const noexcept { return info_.num_tokens; }
  const std::filesystem::path& path() const noexcept { return path_; }

  /// out[i] = id of token first + i. Throws ShapeError if the tokens asked for are not all there.
  void read(int64_t first, std::span<int64_t> out) const;

 private:
  TokenFile(MappedFile file, TokenFileInfo info, int id_bytes, std::filesystem::path path)
      : file_(std::move(file)), info_(info), id_bytes_(id_bytes), path_(std::move(path)) {}

  MappedFile file_;
  TokenFileInfo info_;
  int id_bytes_;
  std::filesystem::path path_;
};

/// Writes a token file: aside, under a name of its own, then renamed to `path` as a whole; several writers of one path
/// do not disturb each other. Throws ResourceError.
class TokenFileWriter {
 public:
  TokenFileWriter(std::filesystem::path path, int64_t vocab_size);
  /// Throws UsageError for an id outside the vocabulary.
  void append(std::span<const int32_t> ids);
  /// fsyncs and renames. Nothing is appended after it.
  void finish(int64_t text_bytes, ContentHash content);

 private:
  std::filesystem::path path_;
  OutputFile file_;
  ContentHasher hasher_;
  TokenFileInfo info_;
  std::string buffer_;
};

/// The ids of the documents, with the tokenizer's end-of-text token (if it has one) between two of them: from the file
/// of `cache_dir` that holds them, which is made when it is missing or damaged. Same text and tokenizer, same file;
/// another text or tokenizer, another file.
///
/// Every rank may call it at once; ranks that find no file each make the same one. Throws DataError for text that is
/// not UTF-8, ResourceError if the folder or the file cannot be written.
TokenFile open_or_build(const std::filesystem::path& cache_dir, std::span<const std::string_view> documents,
                        const Tokenizer& tokenizer);

}  // namespace caravan
