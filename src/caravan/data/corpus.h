#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/base/file.h"
#include "caravan/data/data_observer.h"

namespace caravan {

/// A text split in two: parts of documents, in order. The views point into the documents.
struct TextSplit {
  std::vector<std::string_view> train;
  std::vector<std::string_view> validation;
};

/// Splits the concatenation of the documents: validation is the last tenth of its UTF-8 bytes, rounded up to a whole
/// character, and train is the rest. Empty parts are left out. Throws DataError for an empty text.
TextSplit split_text(std::span<const std::string_view> documents);
TextSplit split_text(std::string_view text);

int64_t num_bytes(std::span<const std::string_view> parts) noexcept;

/// Memory-mapped text files; each is one document.
class Corpus {
 public:
  /// Throws DataError for a file that is missing, empty, not UTF-8 or of a known other format (see file_format.h),
  /// ResourceError if it cannot be read.
  explicit Corpus(std::span<const std::filesystem::path> files, DataObserver& observer = DataObserver::none());

  const std::vector<std::string_view>& documents() const noexcept { return documents_; }
  TextSplit split() const { return split_text(documents_); }

 private:
  std::vector<MappedFile> files_;
  std::vector<std::string_view> documents_;
};

}  // namespace caravan
