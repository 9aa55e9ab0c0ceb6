#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "caravan/data/windows/data_observer.h"

namespace caravan {

/// Whether `content` begins as a gzip or a zstd file does.
bool is_compressed(std::string_view content);

/// Decompresses a gzip or zstd file that arrives in pieces. Errors as decompress.
class Decompressor {
 public:
  /// `beginning`: the first bytes of the file, which tell its format. `path` names it in errors. `use` gets pieces of
  /// at most 1 MiB.
  static std::unique_ptr<Decompressor> of(std::string_view beginning, std::filesystem::path path,
                                          std::function<void(std::string_view piece)> use);
  virtual ~Decompressor() = default;
  virtual void put(std::string_view piece) = 0;
  /// Throws DataError if the file is not complete.
  void finish() const;

 protected:
  Decompressor(std::filesystem::path path, std::function<void(std::string_view piece)> use);
  /// Whether the input so far is complete.
  virtual bool is_complete() const = 0;

  std::filesystem::path path_;
  std::function<void(std::string_view piece)> use_;
};

/// Decompresses the gzip or zstd file `path`, whose content is `content`, and calls `use` with pieces of at most 1 MiB.
/// A file may be several concatenated compressed files. Uses about 1 MiB and the memory of the format's window (zstd:
/// at most 128 MiB). `observer` is told the compressed bytes done. Throws DataError naming `path` for a file that is
/// truncated or damaged.
void decompress(std::string_view content, const std::filesystem::path& path,
                const std::function<void(std::string_view piece)>& use, DataObserver& observer = DataObserver::none());

/// Decompresses the first 16 KiB of such a file.
std::string decompress_beginning(std::string_view content, const std::filesystem::path& path);

}  // namespace caravan
