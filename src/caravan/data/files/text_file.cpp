#include "caravan/data/files/text_file.h"

#include <array>
#include <cstring>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/content_hash.h"
#include "caravan/base/error.h"
#include "caravan/data/chat/chat_line.h"
#include "caravan/data/chat/chat_template.h"
#include "caravan/data/chat/preference_chat.h"
#include "caravan/data/files/compressed.h"
#include "caravan/data/files/file_format.h"
#include "caravan/data/files/json_lines.h"
#include "caravan/data/files/record.h"
#include "caravan/data/files/table.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

constexpr std::array<char, 8> kTextMagic{'C', 'R', 'V', 'T', 'E', 'X', 'T', 'S'};
constexpr size_t kAlignment = sizeof(uint64_t);

/// A decoded text in the cache: this, the documents, zeros up to a multiple of 8 bytes, then the end of each document.
struct TextHeader {
  std::array<char, 8> magic;
  uint64_t num_documents;
  uint64_t text_bytes;
  uint64_t num_skipped_lines;
  uint64_t num_last_alone;  ///< of chats, as in ChatCounts
  uint64_t num_answers;
  uint64_t num_empty;
  // Over the text, the ends, and the fields above.
  uint64_t hash_high;
  uint64_t hash_low;
};
static_assert(sizeof(TextHeader) == 72);

size_t padding_of(size_t bytes) { return (kAlignment - bytes % kAlignment) % kAlignment; }

ContentHash hash_of(const TextHeader& header, std::string_view text, std::span<const uint64_t> ends,
                    DataObserver& observer) {
  ContentHasher hasher;
  in_pieces(text, observer, [&](std::string_view piece) { hasher.update(piece); });
  hasher.update(std::as_bytes(ends));
  hasher.update(std::as_bytes(std::span(&header, 1)).first(offsetof(TextHeader, hash_high)));
  return hasher.value();
}

/// A decoded text, as views into its file.
struct Decoded {
  TextHeader header{};
  std::string_view text;
  std::span<const uint64_t> ends;
};

/// Nothing if the file is not complete.
std::optional<Decoded> read_decoded(const MappedFile& file, DataObserver& observer) {
  Decoded decoded;
  const std::string_view all = file.text();
  if (all.size() < sizeof(TextHeader)) return std::nullopt;
  std::memcpy(&decoded.header, all.data(), sizeof(TextHeader));
  const size_t rest = all.size() - sizeof(TextHeader);
  const uint64_t bytes = decoded.header.text_bytes;
  const uint64_t count = decoded.header.num_documents;
  if (decoded.header.magic != kTextMagic || bytes > rest || count > rest / sizeof(uint64_t)) return std::nullopt;
  if (bytes + padding_of(bytes) + count * sizeof(uint64_t) != rest) return std::nullopt;
  decoded.text = all.substr(sizeof(TextHeader), bytes);
  decoded.ends = {reinterpret_cast<const uint64_t*>(decoded.text.data() + bytes + padding_of(bytes)), count};
  const ContentHash hash = hash_of(decoded.header, decoded.text, decoded.ends, observer);
  if (hash != ContentHash{decoded.header.hash_high, decoded.header.hash_low}) return std::nullopt;
  return decoded;
}

/// The content of a file, compressed or not.
enum class Content : uint64_t { text, json_lines, table };

/// Writes the documents of a file into the cache.
class Decoding {
 public:
  Decoding(const fs::path& to, const fs::path& source, const TextFormat& format)
      : to_(to), source_(source), format_(format), out_(name_aside(to), "data") {
    out_.append(std::string(sizeof(TextHeader), '\0'));
  }

  void add_text(std::string_view piece) {
    hasher_.update(piece);
    out_.append(piece);
    header_.text_bytes += piece.size();
  }
  void end_document() {
    if (header_.text_bytes > (ends_.empty() ? 0 : ends_.back())) ends_.push_back(header_.text_bytes);
  }
  void add_json(int64_t number, std::string_view line) {
    try {
      const nlohmann::json object = parse_json_line(line, source_, number);
      if (format_.record != nullptr) {
        const Record record = format_.chat == nullptr
                                  ? Record::read(object, *format_.record, source_, number)
                                  : rendered_preference(line, *format_.record, *format_.chat, source_, number);
        add_text(record.to_json());
      } else if (format_.chat == nullptr) {
        add_text(text_field(object, format_.field, source_, number));
      } else {
        add_text(rendered(object, line, number));
      }
      end_document();
    } catch (const DataError& error) {
      if (!format_.skips_bad_lines) throw;
      ++header_.num_skipped_lines;
    }
  }
  void finish() {
    header_.magic = kTextMagic;
    header_.num_documents = ends_.size();
    header_.num_last_alone = static_cast<uint64_t>(chats_.last_alone);
    header_.num_answers = static_cast<uint64_t>(chats_.answers);
    header_.num_empty = static_cast<uint64_t>(chats_.empty);
    out_.append(std::string(padding_of(header_.text_bytes), '\0'));
    out_.append(std::as_bytes(std::span(ends_)));
    hasher_.update(std::as_bytes(std::span(ends_)));
    hasher_.update(std::as_bytes(std::span(&header_, 1)).first(offsetof(TextHeader, hash_high)));
    const ContentHash hash = hasher_.value();
    header_.hash_high = hash.high;
    header_.hash_low = hash.low;
    out_.write_at(0, std::as_bytes(std::span(&header_, 1)));
    out_.finish_as(to_);
  }

 private:
  std::string rendered(const nlohmann::json& object, std::string_view line, int64_t number) {
    const RenderedChat chat = rendered_chat(object, line, format_, source_, number);
    chats_ += counts_of(chat);
    return chat.to_json();
  }

  fs::path to_;
  const fs::path& source_;
  const TextFormat& format_;
  OutputFile out_;
  ContentHasher hasher_;
  TextHeader header_{};
  ChatCounts chats_;
  std::vector<uint64_t> ends_;
};

bool has_json_lines(std::string_view content, const fs::path& path) {
  if (has_json_lines_name(path)) return true;
  if (!is_compressed(content)) return is_json_lines(content);
  std::string beginning = decompress_beginning(content, path);
  const size_t last = beginning.rfind('\n');
  if (last != std::string::npos) beginning.resize(last);  // the last line may be incomplete
  return is_json_lines(beginning);
}

Content kind_of_content(std::string_view content, const fs::path& path) {
  if (is_table(content)) return Content::table;
  return has_json_lines(content, path) ? Content::json_lines : Content::text;
}

/// Where the documents of a table are chats or records.
TableColumns columns_of(const TextFormat& format) {
  if (format.record == nullptr) return {.needed = {format.field}, .others = {"tools"}, .reads_json = true};
  TableColumns columns{.needed = {}, .reads_json = format.chat != nullptr};
  if (format.chat != nullptr) columns.others.emplace_back("tools");
  for (const std::string* field :
       {&format.record->first, &format.record->second, &format.record->label, &format.record->third}) {
    // Answers that are chats may have the prompt themselves.
    const bool is_optional = format.chat != nullptr && field == &format.record->first;
    if (!field->empty()) (is_optional ? columns.others : columns.needed).push_back(*field);
  }
  return columns;
}

void decode_table(const fs::path& path, const TextFormat& format, Decoding& decoding, DataObserver& observer) {
  if (format.chat != nullptr || format.record != nullptr) {
    const char* key = format.record == nullptr ? "data.field" : "";
    read_table_objects(path, columns_of(format), key, [&](int64_t row, std::string_view json) {
      decoding.add_json(row, json);
      observer.advance(static_cast<int64_t>(json.size()));
    });
    return;
  }
  read_table(path, format.field, [&](std::string_view text) {
    decoding.add_text(text);
    decoding.end_document();
    observer.advance(static_cast<int64_t>(text.size()));
  });
}

void decode(std::string_view content, const fs::path& path, Content kind, const TextFormat& format, Decoding& decoding,
            DataObserver& observer) {
  LineSplitter lines([&](int64_t number, std::string_view line) {
    observer.advance(0);  // the template of a chat may take seconds
    decoding.add_json(number, line);
  });
  const auto use = [&](std::string_view piece) {
    if (kind == Content::json_lines) {
      lines.put(piece);
    } else {
      decoding.add_text(piece);
    }
  };
  if (kind == Content::table) {
    decode_table(path, format, decoding, observer);
  } else if (is_compressed(content)) {
    decompress(content, path, use, observer);
  } else {
    in_pieces(content, observer, use);
  }
  lines.finish();
  decoding.end_document();
  decoding.finish();
}

/// What of a format but its field and its bad lines decides about the documents.
std::vector<std::string> parts_of(const TextFormat& format) {
  std::vector<std::string> parts;
  if (format.record != nullptr) parts = {"record", format.record->first, format.record->second, format.record->label};
  if (format.record != nullptr && !format.record->third.empty()) parts.push_back(format.record->third);
  if (format.chat == nullptr) return parts;
  for (const std::string& part : {format.chat->source(), format.chat->bos(), format.chat->eos()}) parts.push_back(part);
  return parts;
}

/// The path of a file's decoded text in the cache.
fs::path decoded_path(const fs::path& cache, std::string_view content, Content kind, const TextFormat& format,
                      DataObserver& observer) {
  ContentHasher hasher;
  hasher.update(kDecoding);
  hasher.update(static_cast<uint64_t>(kind));
  if (kind != Content::text) {
    hasher.update(static_cast<uint64_t>(format.field.size()));
    hasher.update(format.field);
    hasher.update(uint64_t{format.skips_bad_lines ? 1U : 0U});
    for (const std::string& part : parts_of(format)) {
      hasher.update(static_cast<uint64_t>(part.size()));
      hasher.update(part);
    }
  }
  in_pieces(content, observer, [&](std::string_view piece) { hasher.update(piece); });
  return cache / (hasher.value().hex() + ".text");
}

[[noreturn]] void refuse_empty(const fs::path& path, std::string fact) {
  throw DataError({.op = "data",
                   .subject = path.string(),
                   .fact = std::move(fact),
                   .action = "name a text file that is not empty"});
}

}  // namespace

TextFile::TextFile(const fs::path& path, const fs::path& cache, const TextFormat& format, DataObserver& observer)
    : file_(path, "data") {
  if (file_.text().empty()) refuse_empty(path, "is empty: 0 bytes");
  const Content kind = kind_of_content(file_.text(), path);
  if (kind == Content::text && format.chat != nullptr && format.record == nullptr) refuse_text_for_chats(path);
  if (kind == Content::text && format.record != nullptr) {
    throw DataError({"data", path.string(), "has no JSON lines, and so no records", "",
                     "give a .jsonl file with an object in each line, or a table (Parquet, Arrow)"});
  }
  if (kind == Content::text && !is_compressed(file_.text())) {
    check_is_text(file_.text(), path, observer);
    documents_.push_back(file_.text());
    return;
  }
  SecondPass hashing(observer);
  const fs::path decoded_file = decoded_path(cache, file_.text(), kind, format, hashing);
  std::optional<Decoded> decoded;
  MappedFile mapped;
  const auto open = [&] {
    use_ = use_cache_file(decoded_file);
    if (use_ == nullptr) return false;
    mapped = MappedFile(decoded_file, "data");
    decoded = read_decoded(mapped, hashing);
    return decoded.has_value();
  };
  const auto build = [&] {
    Decoding decoding(decoded_file, path, format);
    decode(file_.text(), path, kind, format, decoding, observer);
  };
  find_or_build(decoded_file, open, build, observer);
  if (!decoded && !open()) {
    throw ResourceError({"data", decoded_file.string(), "cannot be read back", "", "check the disk of the cache"});
  }
  file_ = std::move(mapped);
  num_skipped_lines_ = static_cast<int64_t>(decoded->header.num_skipped_lines);
  chats_ = {.last_alone = static_cast<int64_t>(decoded->header.num_last_alone),
            .answers = static_cast<int64_t>(decoded->header.num_answers),
            .empty = static_cast<int64_t>(decoded->header.num_empty)};
  uint64_t begin = 0;
  for (const uint64_t end : decoded->ends) {
    documents_.push_back(decoded->text.substr(begin, end - begin));
    begin = end;
  }
  if (documents_.empty()) {
    refuse_empty(path, num_skipped_lines_ > 0 ? fmt::format("has no text: all its {} lines are bad", num_skipped_lines_)
                                              : "has no text");
  }
  if (kind == Content::text) check_is_text(decoded->text, path, hashing);
}

}  // namespace caravan
