#include "caravan/train/dataset/dataset.h"

#include <optional>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/content_hash.h"
#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/data/chat/chat_line.h"
#include "caravan/data/chat/chat_template.h"
#include "caravan/data/files/record.h"
#include "caravan/data/windows/cache.h"
#include "caravan/train/dataset/dataset_parts.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

/// The text that some paths name, split in two.
struct SplitCorpus {
  Corpus corpus;
  TextSplit split;
};

SplitCorpus open_corpus(const std::vector<std::string>& paths, const Recipe::Data& data, const DataFolders& folders,
                        DataObserver& observer) {
  Corpus corpus(find_all_texts(paths, folders), folders.cache, text_format(data, folders), observer);
  TextSplit split = corpus.split(validation_part(data), data.has_chats() || data.task.has_records());
  return {std::move(corpus), std::move(split)};
}

void append(std::vector<std::string_view>& all, const std::vector<std::string_view>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

}  // namespace

TextFormat text_format(const Recipe::Data& data, const DataFolders& folders) {
  TextFormat format{.field = data.field, .skips_bad_lines = data.skip_bad_lines};
  if (data.has_chats()) format.chat = find_chat_template(data, folders);
  if (data.task.has_records()) format.record = std::make_shared<const RecordFields>(record_fields(data));
  if (format.field.empty()) format.field = data.has_chats() ? "messages" : "text";
  return format;
}

int64_t Dataset::num_train_tokens() const noexcept {
  int64_t count = 0;
  for (const Text& text : train) count += text.tokens.size();
  return count;
}

ContentHash Dataset::train_hash() const {
  if (train.size() == 1) return train.front().tokens.info().content;
  ContentHasher hasher;
  const auto add = [&](const ContentHash& content, double weight) {
    hasher.update(content.high);
    hasher.update(content.low);
    hasher.update(fmt::format("{} ", weight));
  };
  for (const Text& text : train) add(text.tokens.info().content, text.weight);
  for (size_t i = 0; streamed && i < streamed->texts->size(); ++i) {
    add(streamed->texts->content(i), streamed->weights[i]);
  }
  return hasher.value();
}

namespace {

std::shared_ptr<const WholeDocuments> whole_documents(const Dataset& dataset, const Dataset::Text& text,
                                                      int64_t context) {
  if (text.marks) return std::make_shared<const WholeDocuments>(*text.marks, context);
  return std::make_shared<const WholeDocuments>(text.tokens, dataset.tokenizer.end_of_text().value(), context);
}

}  // namespace

TrainWindows Dataset::train_windows(int64_t context, int64_t seed, Fill fill) const {
  std::vector<TrainSource> sources;
  for (const Text& text : train) {
    sources.push_back({.tokens = &text.tokens,
                       .documents = text.documents ? &*text.documents : nullptr,
                       .marks = text.marks ? &*text.marks : nullptr,
                       .weight = text.weight,
                       .name = train.size() == 1 ? "" : text.name});
    if (fill == Fill::whole_documents) sources.back().whole = whole_documents(*this, text, context);
  }
  if (streamed && streamed->texts->fill().has_value() != (fill == Fill::whole_documents)) {
    throw InternalError({"data", "streamed texts", "were opened for rows of another data.fill", "", ""});
  }
  for (size_t i = 0; streamed && i < streamed->texts->size(); ++i) {
    sources.push_back({.tokens = nullptr,
                       .weight = streamed->weights[i],
                       .name = streamed->texts->name(i),
                       .streams = streamed->texts.get(),
                       .packs = streamed->packs});
  }
  return {sources, context, static_cast<uint64_t>(seed)};
}

ValidationWindows Dataset::validation_windows(int64_t context, Fill fill) const {
  const Documents* documents = validation.documents ? &*validation.documents : nullptr;
  const TokenFile* marks = validation.marks ? &*validation.marks : nullptr;
  if (fill == Fill::windows) return {validation.tokens, context, documents, std::nullopt, marks};
  return {RowText{&validation.tokens, documents, marks}, whole_documents(*this, validation, context)};
}

std::vector<std::string> dataset_notes(const Dataset& dataset, const TaskRows& rows, const Recipe& recipe) {
  std::vector<std::string> notes;
  const int64_t samples = recipe.train.steps * recipe.train.global_batch;
  const std::vector<int64_t> drawn = rows.drawn(samples);
  const int64_t wanted = recipe.data.trained_vocabulary, tokens = dataset.tokenizer.vocab_size();
  if (recipe.data.tokenizer.empty() && recipe.train.init_from.empty() && tokens < wanted) {
    notes.push_back(fmt::format("data.tokenizer: the text has pairs for {} tokens, not for {}", tokens, wanted));
  }
  for (size_t i = 0; drawn.size() > 1 && i < drawn.size(); ++i) {
    const std::string& name = dataset.train_name(i);
    if (dataset.streamed) {
      notes.push_back(fmt::format("{}: {} of {} sequences", name, drawn[i], samples));
      continue;
    }
    notes.push_back(fmt::format("{}: {} tokens, {} of {} sequences, {:.3g} epochs", name,
                                format_count(static_cast<double>(dataset.train[i].tokens.size())), drawn[i], samples,
                                rows.epochs(i, drawn[i]).value()));
  }
  for (size_t i = 0; i < dataset.train.size(); ++i) {
    const WholeDocuments* whole = rows.whole_documents(i);
    if (whole == nullptr) continue;
    notes.push_back(fmt::format("{}: {}", dataset.train_name(i), fill_note(*whole, recipe.data.has_chats())));
  }
  if (dataset.num_skipped_lines > 0) {
    notes.push_back(fmt::format(
        "{} left out (data.skip_bad_lines): not JSON, or {}",
        dataset.num_skipped_lines == 1 ? "1 line is" : fmt::format("{} lines are", dataset.num_skipped_lines),
        recipe.data.task.has_records() ? "no record"
        : recipe.data.has_chats()      ? "not a chat with an answer that fits the template"
        : recipe.data.field.empty()    ? "no text in the field"
                                       : "no text in " + recipe.data.field));
  }
  for (std::string& note : rows.notes()) notes.push_back(std::move(note));
  for (const std::string& note : notes_of(dataset.chats)) {
    notes.push_back((dataset.streamed ? "the validation text: " : "") + note);
  }
  return notes;
}

std::optional<PackRule> pack_rule(const Recipe::Data& data, const Tokenizer& tokenizer) {
  if (!data.packs_documents()) return std::nullopt;
  return PackRule{.end_of_text = data.has_chats() ? 0 : tokenizer.end_of_text().value(),
                  .restarts = data.positions == "restart"};
}

namespace {

Dataset::Text tokenized_chats(const Recipe::Data& data, const DataFolders& folders, const Tokenizer& tokenizer,
                              const std::vector<std::string_view>& chats, DataObserver& observer) {
  if (chats.empty()) {
    throw DataError({"data", join(data.text), "leaves no chat for training, or none for validation", "",
                     "give more of them, or another data.validation_fraction"});
  }
  ChatTokens made = open_or_build_chats(folders.cache, chats, tokenizer, observer);
  Dataset::Text text{.tokens = std::move(made.tokens), .marks = std::move(made.marks)};
  if (!data.packs_documents()) return text;
  text.documents.emplace(*text.marks, ends_chat, data.positions == "restart");
  return text;
}

}  // namespace

Dataset::Text tokenized_text(const Recipe::Data& data, const DataFolders& folders, const Tokenizer& tokenizer,
                             const std::vector<std::string_view>& documents, DataObserver& observer) {
  if (data.has_chats()) return tokenized_chats(data, folders, tokenizer, documents, observer);
  Dataset::Text text{.tokens = open_or_build(folders.cache, documents, tokenizer, observer)};
  if (const auto rule = pack_rule(data, tokenizer)) {
    text.documents.emplace(text.tokens, rule->end_of_text, rule->restarts);
  }
  return text;
}

std::vector<std::string_view> texts_of(const Recipe::Data& data, const std::vector<std::string_view>& documents,
                                       std::vector<std::string>& plain) {
  if (!data.has_chats() && !data.task.has_records()) return documents;
  for (const std::string_view document : documents) {
    if (!data.task.has_records()) {
      plain.push_back(RenderedChat::from_json(document).text);
      continue;
    }
    Record record = Record::from_json(document);
    plain.push_back(std::move(record.first));
    if (!record.second.empty()) plain.push_back(std::move(record.second));
    if (!record.third.empty()) plain.push_back(std::move(record.third));
  }
  return {plain.begin(), plain.end()};
}

namespace {

Dataset::Text tokenized(const Recipe::Data& data, const DataFolders& folders, const Tokenizer& tokenizer,
                        const std::vector<std::string_view>& documents, const RecordLabels& labels,
                        DataObserver& observer) {
  return data.task.has_records() ? tokenized_records(data, folders, tokenizer, documents, labels, observer)
                                 : tokenized_text(data, folders, tokenizer, documents, observer);
}

}  // namespace

Dataset open_dataset(const Recipe::Data& data, const DataFolders& folders, DataObserver& observer, StreamRole role,
                     int64_t context) {
  if (data.streaming) return open_streamed_dataset(data, folders, observer, role, context);
  const std::vector<TrainPaths> sources = train_paths(data);
  std::vector<SplitCorpus> corpora;
  std::vector<std::string_view> all_train;
  std::vector<std::string_view> all_validation;
  int64_t num_skipped_lines = 0;
  ChatCounts chats;
  const auto open = [&](const std::vector<std::string>& paths, const std::string& name) {
    const SplitCorpus& opened = corpora.emplace_back(open_corpus(paths, data, folders, observer));
    num_skipped_lines += opened.corpus.num_skipped_lines();
    chats += opened.corpus.chats();
    check_answers(name, opened.corpus.chats());
    return opened.split;
  };
  std::vector<TextSplit> splits;
  for (const TrainPaths& source : sources) {
    splits.push_back(open(source.paths, source.name));
    append(all_train, splits.back().train);
    append(all_validation, splits.back().validation);
  }
  if (!data.validation.empty()) all_validation = open(data.validation, join(data.validation)).train;

  std::vector<std::string> classes;
  if (data.task.kind == "classify") classes = checked_class_names(data, all_train);
  const auto place_of = [&](std::string_view record, int64_t line) {
    for (const SplitCorpus& one : corpora) {
      if (const fs::path* file = one.corpus.file_of(record)) return fmt::format("{}:{}", file->string(), line);
    }
    return fmt::format("line {}", line);
  };
  const auto make_text = [&](const Tokenizer& tokenizer, const std::vector<std::string_view>& documents) {
    return tokenized(data, folders, tokenizer, documents, {classes, place_of}, observer);
  };
  std::vector<std::string> plain;
  if (data.tokenizer.empty()) all_train = texts_of(data, all_train, plain);
  Tokenizer tokenizer = open_tokenizer(data, folders, all_train, observer);
  std::vector<Dataset::Text> train;
  for (size_t i = 0; i < sources.size(); ++i) {
    train.push_back(make_text(tokenizer, splits[i].train));
    train.back().name = sources[i].name;
    train.back().weight = sources[i].weight;
  }
  Dataset::Text validation = make_text(tokenizer, all_validation);
  trim_cache(folders.cache, folders.cache_limit_bytes);
  return {.tokenizer = std::move(tokenizer),
          .train = std::move(train),
          .validation = std::move(validation),
          .num_skipped_lines = num_skipped_lines,
          .chats = chats,
          .class_names = std::move(classes)};
}

Dataset open_evaluation(const Recipe::Data& data, const DataFolders& folders, const Tokenizer& tokenizer,
                        DataObserver& observer) {
  check_end_of_text(data, tokenizer);
  const Corpus corpus(find_all_texts(data.text, folders), folders.cache, text_format(data, folders), observer);
  check_answers(join(data.text), corpus.chats());
  std::vector<std::string> classes;
  if (data.task.kind == "classify") classes = checked_class_names(data, corpus.documents());
  const auto place_of = [&](std::string_view record, int64_t line) {
    return fmt::format("{}:{}", corpus.file_of(record)->string(), line);
  };
  Dataset::Text text = tokenized(data, folders, tokenizer, corpus.documents(), {classes, place_of}, observer);
  trim_cache(folders.cache, folders.cache_limit_bytes);
  return {.tokenizer = tokenizer,
          .train = {},
          .validation = std::move(text),
          .num_skipped_lines = corpus.num_skipped_lines(),
          .chats = corpus.chats(),
          .class_names = std::move(classes)};
}

}  // namespace caravan
