#include <string>
#include <vector>

#include "caravan/base/text.h"
#include "caravan/data/chat/chat_line.h"
#include "caravan/data/files/corpus.h"
#include "caravan/data/windows/cache.h"
#include "caravan/data/windows/streamed_text.h"
#include "caravan/train/dataset/dataset_parts.h"

namespace caravan {
namespace {

void append_views(std::vector<std::string_view>& views, const std::vector<std::string>& documents) {
  views.insert(views.end(), documents.begin(), documents.end());
}

/// The training text of a run's tokenizer: the beginnings of its texts, one shard in total.
std::vector<std::vector<std::string>> beginnings_of(std::vector<TokenStreams::Text>& texts, int64_t bytes,
                                                    DataObserver& observer) {
  std::vector<std::vector<std::string>> beginnings;
  const auto share = std::max<int64_t>(bytes / static_cast<int64_t>(texts.size()), 1);
  for (TokenStreams::Text& text : texts) beginnings.push_back(text.text.read({}, share, observer).documents);
  return beginnings;
}

Tokenizer tokenizer_of(const Recipe::Data& data, const DataFolders& folders, std::vector<TokenStreams::Text>& texts,
                       DataObserver& observer) {
  const bool is_trained = data.tokenizer.empty();
  std::vector<std::vector<std::string>> beginnings;
  if (is_trained) beginnings = beginnings_of(texts, folders.shard_bytes, observer);
  std::vector<std::string_view> views;
  for (const std::vector<std::string>& documents : beginnings) append_views(views, documents);
  std::vector<std::string> plain;
  return open_tokenizer(data, folders, texts_of(data, views, plain), observer);
}

struct Validation {
  Dataset::Text text;
  ChatCounts chats;
};

Validation validation_of(const Recipe::Data& data, const DataFolders& folders, const TextFormat& format,
                         const Tokenizer& tokenizer, const std::vector<TokenStreams::Text>& texts,
                         DataObserver& observer) {
  if (!data.validation.empty()) {
    const Corpus corpus(find_all_texts(data.validation, folders), folders.cache, format, observer);
    check_answers(join(data.validation), corpus.chats());
    return {tokenized_text(data, folders, tokenizer, corpus.documents(), observer), corpus.chats()};
  }
  std::vector<StreamedText::Shard> ends;
  std::vector<std::string_view> views;
  ChatCounts chats;
  for (const TokenStreams::Text& text : texts) {
    const StreamedText::Shard& end = ends.emplace_back(text.text.validation(observer));
    chats += end.chats;
    append_views(views, end.documents);
  }
  return {tokenized_text(data, folders, tokenizer, views, observer), chats};
}

}  // namespace

Dataset open_streamed_dataset(const Recipe::Data& data, const DataFolders& folders, DataObserver& observer,
                              StreamRole role, int64_t context) {
  const std::vector<TrainPaths> sources = train_paths(data);
  const auto num_texts = static_cast<int64_t>(sources.size());
  const TextFormat format = text_format(data, folders);
  std::vector<TokenStreams::Text> texts;
  std::vector<double> weights;
  for (const TrainPaths& source : sources) {
    const StreamedText::Options options{.format = format,
                                        .validation_fraction = validation_part(data),
                                        .most_validation_bytes = kMostStreamedValidation / num_texts,
                                        .shard_bytes = folders.shard_bytes};
    texts.push_back({StreamedText(find_all_texts(source.paths, folders), options), source.name});
    weights.push_back(source.weight);
  }
  Tokenizer tokenizer = tokenizer_of(data, folders, texts, observer);
  Validation validation = validation_of(data, folders, format, tokenizer, texts, observer);
  trim_cache(folders.cache, folders.cache_limit_bytes);
  TokenStreams::Options options{
      .cache = folders.cache, .cache_limit_bytes = folders.cache_limit_bytes, .builds = role == StreamRole::builds};
  options.are_chats = data.has_chats();
  if (data.fills_best()) {
    options.fill = FillRule{.end_of_text = options.are_chats ? 0 : tokenizer.end_of_text().value(), .context = context};
  }
  Dataset::Streamed streamed{.texts = std::make_unique<TokenStreams>(std::move(texts), tokenizer, options),
                             .weights = std::move(weights),
                             .packs = pack_rule(data, tokenizer)};
  return {.tokenizer = std::move(tokenizer),
          .train = {},
          .validation = std::move(validation.text),
          .streamed = std::move(streamed),
          .chats = validation.chats};
}

}  // namespace caravan
