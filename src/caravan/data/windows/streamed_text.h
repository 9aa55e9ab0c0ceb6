#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "caravan/base/content_hash.h"
#include "caravan/data/files/text_file.h"
#include "caravan/data/files/text_reader.h"
#include "caravan/data/windows/data_observer.h"

namespace caravan {

/// A position between two lines of a text of several files.
struct TextPlace {
  uint64_t file = 0;
  uint64_t offset = 0;  ///< bytes of the (decompressed) file
  bool operator==(const TextPlace&) const = default;
};

inline constexpr int64_t kShardBytes = int64_t{16} << 20;
inline constexpr int64_t kMostStreamedValidation = int64_t{4} << 20;  ///< it is tokenized before training starts

/// The documents of some files, in the formats of TextFile, read from front to back in shards: at most one shard is in
/// memory. A shard is `shard_bytes` of the files, extended to the end of the line; it begins where the previous one
/// ends, and may hold parts of several files. Shard boundaries depend only on the files.
class StreamedText {
 public:
  struct Options {
    TextFormat format{};
    double validation_fraction = 0;  ///< fraction at the end of each file that is not for training
    int64_t most_validation_bytes = kMostStreamedValidation;
    int64_t shard_bytes = kShardBytes;
  };
  /// Reads the size and the beginning of each file. Throws DataError as TextFile does; UsageError for a fraction of a
  /// compressed file, whose end is not known before all of it is decompressed.
  StreamedText(const std::vector<std::filesystem::path>& files, const Options& options);

  struct Shard {
    std::vector<std::string> documents;  ///< the first and the last may be partial
    TextPlace end;
    ChatCounts chats{};
  };
  /// The shard that begins at `begin`, with `bytes` instead of shard_bytes. Nothing is skipped if it begins where the
  /// last one ended, so compressed files are decompressed once. Throws DataError naming file and line for text that is
  /// not UTF-8 and for bad JSON lines, as ChatTemplate::render for chats, and what `observer` throws. One thread.
  Shard read(TextPlace begin, int64_t bytes, DataObserver& observer = DataObserver::none());
  Shard read(TextPlace begin, DataObserver& observer = DataObserver::none()) {
    return read(begin, options_.shard_bytes, observer);
  }
  bool is_end(TextPlace place) const noexcept { return place.file >= files_.size(); }

  /// The ends of the files, as a shard: validation_fraction of their bytes, but at most most_validation_bytes of all
  /// together. Partial JSON lines are left to training.
  Shard validation(DataObserver& observer = DataObserver::none()) const;
  /// For a process that reads no more: drops the template of chats, whose process ends with its last owner.
  void forget_template() noexcept { options_.format.chat = nullptr; }

  /// Identifies the text without reading all of it: sizes, beginnings and ends of the files, and the options, with the
  /// template of chats.
  ContentHash content() const;
  struct FileContent {
    std::filesystem::path path;
    uint64_t bytes;
    ContentHash ends;  ///< of its beginning and its end
  };
  /// The same for each file, without the options.
  std::vector<FileContent> file_contents() const;
  /// The same with the inodes and change times of the files, as a key of the cache. Every write updates these times,
  /// and no program can reset them. A rename or chmod changes them, too: then the text is read again, but its tokens
  /// are still found by content.
  ContentHash identity() const;

 private:
  struct File {
    std::filesystem::path path;
    uint64_t bytes = 0;
    uint64_t train_end = TextReader::kWhole;
    bool has_json_lines = false;
  };
  void split_files();
  TextReader& reader_at(TextPlace place);
  void add_text(const File& file, uint64_t offset, std::string piece, bool goes_on, Shard& shard) const;
  void add_lines(const File& file, uint64_t offset, const std::string& piece, Shard& shard,
                 DataObserver& observer) const;
  void add_line(const File& file, int64_t number, std::string_view line, Shard& shard) const;

  Options options_;
  std::vector<File> files_;
  std::unique_ptr<TextReader> reader_;
  uint64_t reader_file_ = 0;
};

}  // namespace caravan
