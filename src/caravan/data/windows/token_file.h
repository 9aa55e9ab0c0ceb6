#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "caravan/base/content_hash.h"
#include "caravan/base/system/file.h"
#include "caravan/data/windows/cache.h"

namespace caravan {

class Tokenizer;

/// The header of a token file.
struct TokenFileInfo {
  int64_t num_tokens = 0;
  int64_t vocab_size = 0;  ///< every id is smaller
  int64_t text_bytes = 0;  ///< UTF-8 bytes of the text: the divisor of bits per byte
  ContentHash content;     ///< of the text and the tokenizer
  bool operator==(const TokenFileInfo&) const = default;
};

/// The ids of a text, mapped from a file: two bytes each for a vocabulary of up to 65,536, else four. The cache does
/// not remove the file while this object lives. Any number of threads may read it.
class TokenFile {
 public:
  /// Reads the whole file once and checks sizes, hash and ids. Throws DataError for a file that is missing, truncated,
  /// altered or not a token file, before anything is allocated from its numbers.
  static TokenFile open(const std::filesystem::path& path, DataObserver& observer = DataObserver::none());

  /// The same, from a cache; empty if there is no such intact file with these ids.
  static std::optional<TokenFile> find(const std::filesystem::path& path, ContentHash content, int64_t vocab_size,
                                       DataObserver& observer);

  const TokenFileInfo& info() const noexcept { return info_; }
  int64_t size() const noexcept { return info_.num_tokens; }
  const std::filesystem::path& path() const noexcept { return path_; }

  /// out[i] = id of token first + i. Throws ShapeError if the range is not within the file.
  void read(int64_t first, std::span<int64_t> out) const;

 private:
  TokenFile(std::shared_ptr<const CacheLock> use, MappedFile file, TokenFileInfo info, int id_bytes,
            std::filesystem::path path)
      : use_(std::move(use)), file_(std::move(file)), info_(info), id_bytes_(id_bytes), path_(std::move(path)) {}

  std::shared_ptr<const CacheLock> use_;
  MappedFile file_;
  TokenFileInfo info_;
  int id_bytes_;
  std::filesystem::path path_;
};

/// Writes a token file under a temporary name and then renames it to `path`. Several writers of one path do not disturb
/// each other. Without `finish` no file is left. Throws ResourceError.
class TokenFileWriter {
 public:
  TokenFileWriter(std::filesystem::path path, int64_t vocab_size);
  /// Throws UsageError for an id outside the vocabulary.
  void append(std::span<const int32_t> ids);
  /// Calls fsync and renames. Nothing may be appended afterwards. The cache does not remove the renamed file while the
  /// result lives.
  std::shared_ptr<const CacheLock> finish(int64_t text_bytes, ContentHash content);

 private:
  std::filesystem::path path_;
  OutputFile file_;
  ContentHasher hasher_;
  TokenFileInfo info_;
  std::string buffer_;
};

/// The ids of the documents, with the tokenizer's end-of-text token (if it has one) between them. They are read from a
/// file in `cache_dir`, which is built if it is missing or damaged. The file name is a hash of text and tokenizer.
///
/// Any number of threads and processes may call it at once: one builds, the others wait for it. Throws DataError for
/// text that is not UTF-8, ResourceError if the folder or the file cannot be written, and what `observer` throws.
TokenFile open_or_build(const std::filesystem::path& cache_dir, std::span<const std::string_view> documents,
                        const Tokenizer& tokenizer, DataObserver& observer = DataObserver::none());

/// A file of the cache by its content, with ids below `vocabulary`.
struct CachedIds {
  ContentHash content;
  int64_t vocabulary = 0;
};

/// Tokens, and numbers that belong to them, in two files of the cache that are built together.
struct TokensAndNumbers {
  TokenFile tokens;
  TokenFile numbers;
};

/// As open_or_build, for two files. `build` appends to both, and returns the bytes of the text; it is called if one is
/// missing or damaged, or if `fit` says that what was found does not belong together.
TokensAndNumbers open_or_build_both(
    const std::filesystem::path& cache_dir, const CachedIds& tokens, const CachedIds& numbers,
    const std::function<int64_t(TokenFileWriter& tokens, TokenFileWriter& numbers)>& build,
    const std::function<bool(const TokenFile& tokens, const TokenFile& numbers)>& fit, DataObserver& observer);

}  // namespace caravan
