#include <optional>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/content_hash.h"
#include "caravan/base/error.h"
#include "caravan/data/tokenizer/bpe_trainer.h"
#include "caravan/data/windows/cache.h"
#include "caravan/formats/huggingface/hf_folder.h"
#include "caravan/train/dataset/dataset_parts.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kTrainerVersion = 1;  ///< increment when train_bpe produces different tokens for the same text

/// The special tokens of a tokenizer that is trained for a task, besides the end of a text.
std::vector<std::string> special_tokens_for(const TaskChoice& task) {
  constexpr int kSentinels = 100;  // as T5 has
  if (task.kind == "masked" || task.kind == "classify") return {"[PAD]", "[CLS]", "[SEP]", "[MASK]"};
  if (task.kind == "next" || task.has_preferences()) return {};
  std::vector<std::string> tokens{"<pad>"};
  for (int i = 0; task.kind == "spans" && i < kSentinels; ++i) tokens.push_back(fmt::format("<extra_id_{}>", i));
  return tokens;
}

fs::path trained_tokenizer_path(const std::vector<std::string_view>& text, int64_t vocabulary,
                                const BpeTrainerOptions& options, const fs::path& cache, DataObserver& observer) {
  ContentHasher hasher;
  hasher.update(kTrainerVersion);
  hasher.update(static_cast<uint64_t>(vocabulary));
  for (const std::string& token : options.more_special) hasher.update(token);
  if (options.ends_texts) hasher.update("ends");
  SecondPass hashing(observer);
  for (const std::string_view part : text) {
    hasher.update(static_cast<uint64_t>(part.size()));
    in_pieces(part, hashing, [&](std::string_view piece) { hasher.update(piece); });
  }
  return cache / ("tokenizer-" + hasher.value().hex() + ".json");
}

Tokenizer trained_tokenizer(const std::vector<std::string_view>& text, const Recipe::Data& data, const fs::path& cache,
                            DataObserver& observer) {
  // Sources end with the end token, as those of T5 do.
  const BpeTrainerOptions options{.more_special = special_tokens_for(data.task),
                                  .ends_texts = data.task.kind == "spans" || data.task.kind == "pairs"};
  const fs::path path = trained_tokenizer_path(text, data.trained_vocabulary, options, cache, observer);
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
    tokenizer = train_bpe(text, data.trained_vocabulary, options, observer);
    tokenizer->save(path);
  };
  find_or_build(path, find, build, observer);
  return *tokenizer;
}

/// The weights that a run starts with belong to the tokens of their own tokenizer. A file that the recipe names may be
/// that one with more tokens.
void check_source_tokenizer(const Recipe::Data& data, const Tokenizer& tokenizer) {
  const bool is_named = !data.tokenizer.empty() && data.tokenizer != "bytes";
  if (is_named || !differs_from_source(data, tokenizer)) return;
  throw UsageError({"data", "data.tokenizer",
                    data.tokenizer.empty() ? "a tokenizer trained on this text has other tokens than the weights of "
                                             "train.init_from"
                                           : "\"bytes\" are other tokens than those of the weights of train.init_from",
                    "", fmt::format("leave it out, or use data.tokenizer = \"{}\"", data.source_tokenizer)});
}

}  // namespace

bool differs_from_source(const Recipe::Data& data, const Tokenizer& tokenizer) {
  const std::string& source = data.source_tokenizer;
  return !source.empty() && source != data.tokenizer && Tokenizer::load(source).hash() != tokenizer.hash();
}

void check_end_of_text(const Recipe::Data& data, const Tokenizer& tokenizer) {
  const bool tells_apart = data.packs_documents() || data.fills_best();
  if (tells_apart && !data.has_chats() && !tokenizer.end_of_text()) {
    const std::string key = data.fills_best() ? "data.fill" : "data.pack";
    throw UsageError({"data", key, "documents are separated by an end-of-text token, and the tokenizer has none", "",
                      fmt::format("use {} = \"{}\", or a tokenizer with one: data.tokenizer = {{train = 2048}}", key,
                                  data.fills_best() ? "stream" : "none")});
  }
}

Tokenizer open_tokenizer(const Recipe::Data& data, const DataFolders& folders,
                         const std::vector<std::string_view>& text, DataObserver& observer) {
  // The weights of a folder are not read without its tokens, whatever data.tokenizer is.
  if (!data.source_tokenizer.empty()) tokenizer_file(fs::path(data.source_tokenizer).parent_path());
  Tokenizer tokenizer = data.tokenizer == "bytes" ? Tokenizer::bytes()
                        : data.tokenizer.empty()  ? trained_tokenizer(text, data, folders.cache, observer)
                                                  : Tokenizer::load(find_file(data.tokenizer, folders));
  check_source_tokenizer(data, tokenizer);
  check_end_of_text(data, tokenizer);
  return tokenizer;
}

}  // namespace caravan
