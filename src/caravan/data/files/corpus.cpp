#include "caravan/data/files/corpus.h"

#include <algorithm>
#include <cmath>

#include "caravan/base/error.h"
#include "caravan/data/unicode/utf8.h"

namespace caravan {
namespace {

/// The fraction of `total` in whole bytes, rounded up; exact, so that every machine splits a text at the same byte.
size_t part_of(size_t total, double fraction) {
  constexpr size_t kMillion = 1'000'000;
  const auto millionths = static_cast<size_t>(std::llround(fraction * kMillion));
  return total / kMillion * millionths + (total % kMillion * millionths + kMillion - 1) / kMillion;
}

}  // namespace

int64_t num_bytes(std::span<const std::string_view> parts) noexcept {
  size_t bytes = 0;
  for (const std::string_view part : parts) bytes += part.size();
  return static_cast<int64_t>(bytes);
}

TextSplit split_text(std::span<const std::string_view> documents, double validation_fraction) {
  const auto total = static_cast<size_t>(num_bytes(documents));
  if (total == 0) {
    throw DataError({.op = "data",
                     .subject = "the text",
                     .fact = "is empty: 0 bytes",
                     .action = "name a text file that is not empty"});
  }
  size_t left = total - part_of(total, validation_fraction);  // bytes of train that are still to come
  TextSplit split;
  for (const std::string_view document : documents) {
    size_t cut = std::min(left, document.size());
    while (cut > 0 && cut < document.size() && is_utf8_tail(document[cut])) --cut;
    if (cut > 0) split.train.push_back(document.substr(0, cut));
    if (cut < document.size()) {
      split.validation.push_back(document.substr(cut));
      left = 0;
    } else {
      left -= cut;
    }
  }
  return split;
}

TextSplit split_text(std::string_view text) { return split_text(std::span(&text, 1)); }

Corpus::Corpus(std::span<const std::filesystem::path> files, const std::filesystem::path& cache,
               const TextFormat& format, DataObserver& observer) {
  std::error_code error;
  int64_t total = 0;
  for (const std::filesystem::path& path : files) {
    const auto bytes = std::filesystem::file_size(path, error);
    if (!error) total += static_cast<int64_t>(bytes);  // errors of the others are reported when they are opened
  }
  observer.begin("reading the text", total);
  paths_.assign(files.begin(), files.end());
  for (const std::filesystem::path& path : files) {
    const TextFile& file = files_.emplace_back(path, cache, format, observer);
    documents_.insert(documents_.end(), file.documents().begin(), file.documents().end());
  }
}

int64_t Corpus::num_skipped_lines() const noexcept {
  int64_t count = 0;
  for (const TextFile& file : files_) count += file.num_skipped_lines();
  return count;
}

ChatCounts Corpus::chats() const noexcept {
  ChatCounts counts;
  for (const TextFile& file : files_) counts += file.chats();
  return counts;
}

const std::filesystem::path* Corpus::file_of(std::string_view document) const {
  for (size_t i = 0; i < files_.size(); ++i) {
    const auto is_it = [&](std::string_view one) { return one.data() == document.data(); };
    if (std::ranges::any_of(files_[i].documents(), is_it)) return &paths_[i];
  }
  return nullptr;
}

namespace {

TextSplit split_documents(const std::vector<std::string_view>& documents, double validation_fraction) {
  const size_t cut = documents.size() - part_of(documents.size(), validation_fraction);
  return {{documents.begin(), documents.begin() + static_cast<std::ptrdiff_t>(cut)},
          {documents.begin() + static_cast<std::ptrdiff_t>(cut), documents.end()}};
}

}  // namespace

TextSplit Corpus::split(double validation_fraction, bool keeps_documents) const {
  TextSplit whole;
  for (const TextFile& file : files_) {
    const TextSplit split = keeps_documents ? split_documents(file.documents(), validation_fraction)
                                            : split_text(file.documents(), validation_fraction);
    whole.train.insert(whole.train.end(), split.train.begin(), split.train.end());
    whole.validation.insert(whole.validation.end(), split.validation.begin(), split.validation.end());
  }
  return whole;
}

}  // namespace caravan
