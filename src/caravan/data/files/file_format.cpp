#include "caravan/data/files/file_format.h"

#include <array>
#include <cstring>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/data/unicode/utf8.h"

namespace caravan {
namespace {

using namespace std::string_view_literals;

/// A format identified by bytes at a fixed position.
struct Signature {
  size_t offset;
  std::string_view bytes;
  std::string_view name;
  std::string_view action;  ///< {}: the file
};

constexpr std::string_view kDecompress = "decompress it, and name the result";
constexpr std::string_view kExtract = "extract it, and name the text files in it";
constexpr std::string_view kTable = "write its text column to a file, and name that";
constexpr std::string_view kDocument = "convert it to plain text in UTF-8";

constexpr std::array kSignatures{
    Signature{0,
              "\xfd"
              "7zXZ\0"sv,
              "an xz file", "decompress it: xz -dc {0} > {0}.txt"},
    Signature{0, "BZh"sv, "a bzip2 file", "decompress it: bzip2 -dc {0} > {0}.txt"},
    Signature{0, "\x04\x22\x4d\x18"sv, "an lz4 file", kDecompress},
    Signature{0, "PK\x03\x04"sv, "a zip archive", kExtract},
    Signature{0, "7z\xbc\xaf\x27\x1c"sv, "a 7-Zip archive", kExtract},
    Signature{257, "ustar"sv, "a tar archive", kExtract},
    Signature{0, "PAR1"sv, "a Parquet file", kTable},
    Signature{0, "ARROW1"sv, "an Arrow file", kTable},
    Signature{0, "\x89HDF\r\n\x1a\n"sv, "an HDF5 file", kTable},
    Signature{0, "SQLite format 3\0"sv, "an SQLite database", kTable},
    Signature{0, "\x89PNG\r\n\x1a\n"sv, "a PNG image", "name a text file"},
    Signature{0, "\xff\xd8\xff"sv, "a JPEG image", "name a text file"},
    Signature{0, "%PDF-"sv, "a PDF document", kDocument},
    Signature{0, "{\\rtf"sv, "an RTF document", kDocument},
    Signature{0,
              "\x7f"
              "ELF"sv,
              "an executable", "name a text file"},
    Signature{0, "CRVTOKEN"sv, "a token file of this program's cache", "name the text that it was made from"},
    // UTF-32 before UTF-16, whose mark is a prefix of the other's.
    Signature{0, "\xff\xfe\0\0"sv, "text in UTF-32", "convert it: iconv -f UTF-32 -t UTF-8 {0} > {0}.txt"},
    Signature{0, "\xff\xfe"sv, "text in UTF-16", "convert it: iconv -f UTF-16 -t UTF-8 {0} > {0}.txt"},
    Signature{0, "\xfe\xff"sv, "text in UTF-16", "convert it: iconv -f UTF-16 -t UTF-8 {0} > {0}.txt"},
};

[[noreturn]] void refuse(const std::filesystem::path& path, std::string fact, std::string_view action) {
  throw DataError({.op = "data",
                   .subject = path.string(),
                   .fact = std::move(fact),
                   .action = fmt::format(fmt::runtime(action), path.string())});
}

/// Takes the next line off `text`.
std::string_view take_line(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(text.size(), line.size() + 1));
  return line;
}

/// "text in UTF-16" if every second byte of the beginning is 0, as in Western text without a mark.
bool is_utf16_without_mark(std::string_view text) {
  const std::string_view head = text.substr(0, 64);
  if (head.size() < 4) return false;
  std::array<size_t, 2> zeros{};
  for (size_t i = 0; i < head.size(); ++i) zeros[i % 2] += head[i] == '\0' ? 1 : 0;
  const size_t half = head.size() / 2;
  return (zeros[0] == 0 && zeros[1] >= half - 1) || (zeros[1] == 0 && zeros[0] >= half - 1);
}

}  // namespace

bool is_json_lines(std::string_view head) {
  if (!head.starts_with('{')) return false;
  constexpr int kLines = 3;
  constexpr size_t kLongestLine = size_t{1} << 24;
  for (int i = 0; i < kLines && !head.empty(); ++i) {
    const std::string_view line = take_line(head);
    if (line.empty() || line == "\r") continue;
    // Not parsed into a value: deep nesting must not cost memory.
    if (!line.starts_with('{') || line.size() > kLongestLine || !nlohmann::json::accept(line)) return false;
  }
  return true;
}

bool has_json_lines_name(const std::filesystem::path& path) {
  std::filesystem::path name = path.filename();
  if (name.extension() == ".gz" || name.extension() == ".zst") name = name.stem();
  return name.extension() == ".jsonl" || name.extension() == ".ndjson";
}

void check_is_not_binary(std::string_view content, const std::filesystem::path& path, DataObserver& observer) {
  for (const Signature& one : kSignatures) {
    if (content.size() < one.offset + one.bytes.size()) continue;
    if (content.substr(one.offset, one.bytes.size()) != one.bytes) continue;
    refuse(path, fmt::format("is {}, not plain text", one.name), one.action);
  }
  const void* zero = nullptr;
  in_pieces(content, observer, [&](std::string_view piece) {
    if (zero == nullptr) zero = std::memchr(piece.data(), 0, piece.size());
  });
  if (zero != nullptr && is_utf16_without_mark(content)) {
    const char* order = content.front() == '\0' ? "BE" : "LE";
    refuse(path, "is text in UTF-16, not in UTF-8",
           fmt::format("convert it: iconv -f UTF-16{} -t UTF-8 {{0}} > {{0}}.txt", order));
  }
  if (zero != nullptr) {
    refuse(path,
           fmt::format("is a binary file, not plain text: byte {} of {} is 0",
                       static_cast<const char*>(zero) - content.data(), content.size()),
           "name a text file in UTF-8");
  }
}

void check_is_text(std::string_view content, const std::filesystem::path& path, DataObserver& observer) {
  check_is_not_binary(content, path, observer);
  SecondPass again(observer);
  check_utf8(content, "data", path.string(), again);
}

}  // namespace caravan
