#include <array>
#include <optional>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/data/corpus.h"
#include "caravan/data/token_file.h"
#include "caravan/data/tokenizer.h"

namespace caravan {
namespace {

constexpr uint64_t kTokenization = 1;  ///< raised when the same tokenizer.json comes to give other ids

ContentHash content_of(std::span<const std::string_view> documents, const Tokenizer& tokenizer) {
  ContentHasher hasher;
  hasher.update(kTokenization);
  hasher.update(tokenizer.hash().high);
  hasher.update(tokenizer.hash().low);
  hasher.update(static_cast<uint64_t>(tokenizer.end_of_text().value_or(-1)));
  for (const std::string_view document : documents) {
    hasher.update(static_cast<uint64_t>(document.size()));
    hasher.update(document);
  }
  return hasher.value();
}

/// The file, if it is there and whole.
std::optional<TokenFile> find(const std::filesystem::path& path, ContentHash content, const Tokenizer& tokenizer) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  try {
    TokenFile file = TokenFile::open(path);
    if (file.info().content == content && file.info().vocab_size == tokenizer.vocab_size()) return file;
  } catch (const DataError&) {
    // A damaged file of a cache is one that is missing.
  }
  return std::nullopt;
}

}  // namespace

TokenFile open_or_build(const std::filesystem::path& cache_dir, std::span<const std::string_view> documents,
                        const Tokenizer& tokenizer) {
  const ContentHash content = content_of(documents, tokenizer);
  const std::filesystem::path path = cache_dir / (content.hex() + ".tokens");
  if (auto file = find(path, content, tokenizer)) return std::move(*file);

  std::error_code error;
  std::filesystem::create_directories(cache_dir, error);
  if (error) {
    throw ResourceError({.op = "tokens",
                         .subject = cache_dir.string(),
                         .fact = fmt::format("the folder cannot be made: {}", error.message()),
                         .where = {},
                         .action = "choose a folder that may be written"});
  }
  TokenFileWriter writer(path, tokenizer.vocab_size());
  bool is_first = true;
  for (const std::string_view document : documents) {
    if (!is_first && tokenizer.end_of_text()) writer.append(std::array{*tokenizer.end_of_text()});
    tokenizer.encode(document, [&](std::span<const int32_t> ids) { writer.append(ids); });
    is_first = false;
  }
  writer.finish(num_bytes(documents), content);
  return TokenFile::open(path);
}

}  // namespace caravan
