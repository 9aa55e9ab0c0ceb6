#include <optional>

#include "caravan/base/error.h"
#include "caravan/data/files/corpus.h"
#include "caravan/data/tokenizer/tokenizer.h"
#include "caravan/data/windows/token_file.h"

namespace caravan {
namespace {

constexpr uint64_t kTokenization = 2;  ///< increment when the same tokenizer.json produces different ids

ContentHash content_of(std::span<const std::string_view> documents, const Tokenizer& tokenizer,
                       DataObserver& observer) {
  ContentHasher hasher;
  hasher.update(kTokenization);
  hasher.update(tokenizer.hash().high);
  hasher.update(tokenizer.hash().low);
  hasher.update(static_cast<uint64_t>(tokenizer.end_of_text().value_or(-1)));
  for (const std::string_view document : documents) {
    hasher.update(static_cast<uint64_t>(document.size()));
    in_pieces(document, observer, [&](std::string_view piece) { hasher.update(piece); });
  }
  return hasher.value();
}

/// The cache does not remove the file while the result lives.
std::shared_ptr<const CacheLock> build(const std::filesystem::path& path, ContentHash content,
                                       std::span<const std::string_view> documents, const Tokenizer& tokenizer,
                                       DataObserver& observer) {
  observer.begin("tokenizing", num_bytes(documents));
  TokenFileWriter writer(path, tokenizer.vocab_size());
  tokenizer.encode(
      documents, tokenizer.end_of_text(), [&](std::span<const int32_t> ids) { writer.append(ids); }, observer);
  return writer.finish(num_bytes(documents), content);
}

}  // namespace

TokenFile open_or_build(const std::filesystem::path& cache_dir, std::span<const std::string_view> documents,
                        const Tokenizer& tokenizer, DataObserver& observer) {
  SecondPass hashing(observer);
  const ContentHash content = content_of(documents, tokenizer, hashing);
  const std::filesystem::path path = cache_dir / (content.hex() + ".tokens");
  std::optional<TokenFile> file;
  const auto look = [&] {
    file = TokenFile::find(path, content, tokenizer.vocab_size(), observer);
    return file.has_value();
  };
  std::shared_ptr<const CacheLock> use;  // until the file is open
  find_or_build(
      path, look, [&] { use = build(path, content, documents, tokenizer, observer); }, observer);
  return file ? std::move(*file) : TokenFile::open(path, observer);
}

TokensAndNumbers open_or_build_both(const std::filesystem::path& cache_dir, const CachedIds& tokens,
                                    const CachedIds& numbers,
                                    const std::function<int64_t(TokenFileWriter&, TokenFileWriter&)>& build,
                                    const std::function<bool(const TokenFile&, const TokenFile&)>& fit,
                                    DataObserver& observer) {
  const std::filesystem::path path = cache_dir / (tokens.content.hex() + ".tokens");
  const std::filesystem::path numbers_path = cache_dir / (numbers.content.hex() + ".tokens");
  std::optional<TokenFile> of_tokens, of_numbers;
  const auto look = [&] {
    of_tokens = TokenFile::find(path, tokens.content, tokens.vocabulary, observer);
    of_numbers = TokenFile::find(numbers_path, numbers.content, numbers.vocabulary, observer);
    return of_tokens && of_numbers && fit(*of_tokens, *of_numbers);
  };
  std::vector<std::shared_ptr<const CacheLock>> uses;  // until the files are open
  const auto build_both = [&] {
    TokenFileWriter ids(path, tokens.vocabulary);
    TokenFileWriter beside(numbers_path, numbers.vocabulary);
    const int64_t text_bytes = build(ids, beside);
    uses = {beside.finish(0, numbers.content), ids.finish(text_bytes, tokens.content)};
  };
  find_or_build(path, look, build_both, observer);
  if (!of_tokens || !of_numbers) return {TokenFile::open(path, observer), TokenFile::open(numbers_path, observer)};
  return {std::move(*of_tokens), std::move(*of_numbers)};
}

}  // namespace caravan
