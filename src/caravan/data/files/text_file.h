#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/base/system/file.h"
#include "caravan/data/windows/cache.h"
#include "caravan/data/windows/data_observer.h"

namespace caravan {

class ChatTemplate;
struct RecordFields;

/// How to find the documents of a JSON lines file or a table.
struct TextFormat {
  std::string field = "text";    ///< of each line or row; "meta.text": a member of a member
  bool skips_bad_lines = false;  ///< skip lines that are not JSON, lack the field or have no text in it; else they are
                                 ///< errors
  /// The field has messages: a document is RenderedChat::to_json of them. Null: it has a text.
  std::shared_ptr<const ChatTemplate> chat{};
  /// Lines and rows have records: a document is Record::to_json of one. `field` does not count. With `chat` their
  /// fields have messages: see rendered_preference. Null: they have texts.
  std::shared_ptr<const RecordFields> record{};
};

inline constexpr uint64_t kDecoding = 3;  ///< increment when the same file decodes to other documents

/// What the chats of a text have.
struct ChatCounts {
  int64_t last_alone = 0;  ///< chats of which only the last answer is learned: RenderedChat::has_last_alone
  int64_t answers = 0;
  int64_t empty = 0;  ///< answers: RenderedChat::num_empty
  ChatCounts& operator+=(const ChatCounts& other) noexcept {
    last_alone += other.last_alone;
    answers += other.answers;
    empty += other.empty;
    return *this;
  }
};

/// The documents of a file, mapped into memory. A plain text is one document. A file of JSON lines, detected by its
/// name (.jsonl, .ndjson) or its first lines, has one per line; lines with an empty text have none. Either may be
/// compressed with gzip or zstd, detected by the first bytes. A table has one per row: see table.h.
class TextFile {
 public:
  /// JSON lines, tables and compressed files are written as plain text into `cache`, once. Throws DataError naming the
  /// file (and the line) if it is missing, empty, damaged, not UTF-8 or of another known format; ResourceError if it
  /// cannot be read or the cache cannot be written to.
  TextFile(const std::filesystem::path& path, const std::filesystem::path& cache, const TextFormat& format,
           DataObserver& observer);

  const std::vector<std::string_view>& documents() const noexcept { return documents_; }
  int64_t num_skipped_lines() const noexcept { return num_skipped_lines_; }
  const ChatCounts& chats() const noexcept { return chats_; }

 private:
  std::shared_ptr<const CacheLock> use_;  ///< lock on a file in the cache
  MappedFile file_;
  std::vector<std::string_view> documents_;
  int64_t num_skipped_lines_ = 0;
  ChatCounts chats_;
};

}  // namespace caravan
