#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/base/file.h"

namespace caravan {

/// A text cut in two: parts of documents, in their order. The views are into what was cut.
struct TextSplit {
  std::vector<std::string_view> train;
  std::vector<std::string_view> validation;
};

/// Cuts the whole text, which is its documents one behind the other: validation is the last tenth of its UTF-8 bytes,
/// begun early enough to be cut at a character; train is the rest. A part without bytes is left out. Throws DataError
/// for an empty text.
TextSplit split_text(std::span<const std::string_view> documents);
TextSplit split_text(std::string_view text);

int64_t num_bytes(std::span<const std::string_view> parts) noexcept;

/// Text files, mapped: each is one document.
class Corpus {
 public:
  /// Throws DataError for a file that is missing, empty or not UTF-8, ResourceError if it cannot be read.
  explicit Corpus(std::span<const std::filesystem::path> files);

  const std::vector<std::string_view>& documents() const noexcept { return documents_; }
  TextSplit split() const { return split_text(documents_); }

 private:
  std::vector<MappedFile> files_;
  std::vector<std::string_view> documents_;
};

}  // namespace caravan
