#include "caravan/data/corpus.h"

#include "caravan/base/error.h"
#include "caravan/data/file_format.h"
#include "caravan/data/utf8.h"

namespace caravan {

int64_t num_bytes(std::span<const std::string_view> parts) noexcept {
  size_t bytes = 0;
  for (const std::string_view part : parts) bytes += part.size();
  return static_cast<int64_t>(bytes);
}

TextSplit split_text(std::span<const std::string_view> documents) {
  const auto total = static_cast<size_t>(num_bytes(documents));
  if (total == 0) {
    throw DataError({.op = "data",
                     .subject = "the text",
                     .fact = "is empty: 0 bytes",
                     .where = {},
                     .action = "name a text file that is not empty"});
  }
  size_t left = total - (total + 9) / 10;  // bytes of train that are still to come
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

Corpus::Corpus(std::span<const std::filesystem::path> files, DataObserver& observer) {
  int64_t total = 0;
  for (const std::filesystem::path& path : files) {
    total += static_cast<int64_t>(files_.emplace_back(path, "data").text().size());
  }
  observer.begin("reading the text", total);
  for (size_t i = 0; i < files.size(); ++i) {
    const std::filesystem::path& path = files[i];
    const std::string_view text = files_[i].text();
    if (text.empty()) {
      throw DataError({.op = "data",
                       .subject = path.string(),
                       .fact = "is empty: 0 bytes",
                       .where = {},
                       .action = "name a text file that is not empty"});
    }
    check_is_text(text, path, observer);
    documents_.push_back(text);
  }
}

}  // namespace caravan
