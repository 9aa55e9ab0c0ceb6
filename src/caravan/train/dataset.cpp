#include "caravan/train/dataset.h"

#include <optional>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/content_hash.h"
#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/data/bpe_trainer.h"
#include "caravan/data/cache.h"
#include "caravan/data/corpus.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kTrainerVersion = 1;  ///< raise it when train_bpe produces different tokens for the same text

fs::path trained_tokenizer_path(const std::vector<std::string_view>& text, int64_t vocabulary, const fs::path& cache,
                                DataObserver& observer) {
  ContentHasher hasher;
  hasher.update(kTrainerVersion);
  hasher.update(static_cast<uint64_t>(vocabulary));
  SecondPass hashing(observer);
  for (const std::string_view part : text) {
    hasher.update(static_cast<uint64_t>(part.size()));
    in_pieces(part, hashing, [&](std::string_view piece) { hasher.update(piece); });
  }
  return cache / ("tokenizer-" + hasher.value().hex() + ".json");
}

Tokenizer trained_tokenizer(const std::vector<std::string_view>& text, int64_t vocabulary, const fs::path& cache,
                            DataObserver& observer) {
  const fs::path path = trained_tokenizer_path(text, vocabulary, cache, observer);
  std::optional<Tokenizer> tokenizer;
  const auto find = [&] {
    const auto use = use_cache_file(path);
    if (use == nullptr) return false;
    try {
      tokenizer = Tokenizer::load(path);
    } catch (const DataError&) {
      // A damaged file of the cache is built again.
    }
    return tokenizer.has_value();
  };
  const auto build = [&] {
    tokenizer = train_bpe(text, vocabulary, {}, observer);
    tokenizer->save(path);
  };
  find_or_build(path, find, build, observer);
  return *tokenizer;
}

}  // namespace

fs::path find_file(const std::string& path, const DataFolders& folders) {
  std::error_code error;
  std::vector<fs::path> starts{fs::current_path(error)};
  for (const fs::path& folder : {folders.recipe, folders.home}) {
    if (!folder.empty() && !fs::path(path).is_absolute()) starts.push_back(folder);
  }
  std::string looked_up;
  for (const fs::path& start : starts) {
    const fs::path file = fs::absolute(start / path, error).lexically_normal();
    if (fs::exists(file, error)) return file;
    looked_up += (looked_up.empty() ? "" : ", ") + start.string();
  }
  throw DataError({"data", path, "no such file", "looked up from " + looked_up, "name a file that exists"});
}

void resolve_files(Recipe::Data& data, const DataFolders& folders) {
  const auto resolve = [&](std::string& path) {
    fs::path found;
    try {
      found = find_file(path, folders);
    } catch (const DataError&) {
      return;  // reported where the file is opened
    }
    if (!is_utf8(found.string())) {
      throw UsageError({"recipe", found.string(), "the path is not UTF-8, and recipes are", "",
                        "rename the folder or the file, or give it a link in UTF-8"});
    }
    path = found.string();
  };
  for (std::string& path : data.text) resolve(path);
  if (!data.tokenizer.empty() && data.tokenizer != "bytes") resolve(data.tokenizer);
}

Dataset open_dataset(const Recipe::Data& data, const DataFolders& folders, DataObserver& observer) {
  std::vector<fs::path> files;
  for (const std::string& path : data.text) files.push_back(find_file(path, folders));
  const Corpus corpus(files, observer);
  const TextSplit split = corpus.split();
  Tokenizer tokenizer = data.tokenizer == "bytes" ? Tokenizer::bytes()
                        : data.tokenizer.empty()
                            ? trained_tokenizer(split.train, data.trained_vocabulary, folders.cache, observer)
                            : Tokenizer::load(find_file(data.tokenizer, folders));
  const std::optional<int32_t> end_of_text = tokenizer.end_of_text();
  if (data.packs_documents() && !end_of_text) {
    throw UsageError({"data", "data.pack",
                      "documents are told apart by an end-of-text token, and the tokenizer has none", "",
                      "use data.pack = \"none\", or a tokenizer with one: data.tokenizer = {train = 2048}"});
  }
  TokenFile train = open_or_build(folders.cache, split.train, tokenizer, observer);
  TokenFile validation = open_or_build(folders.cache, split.validation, tokenizer, observer);
  trim_cache(folders.cache, folders.cache_limit_bytes);
  Dataset dataset{std::move(tokenizer), std::move(train), std::move(validation)};
  if (data.packs_documents()) {
    const bool restarts = data.positions == "restart";
    dataset.packed = {Documents(dataset.train, *end_of_text, restarts),
                      Documents(dataset.validation, *end_of_text, restarts)};
  }
  return dataset;
}

}  // namespace caravan
