#include "caravan/data/windows/streamed_text.h"

#include <algorithm>
#include <cmath>
#include <sys/stat.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/base/system/file.h"
#include "caravan/data/chat/chat_line.h"
#include "caravan/data/chat/chat_template.h"
#include "caravan/data/files/file_format.h"
#include "caravan/data/files/json_lines.h"
#include "caravan/data/files/table.h"
#include "caravan/data/unicode/utf8.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kStreaming = 1;                     ///< increment when the same files have other shards
constexpr size_t kHead = size_t{16} << 10;             ///< bytes that identify a file
constexpr size_t kLongestHeadLine = size_t{16} << 20;  ///< as in is_json_lines
constexpr size_t kLongestTextLine = size_t{1} << 20;   ///< longer lines of plain text are cut

struct stat status_of(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) throw_file_error("data", path, "cannot be opened", errno);
  if (!S_ISREG(status.st_mode)) {  // a device may have no end, and a pipe is read once
    throw DataError({"data", path.string(), "is not a regular file", "", "write the text to a file, and name that"});
  }
  return status;
}

/// The beginning of a file: whole characters, and the first line if it may be JSON.
std::string head_of(const fs::path& path, bool& is_compressed) {
  TextReader reader(path);
  is_compressed = reader.is_compressed();
  std::string head = reader.take(kHead, kHead);
  if (head.starts_with('{') && head.find('\n') == std::string::npos) head += reader.take(1, kLongestHeadLine);
  return head;
}

bool begins_with_json_lines(std::string_view head, const fs::path& path) {
  if (has_json_lines_name(path)) return true;
  const size_t last = head.rfind('\n');
  return is_json_lines(last == std::string_view::npos ? head : head.substr(0, last));  // the last line may be
                                                                                       // incomplete
}

/// The lines that end before `offset`.
int64_t lines_before(const fs::path& path, uint64_t offset) {
  TextReader reader(path);
  int64_t count = 0;
  while (reader.offset() < offset && !reader.at_end()) {
    const size_t wanted = std::min<uint64_t>(kLongestTextLine, offset - reader.offset());
    const std::string piece = reader.take(wanted, wanted);
    count += std::ranges::count(piece, '\n');
  }
  return count;
}

/// Hashes the beginning and the end of a file.
void add_ends(const fs::path& path, ContentHasher& hasher) {
  const MappedFile mapped(path, "data");
  hasher.update(mapped.text().substr(0, kHead));
  hasher.update(mapped.text().substr(mapped.text().size() - std::min(kHead, mapped.text().size())));
}

/// The offset of the first byte that is not text; kNoUtf8Error if there is none.
size_t first_bad_byte(std::string_view text) { return std::min(utf8_error(text), text.find('\0')); }

}  // namespace

StreamedText::StreamedText(const std::vector<fs::path>& files, const Options& options) : options_(options) {
  for (const fs::path& path : files) {
    File file{.path = path, .bytes = static_cast<uint64_t>(status_of(path).st_size)};
    bool is_compressed = false;
    const std::string head = head_of(path, is_compressed);
    if (head.empty()) {
      throw DataError({"data", path.string(), "is empty: 0 bytes", "", "name a text file that is not empty"});
    }
    if (is_table(head)) {
      throw DataError({"data", path.string(), "is a table, which data.streaming does not read", "",
                       "write it as JSON lines, or use data.streaming = false"});
    }
    file.has_json_lines = begins_with_json_lines(head, path);
    if (!file.has_json_lines && options.format.chat != nullptr) refuse_text_for_chats(path);
    if (!file.has_json_lines) check_is_not_binary(head, path);  // if it is not UTF-8, read() finds the line
    if (is_compressed && options.validation_fraction > 0) {
      throw UsageError({"data", "data.validation_fraction",
                        path.string() + " is compressed: with data.streaming its end is not known when training starts",
                        "", "name a separate text: data.validation = \"FILE\""});
    }
    if (!is_compressed) file.train_end = file.bytes;
    files_.push_back(std::move(file));
  }
  if (options.validation_fraction > 0) split_files();
}

void StreamedText::split_files() {
  double total = 0;
  for (const File& file : files_) total += static_cast<double>(file.bytes);
  const double part =
      std::min(options_.validation_fraction, static_cast<double>(options_.most_validation_bytes) / total);
  for (File& file : files_) {
    uint64_t cut = file.bytes - static_cast<uint64_t>(std::ceil(static_cast<double>(file.bytes) * part));
    if (file.has_json_lines) {
      // Skips to the next line. A line that begins at the cut is for validation.
      TextReader reader(file.path, cut == 0 ? 0 : cut - 1, file.bytes);
      if (cut > 0) reader.take(1, TextReader::kWhole);
      cut = reader.offset();
    } else {
      constexpr size_t kCharacter = 4;
      const std::string next = TextReader(file.path, cut, file.bytes).take(1, kCharacter);
      cut += static_cast<uint64_t>(std::ranges::find_if_not(next, is_utf8_tail) - next.begin());
    }
    file.train_end = cut;
  }
}

TextReader& StreamedText::reader_at(TextPlace place) {
  const bool is_there = reader_ != nullptr && reader_file_ == place.file && reader_->offset() == place.offset;
  if (!is_there) {
    const File& file = files_[place.file];
    reader_ = nullptr;
    reader_ = std::make_unique<TextReader>(file.path, place.offset, file.train_end);
    reader_file_ = place.file;
  }
  return *reader_;
}

StreamedText::Shard StreamedText::read(TextPlace begin, int64_t bytes, DataObserver& observer) {
  Shard shard{.documents = {}, .end = begin};
  TextPlace& place = shard.end;
  auto left = static_cast<uint64_t>(bytes);
  bool goes_on = false;  // the last document belongs to this file
  while (left > 0 && !is_end(place)) {
    const File& file = files_[place.file];
    TextReader& reader = reader_at(place);
    const size_t most = file.has_json_lines ? TextReader::kWhole : left + kLongestTextLine;
    std::string piece = reader.take(left, most);
    left -= std::min<uint64_t>(left, piece.size());
    const uint64_t offset = std::exchange(place.offset, reader.offset());
    if (file.has_json_lines) {
      add_lines(file, offset, piece, shard, observer);
    } else if (!piece.empty()) {
      add_text(file, offset, std::move(piece), goes_on, shard);
      goes_on = true;
    }
    if (!reader.at_end()) continue;
    place = {place.file + 1, 0};
    goes_on = false;
  }
  return shard;
}

void StreamedText::add_text(const File& file, uint64_t offset, std::string piece, bool goes_on, Shard& shard) const {
  const size_t bad = first_bad_byte(piece);
  if (bad != kNoUtf8Error) {
    throw DataError({"data", fmt::format("{}:{}", file.path.string(), lines_before(file.path, offset + bad) + 1),
                     fmt::format("is not text in UTF-8: byte {} of the file is 0x{:02x}", offset + bad,
                                 static_cast<unsigned char>(piece[bad])),
                     "", "correct the file, or leave it out"});
  }
  if (goes_on) {
    shard.documents.back() += piece;
  } else {
    shard.documents.push_back(std::move(piece));
  }
}

void StreamedText::add_line(const File& file, int64_t number, std::string_view line, Shard& shard) const {
  const nlohmann::json object = parse_json_line(line, file.path, number);
  if (options_.format.chat != nullptr) {
    const RenderedChat chat = rendered_chat(object, line, options_.format, file.path, number);
    shard.chats += counts_of(chat);
    shard.documents.push_back(chat.to_json());
    return;
  }
  std::string text = text_field(object, options_.format.field, file.path, number);
  if (!text.empty()) shard.documents.push_back(std::move(text));
}

void StreamedText::add_lines(const File& file, uint64_t offset, const std::string& piece, Shard& shard,
                             DataObserver& observer) const {
  LineSplitter lines([&](int64_t number, std::string_view line) {
    if (options_.format.chat != nullptr) observer.advance(0);  // its template may take seconds
    try {
      add_line(file, number, line, shard);
    } catch (const Error& error) {
      if (options_.format.skips_bad_lines && dynamic_cast<const DataError*>(&error) != nullptr) return;
      if (offset == 0) throw;
      add_line(file, number + lines_before(file.path, offset), line, shard);  // throws with the number in the file
    }
  });
  lines.put(piece);
  lines.finish();
}

StreamedText::Shard StreamedText::validation(DataObserver& observer) const {
  Shard shard{.documents = {}, .end = {files_.size(), 0}};
  for (const File& file : files_) {
    if (file.train_end >= file.bytes) continue;
    std::string end = TextReader(file.path, file.train_end, file.bytes).take(file.bytes, TextReader::kWhole);
    if (file.has_json_lines) {
      add_lines(file, file.train_end, end, shard, observer);
    } else {
      add_text(file, file.train_end, std::move(end), false, shard);
    }
  }
  return shard;
}

ContentHash StreamedText::content() const {
  ContentHasher hasher;
  hasher.update(kStreaming);
  hasher.update(static_cast<uint64_t>(options_.shard_bytes));
  hasher.update(static_cast<uint64_t>(options_.format.field.size()));
  hasher.update(options_.format.field);
  hasher.update(uint64_t{options_.format.skips_bad_lines ? 1U : 0U});
  if (const ChatTemplate* chat = options_.format.chat.get()) {
    for (const std::string& part : {chat->source(), chat->bos(), chat->eos()}) {
      hasher.update(static_cast<uint64_t>(part.size()));
      hasher.update(part);
    }
  }
  for (const File& file : files_) {
    hasher.update(file.bytes);
    hasher.update(file.train_end);
    hasher.update(uint64_t{file.has_json_lines ? 1U : 0U});
    add_ends(file.path, hasher);
  }
  return hasher.value();
}

std::vector<StreamedText::FileContent> StreamedText::file_contents() const {
  std::vector<FileContent> contents;
  for (const File& file : files_) {
    ContentHasher hasher;
    add_ends(file.path, hasher);
    contents.push_back({.path = file.path, .bytes = file.bytes, .ends = hasher.value()});
  }
  return contents;
}

ContentHash StreamedText::identity() const {
  ContentHasher hasher;
  const ContentHash same = content();
  hasher.update(same.high);
  hasher.update(same.low);
  for (const File& file : files_) {
    const struct stat status = status_of(file.path);
    hasher.update(static_cast<uint64_t>(status.st_ino));
    hasher.update(static_cast<uint64_t>(status.st_ctim.tv_sec));
    hasher.update(static_cast<uint64_t>(status.st_ctim.tv_nsec));
  }
  return hasher.value();
}

}  // namespace caravan
