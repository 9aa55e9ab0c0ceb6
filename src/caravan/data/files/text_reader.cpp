#include "caravan/data/files/text_reader.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/system/file.h"
#include "caravan/data/unicode/utf8.h"

namespace caravan {
namespace {

constexpr size_t kPlainPiece = size_t{1} << 20;
constexpr size_t kCompressedPiece = size_t{16} << 10;  // may be a thousand times as much text

/// Appends up to `count` bytes of the file to `out`. Returns how many; 0 at its end.
size_t append_from(int descriptor, uint64_t position, size_t count, std::string& out,
                   const std::filesystem::path& path) {
  const size_t before = out.size();
  out.resize(before + count);
  ssize_t got = 0;
  do {
    got = ::pread(descriptor, out.data() + before, count, static_cast<off_t>(position));
  } while (got < 0 && errno == EINTR);
  if (got < 0) throw_file_error("data", path, "cannot be read", errno);
  out.resize(before + static_cast<size_t>(got));
  return static_cast<size_t>(got);
}

}  // namespace

TextReader::TextReader(std::filesystem::path path, uint64_t offset, uint64_t end)
    : path_(std::move(path)), descriptor_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC)), end_(end) {
  if (descriptor_ < 0) throw_file_error("data", path_, "cannot be opened", errno);
  constexpr size_t kMagic = 4;
  std::string beginning;
  append_from(descriptor_, 0, kMagic, beginning, path_);
  if (!caravan::is_compressed(beginning)) {
    offset_ = position_ = offset;
    return;
  }
  decompressor_ = Decompressor::of(beginning, path_, [this](std::string_view piece) { buffer_ += piece; });
  while (offset_ < offset) {
    if (buffer_.empty() && !fill()) break;
    const auto skipped = static_cast<size_t>(std::min<uint64_t>(buffer_.size(), offset - offset_));
    buffer_.erase(0, skipped);
    offset_ += skipped;
  }
}

TextReader::~TextReader() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

bool TextReader::fill() {
  const size_t before = buffer_.size();
  if (decompressor_ == nullptr) {
    const size_t wanted = static_cast<size_t>(std::min<uint64_t>(kPlainPiece, end_ - position_));
    if (wanted == 0) return false;
    const size_t got = append_from(descriptor_, position_, wanted, buffer_, path_);
    position_ += got;
    if (got > 0 || end_ == kWhole) return got > 0;
    throw DataError({.op = "data",
                     .subject = path_.string(),
                     .fact = fmt::format("has become shorter: {} bytes, {} when the run started", position_, end_),
                     .action = "leave the texts of a run as they are, and start it again"});
  }
  while (buffer_.size() == before) {
    std::string packed;
    const size_t got = append_from(descriptor_, position_, kCompressedPiece, packed, path_);
    if (got == 0) {
      decompressor_->finish();
      return false;
    }
    position_ += got;
    decompressor_->put(packed);
  }
  return true;
}

bool TextReader::at_end() { return buffer_.empty() && !fill(); }

std::string TextReader::take(size_t bytes, size_t most) {
  while (buffer_.size() < bytes && fill()) {
  }
  size_t from = std::min(bytes, buffer_.size());
  if (from > 0) --from;  // a line may end exactly there
  size_t line_end = buffer_.find('\n', from);
  while (line_end == std::string::npos && buffer_.size() < most) {
    from = buffer_.size();
    if (!fill()) break;
    line_end = buffer_.find('\n', from);
  }
  size_t cut = line_end == std::string::npos ? buffer_.size() : line_end + 1;
  if (cut > most) {
    cut = most;
    while (cut > 0 && is_utf8_tail(buffer_[cut])) --cut;
  }
  std::string rest = buffer_.substr(cut);
  buffer_.resize(cut);
  offset_ += cut;
  return std::exchange(buffer_, std::move(rest));
}

}  // namespace caravan
