#include "caravan/train/dataset.h"

#include <vector>

#include <fmt/format.h>

#include "caravan/base/content_hash.h"
#include "caravan/base/error.h"
#include "caravan/data/bpe_trainer.h"
#include "caravan/data/corpus.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

/// Counts up when train_bpe would give other tokens for the same text.
constexpr uint64_t kTrainerVersion = 1;

Tokenizer trained_tokenizer(const std::vector<std::string_view>& text, int64_t vocabulary, const fs::path& cache) {
  ContentHasher hasher;
  hasher.update(kTrainerVersion);
  hasher.update(static_cast<uint64_t>(vocabulary));
  for (const std::string_view part : text) {
    hasher.update(static_cast<uint64_t>(part.size()));
    hasher.update(part);
  }
  const fs::path path = cache / ("tokenizer-" + hasher.value().hex() + ".json");
  std::error_code error;
  if (fs::exists(path, error)) {
    try {
      return Tokenizer::load(path);
    } catch (const DataError&) {
      // Damaged: made anew below.
    }
  }
  Tokenizer tokenizer = train_bpe(text, vocabulary);
  fs::create_directories(cache, error);
  if (error) throw_file_error("tokenizer cache", cache, "cannot be made", error.value());
  tokenizer.save(path);
  return tokenizer;
}

}  // namespace

fs::path find_file(const std::string& path, const DataFolders& folders) {
  std::error_code error;
  if (fs::exists(path, error)) return path;
  std::string looked_up = fs::current_path(error).string();
  for (const fs::path& folder : {folders.recipe, folders.home}) {
    if (folder.empty() || fs::path(path).is_absolute()) continue;
    if (fs::exists(folder / path, error)) return folder / path;
    looked_up += ", " + folder.string();
  }
  throw DataError(
      {"data", path, "there is no such file", "looked up from " + looked_up, "give the path of a file that exists"});
}

void resolve_files(Recipe::Data& data, const DataFolders& folders) {
  const auto resolve = [&](std::string& path) {
    try {
      path = find_file(path, folders).string();
    } catch (const DataError&) {
      // Said where the file is opened.
    }
  };
  for (std::string& path : data.text) resolve(path);
  if (!data.tokenizer.empty() && data.tokenizer != "bytes") resolve(data.tokenizer);
}

Dataset open_dataset(const Recipe::Data& data, const DataFolders& folders) {
  std::vector<fs::path> files;
  for (const std::string& path : data.text) files.push_back(find_file(path, folders));
  const Corpus corpus(files);
  const TextSplit split = corpus.split();
  Tokenizer tokenizer = data.tokenizer == "bytes" ? Tokenizer::bytes()
                        : data.tokenizer.empty()
                            ? trained_tokenizer(split.train, data.trained_vocabulary, folders.cache)
                            : Tokenizer::load(find_file(data.tokenizer, folders));
  TokenFile train = open_or_build(folders.cache, split.train, tokenizer);
  TokenFile validation = open_or_build(folders.cache, split.validation, tokenizer);
  return {std::move(tokenizer), std::move(train), std::move(validation)};
}

}  // namespace caravan
