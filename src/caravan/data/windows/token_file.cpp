#include "caravan/data/windows/token_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian and read in place");

constexpr std::array<char, 8> kMagic{'C', 'R', 'V', 'T', 'O', 'K', 'E', 'N'};
constexpr uint32_t kVersion = 1;
constexpr int64_t kLargestVocabulary = int64_t{1} << 31;

struct Header {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t id_bytes;
  uint64_t num_tokens;
  uint64_t vocab_size;
  uint64_t text_bytes;
  uint64_t content_high;
  uint64_t content_low;
  // Over the ids, then over all fields above.
  uint64_t hash_high;
  uint64_t hash_low;
};
static_assert(sizeof(Header) == 72);

int id_bytes_of(int64_t vocab_size) { return vocab_size <= (1 << 16) ? 2 : 4; }

ContentHash hash_with(const Header& header, ContentHasher& of_ids) {
  of_ids.update(std::as_bytes(std::span(&header, 1)).first(offsetof(Header, hash_high)));
  return of_ids.value();
}

[[noreturn]] void refuse(const std::filesystem::path& path, std::string fact) {
  throw DataError({.op = "tokens",
                   .subject = path.string(),
                   .fact = std::move(fact),
                   .action = "remove it; it is built again from the text"});
}

template <typename Id>
const Id* ids_of(const MappedFile& file) {
  return reinterpret_cast<const Id*>(file.bytes().data() + sizeof(Header));
}

template <typename Id>
uint64_t largest_id(const MappedFile& file, uint64_t count) {
  const Id* ids = ids_of<Id>(file);
  Id largest = 0;
  for (uint64_t i = 0; i < count; ++i) largest = std::max(largest, ids[i]);
  return largest;
}

/// The header, checked against the size of the file.
Header read_header(const MappedFile& file, const std::filesystem::path& path) {
  const size_t size = file.bytes().size();
  Header header{};
  if (size > 0)
    std::memcpy(&header, file.bytes().data(), std::min(size, sizeof header));  // an empty file is not
                                                                               // mapped
  if (size < sizeof kMagic || header.magic != kMagic) refuse(path, "is not a token file");
  if (size < sizeof header) refuse(path, fmt::format("is truncated: {} bytes, the header has {}", size, sizeof header));
  if (header.version != kVersion) {
    refuse(path, fmt::format("has version {}, this program reads {}", header.version, kVersion));
  }
  if (header.vocab_size == 0 || header.vocab_size > kLargestVocabulary ||
      header.id_bytes != static_cast<uint32_t>(id_bytes_of(static_cast<int64_t>(header.vocab_size)))) {
    refuse(path, fmt::format("is damaged: ids of {} bytes for a vocabulary of {}", header.id_bytes, header.vocab_size));
  }
  const size_t payload = size - sizeof header;
  if (payload % header.id_bytes != 0 || payload / header.id_bytes != header.num_tokens) {
    refuse(path, fmt::format("is truncated or damaged: {} bytes of ids for {} tokens of {} bytes", payload,
                             header.num_tokens, header.id_bytes));
  }
  return header;
}

}  // namespace

TokenFile TokenFile::open(const std::filesystem::path& path, DataObserver& observer) {
  std::shared_ptr<const CacheLock> use = use_cache_file(path);
  MappedFile file(path, "tokens");
  const Header header = read_header(file, path);
  ContentHasher hasher;
  SecondPass reading(observer);
  in_pieces(file.bytes().subspan(sizeof header), reading, [&](auto piece) { hasher.update(piece); });
  if (hash_with(header, hasher) != ContentHash{header.hash_high, header.hash_low}) {
    refuse(path, "is damaged: its hash is not the one that was written");
  }
  const uint64_t largest = header.id_bytes == 2 ? largest_id<uint16_t>(file, header.num_tokens)
                                                : largest_id<uint32_t>(file, header.num_tokens);
  if (header.num_tokens > 0 && largest >= header.vocab_size) {
    refuse(path, fmt::format("holds the id {} of a vocabulary of {}", largest, header.vocab_size));
  }
  const TokenFileInfo info{.num_tokens = static_cast<int64_t>(header.num_tokens),
                           .vocab_size = static_cast<int64_t>(header.vocab_size),
                           .text_bytes = static_cast<int64_t>(header.text_bytes),
                           .content = {header.content_high, header.content_low}};
  return {std::move(use), std::move(file), info, static_cast<int>(header.id_bytes), path};
}

std::optional<TokenFile> TokenFile::find(const std::filesystem::path& path, ContentHash content, int64_t vocab_size,
                                         DataObserver& observer) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  try {
    TokenFile file = open(path, observer);
    if (file.info_.content == content && file.info_.vocab_size == vocab_size) return file;
  } catch (const DataError&) {
    // A damaged file of the cache is built again.
  }
  return std::nullopt;
}

void TokenFile::read(int64_t first, std::span<int64_t> out) const {
  const auto count = static_cast<int64_t>(out.size());
  if (first < 0 || first > size() || count > size() - first) {
    throw ShapeError({.op = "tokens",
                      .subject = path_.string(),
                      .fact = fmt::format("has {} tokens, but {} from index {} were requested", size(), count, first),
                      .action = "request tokens within the file"});
  }
  if (id_bytes_ == 2) {
    std::copy_n(ids_of<uint16_t>(file_) + first, count, out.begin());
  } else {
    std::copy_n(ids_of<uint32_t>(file_) + first, count, out.begin());
  }
}

TokenFileWriter::TokenFileWriter(std::filesystem::path path, int64_t vocab_size)
    : path_(std::move(path)), file_(name_aside(path_), "tokens") {
  if (vocab_size <= 0 || vocab_size > kLargestVocabulary) {
    throw UsageError({.op = "tokens",
                      .subject = path_.string(),
                      .fact = fmt::format("cannot hold ids of a vocabulary of {}", vocab_size),
                      .action = fmt::format("use a vocabulary of 1 to {}", kLargestVocabulary)});
  }
  info_.vocab_size = vocab_size;
  const Header none{};
  file_.append(std::as_bytes(std::span(&none, 1)));
}

void TokenFileWriter::append(std::span<const int32_t> ids) {
  for (const int32_t id : ids) {
    if (id >= 0 && id < info_.vocab_size) continue;
    throw UsageError({.op = "tokens",
                      .subject = path_.string(),
                      .fact = fmt::format("id {} is outside the vocabulary of {}", id, info_.vocab_size),
                      .action = "write ids of the tokenizer that the file was created for"});
  }
  buffer_.clear();
  for (const int32_t id : ids) {
    buffer_.append(reinterpret_cast<const char*>(&id), static_cast<size_t>(id_bytes_of(info_.vocab_size)));
  }
  hasher_.update(buffer_);
  file_.append(buffer_);
  info_.num_tokens += static_cast<int64_t>(ids.size());
}

std::shared_ptr<const CacheLock> TokenFileWriter::finish(int64_t text_bytes, ContentHash content) {
  Header header{.magic = kMagic,
                .version = kVersion,
                .id_bytes = static_cast<uint32_t>(id_bytes_of(info_.vocab_size)),
                .num_tokens = static_cast<uint64_t>(info_.num_tokens),
                .vocab_size = static_cast<uint64_t>(info_.vocab_size),
                .text_bytes = static_cast<uint64_t>(text_bytes),
                .content_high = content.high,
                .content_low = content.low,
                .hash_high = 0,
                .hash_low = 0};
  const ContentHash hash = hash_with(header, hasher_);
  header.hash_high = hash.high;
  header.hash_low = hash.low;
  file_.write_at(0, std::as_bytes(std::span(&header, 1)));
  // Before the file gets its name, after which another process may trim the cache.
  std::shared_ptr<const CacheLock> use = use_cache_file(file_.path());
  file_.finish_as(path_);
  return use;
}

}  // namespace caravan
