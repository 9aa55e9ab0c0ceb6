#include "caravan/train/dataset/dataset.h"

#include <optional>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/content_hash.h"
#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/data/chat/chat_template.h"
#include "caravan/data/files/record.h"
#include "caravan/data/files/text_paths.h"
#include "caravan/data/tokenizer/bpe_trainer.h"
#include "caravan/data/windows/cache.h"
#include "caravan/train/dataset/dataset_parts.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kTrainerVersion = 1;  ///< increment when train_bpe produces different tokens for the same text

/// The special tokens of a tokenizer that is trained for a task, besides the end of a text.
std::vector<std::string> special_tokens_for(const TaskChoice& task) {
  constexpr int kSentinels = 100;  // as T5 has
  if (task.kind == "masked" || task.kind == "classify") return {"[PAD]", "[CLS]", "[SEP]", "[MASK]"};
  if (task.kind == "next") return {};
  std::vector<std::string> tokens{"<pad>"};
  for (int i = 0; task.kind == "spans" && i < kSentinels; ++i) tokens.push_back(fmt::format("<extra_id_{}>", i));
  return tokens;
}

fs::path trained_tokenizer_path(const std::vector<std::string_view>& text, int64_t vocabulary,
                                const std::vector<std::string>& special, const fs::path& cache,
                                DataObserver& observer) {
  ContentHasher hasher;
  hasher.update(kTrainerVersion);
  hasher.update(static_cast<uint64_t>(vocabulary));
  for (const std::string& token : special) hasher.update(token);
  SecondPass hashing(observer);
  for (const std::string_view part : text) {
    hasher.update(static_cast<uint64_t>(part.size()));
    in_pieces(part, hashing, [&](std::string_view piece) { hasher.update(piece); });
  }
  return cache / ("tokenizer-" + hasher.value().hex() + ".json");
}

Tokenizer trained_tokenizer(const std::vector<std::string_view>& text, const Recipe::Data& data, const fs::path& cache,
                            DataObserver& observer) {
  const std::vector<std::string> special = special_tokens_for(data.task);
  const fs::path path = trained_tokenizer_path(text, data.trained_vocabulary, special, cache, observer);
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
    tokenizer = train_bpe(text, data.trained_vocabulary, {.more_special = special}, observer);
    tokenizer->save(path);
  };
  find_or_build(path, find, build, observer);
  return *tokenizer;
}

/// The folders in which `path` is looked up.
std::vector<fs::path> starts_of(const std::string& path, const DataFolders& folders) {
  std::error_code error;
  std::vector<fs::path> starts{fs::current_path(error)};
  for (const fs::path& folder : {folders.recipe, folders.home}) {
    if (!folder.empty() && !fs::path(path).is_absolute()) starts.push_back(folder);
  }
  return starts;
}

[[noreturn]] void refuse_missing(const std::string& path, const DataFolders& folders, const char* fact) {
  std::vector<std::string> looked_up;
  for (const fs::path& start : starts_of(path, folders)) looked_up.push_back(start.string());
  throw DataError({"data", path, fact, "looked up from " + join(looked_up), "name a file that exists"});
}

/// The files of a text, and a path that is valid from any folder.
struct FoundText {
  std::vector<fs::path> files;
  fs::path path;
};

FoundText find_text(const std::string& path, const DataFolders& folders) {
  std::error_code error;
  for (const fs::path& start : starts_of(path, folders)) {
    const fs::path absolute = fs::absolute(start / path, error).lexically_normal();
    std::vector<fs::path> files = text_files(absolute);
    if (!files.empty()) return {std::move(files), absolute};
  }
  refuse_missing(path, folders, is_pattern(path) ? "no file matches" : "no such file");
}

/// The text that some paths name, split in two.
struct SplitCorpus {
  Corpus corpus;
  TextSplit split;
};

SplitCorpus open_corpus(const std::vector<std::string>& paths, const Recipe::Data& data, const DataFolders& folders,
                        DataObserver& observer) {
  Corpus corpus(find_all_texts(paths, folders), folders.cache, text_format(data, folders), observer);
  TextSplit split =
      corpus.split(data.validation.empty() ? data.validation_fraction : 0, data.has_chats() || data.task.has_records());
  return {std::move(corpus), std::move(split)};
}

void append(std::vector<std::string_view>& all, const std::vector<std::string_view>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

}  // namespace

fs::path find_file(const std::string& path, const DataFolders& folders) {
  std::error_code error;
  for (const fs::path& start : starts_of(path, folders)) {
    const fs::path file = fs::absolute(start / path, error).lexically_normal();
    if (fs::exists(file, error)) return file;
  }
  refuse_missing(path, folders, "no such file");
}

std::vector<fs::path> find_texts(const std::string& path, const DataFolders& folders) {
  return find_text(path, folders).files;
}

TextFormat text_format(const Recipe::Data& data, const DataFolders& folders) {
  TextFormat format{.field = data.field, .skips_bad_lines = data.skip_bad_lines};
  if (data.has_chats()) format.chat = find_chat_template(data, folders);
  if (data.task.has_records()) format.record = std::make_shared<const RecordFields>(record_fields(data));
  if (format.field.empty()) format.field = data.has_chats() ? "messages" : "text";
  return format;
}

std::vector<std::string> text_paths(const Recipe::Data& data) {
  if (data.sources.empty()) return data.text;
  std::vector<std::string> paths;
  for (const DataSource& source : data.sources) paths.push_back(source.path);
  return paths;
}

void resolve_files(Recipe::Data& data, const DataFolders& folders) {
  const auto resolve = [](std::string& path, const auto& find) {
    fs::path found;
    try {
      found = find(path);
    } catch (const DataError&) {
      return;  // reported where the file is opened
    }
    if (!is_utf8(found.string())) {
      throw UsageError({"recipe", found.string(), "the path is not UTF-8, and recipes are", "",
                        "rename the folder or the file, or give it a link in UTF-8"});
    }
    path = found.string();
  };
  const auto text = [&](const std::string& path) { return find_text(path, folders).path; };
  for (std::string& path : data.text) resolve(path, text);
  for (DataSource& source : data.sources) resolve(source.path, text);
  for (std::string& path : data.validation) resolve(path, text);
  if (!data.chat_template.empty()) {
    resolve(data.chat_template, [&](const std::string& path) { return find_file(path, folders); });
  }
  if (data.tokenizer.empty() || data.tokenizer == "bytes") return;
  resolve(data.tokenizer, [&](const std::string& path) { return find_file(path, folders); });
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

TrainWindows Dataset::train_windows(int64_t context, int64_t seed) const {
  std::vector<TrainSource> sources;
  for (const Text& text : train) {
    sources.push_back({.tokens = &text.tokens,
                       .documents = text.documents ? &*text.documents : nullptr,
                       .marks = text.marks ? &*text.marks : nullptr,
                       .weight = text.weight,
                       .name = train.size() == 1 ? "" : text.name});
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

ValidationWindows Dataset::validation_windows(int64_t context) const {
  return {validation.tokens, context, validation.documents ? &*validation.documents : nullptr, std::nullopt,
          validation.marks ? &*validation.marks : nullptr};
}

std::vector<std::string> dataset_notes(const Dataset& dataset, const TaskRows& rows, const Recipe& recipe) {
  std::vector<std::string> notes;
  const int64_t samples = recipe.train.steps * recipe.train.global_batch;
  const std::vector<int64_t> drawn = rows.drawn(samples);
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
  if (dataset.num_skipped_lines > 0) {
    notes.push_back(fmt::format(
        "{} left out (data.skip_bad_lines): not JSON, or {}",
        dataset.num_skipped_lines == 1 ? "1 line is" : fmt::format("{} lines are", dataset.num_skipped_lines),
        recipe.data.has_chats()          ? "not a chat with an answer that fits the template"
        : recipe.data.task.has_records() ? "no record"
        : recipe.data.field.empty()      ? "no text in the field"
                                         : "no text in " + recipe.data.field));
  }
  return notes;
}

std::vector<fs::path> find_all_texts(const std::vector<std::string>& paths, const DataFolders& folders) {
  std::vector<fs::path> files;
  for (const std::string& path : paths) {
    for (fs::path& file : find_texts(path, folders)) files.push_back(std::move(file));
  }
  return files;
}

std::vector<TrainPaths> train_paths(const Recipe::Data& data) {
  if (data.sources.empty()) return {{.paths = data.text, .name = join(data.text), .weight = 1}};
  std::vector<TrainPaths> all;
  for (const DataSource& source : data.sources) {
    all.push_back({.paths = {source.path}, .name = source.path, .weight = source.weight});
  }
  return all;
}

Tokenizer open_tokenizer(const Recipe::Data& data, const DataFolders& folders,
                         const std::vector<std::string_view>& text, DataObserver& observer) {
  Tokenizer tokenizer = data.tokenizer == "bytes" ? Tokenizer::bytes()
                        : data.tokenizer.empty()  ? trained_tokenizer(text, data, folders.cache, observer)
                                                  : Tokenizer::load(find_file(data.tokenizer, folders));
  if (data.packs_documents() && !data.has_chats() && !tokenizer.end_of_text()) {
    throw UsageError({"data", "data.pack",
                      "documents are separated by an end-of-text token, and the tokenizer has none", "",
                      "use data.pack = \"none\", or a tokenizer with one: data.tokenizer = {train = 2048}"});
  }
  return tokenizer;
}

std::optional<PackRule> pack_rule(const Recipe::Data& data, const Tokenizer& tokenizer) {
  if (!data.packs_documents()) return std::nullopt;
  return PackRule{.end_of_text = tokenizer.end_of_text().value(), .restarts = data.positions == "restart"};
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
  const auto is_end = [](int64_t mark) { return (mark & kEndsChat) != 0; };
  text.documents.emplace(*text.marks, is_end, data.positions == "restart");
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

namespace {

/// The texts of documents, for training a tokenizer; those of chats and records are put into `plain`.
std::vector<std::string_view> texts_of(const Recipe::Data& data, const std::vector<std::string_view>& documents,
                                       std::vector<std::string>& plain) {
  if (!data.has_chats() && !data.task.has_records()) return documents;
  for (const std::string_view document : documents) {
    if (data.has_chats()) {
      plain.push_back(RenderedChat::from_json(document).text);
      continue;
    }
    Record record = Record::from_json(document);
    plain.push_back(std::move(record.first));
    if (!record.second.empty()) plain.push_back(std::move(record.second));
  }
  return {plain.begin(), plain.end()};
}

}  // namespace

Dataset open_dataset(const Recipe::Data& data, const DataFolders& folders, DataObserver& observer, StreamRole role) {
  if (data.streaming) return open_streamed_dataset(data, folders, observer, role);
  const std::vector<TrainPaths> sources = train_paths(data);
  std::vector<SplitCorpus> corpora;
  std::vector<std::string_view> all_train;
  std::vector<std::string_view> all_validation;
  int64_t num_skipped_lines = 0;
  const auto open = [&](const std::vector<std::string>& paths) {
    const SplitCorpus& opened = corpora.emplace_back(open_corpus(paths, data, folders, observer));
    num_skipped_lines += opened.corpus.num_skipped_lines();
    return opened.split;
  };
  std::vector<TextSplit> splits;
  for (const TrainPaths& source : sources) {
    splits.push_back(open(source.paths));
    append(all_train, splits.back().train);
    append(all_validation, splits.back().validation);
  }
  if (!data.validation.empty()) all_validation = open(data.validation).train;

  std::vector<std::string> classes;
  if (data.task.kind == "classify") classes = checked_class_names(data, all_train);
  const auto place_of = [&](std::string_view record, int64_t line) {
    for (const SplitCorpus& one : corpora) {
      if (const fs::path* file = one.corpus.file_of(record)) return fmt::format("{}:{}", file->string(), line);
    }
    return fmt::format("line {}", line);
  };
  const auto make_text = [&](const Tokenizer& tokenizer, const std::vector<std::string_view>& documents) {
    return data.task.has_records()
               ? tokenized_records(data, folders, tokenizer, documents, {classes, place_of}, observer)
               : tokenized_text(data, folders, tokenizer, documents, observer);
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
          .class_names = std::move(classes)};
}

}  // namespace caravan
