#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/data/files/text_file.h"
#include "caravan/data/windows/data_observer.h"

namespace caravan {

/// A text split in two parts of documents, in order. The views point into the documents.
struct TextSplit {
  std::vector<std::string_view> train;
  std::vector<std::string_view> validation;
};

inline constexpr double kValidationFraction = 0.1;

/// Splits the concatenation of the documents: validation is the last `validation_fraction` of its UTF-8 bytes (counted
/// in millionths), rounded up to a whole character, and train is the rest. Empty parts are left out. Throws DataError
/// for an empty text.
TextSplit split_text(std::span<const std::string_view> documents, double validation_fraction = kValidationFraction);
TextSplit split_text(std::string_view text);

int64_t num_bytes(std::span<const std::string_view> parts) noexcept;

/// The documents of some files: see TextFile.
class Corpus {
 public:
  /// Throws what TextFile throws.
  Corpus(std::span<const std::filesystem::path> files, const std::filesystem::path& cache,
         const TextFormat& format = {}, DataObserver& observer = DataObserver::none());

  const std::vector<std::string_view>& documents() const noexcept { return documents_; }
  int64_t num_skipped_lines() const noexcept;
  ChatCounts chats() const noexcept;
  /// The file of a whole document; null if it is none of these.
  const std::filesystem::path* file_of(std::string_view document) const;
  /// Splits each file, so that validation has a part of every file. With `keeps_documents` no document is cut:
  /// validation takes the file's last documents, rounded up.
  TextSplit split(double validation_fraction = kValidationFraction, bool keeps_documents = false) const;

 private:
  std::vector<TextFile> files_;
  std::vector<std::filesystem::path> paths_;
  std::vector<std::string_view> documents_;
};

}  // namespace caravan
