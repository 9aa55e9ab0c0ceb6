#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/data/files/record.h"
#include "caravan/data/tasks/records.h"
#include "caravan/train/dataset/dataset.h"

namespace caravan {

// Common parts of open_dataset for whole and streamed texts.

/// Throws UsageError for a tokenizer without an end-of-text token if data.pack or data.fill tells documents apart.
void check_end_of_text(const Recipe::Data& data, const Tokenizer& tokenizer);

/// The fraction of data.text that is for validation.
inline double validation_part(const Recipe::Data& data) {
  return data.validation.empty() ? data.validation_fraction : 0;
}

/// Whether the weights that the run starts from belong to other tokens.
bool differs_from_source(const Recipe::Data& data, const Tokenizer& tokenizer);

/// The tokenizer that `data` names, or one trained on `text`. Throws as check_end_of_text, UsageError for "bytes" or
/// a trained one that differs_from_source, and DataError if the source is a folder without tokenizer.json.
Tokenizer open_tokenizer(const Recipe::Data& data, const DataFolders& folders,
                         const std::vector<std::string_view>& text, DataObserver& observer);

std::optional<PackRule> pack_rule(const Recipe::Data& data, const Tokenizer& tokenizer);

Dataset::Text tokenized_text(const Recipe::Data& data, const DataFolders& folders, const Tokenizer& tokenizer,
                             const std::vector<std::string_view>& documents, DataObserver& observer);

/// The texts of documents, for training a tokenizer; those of chats and records are put into `plain`.
std::vector<std::string_view> texts_of(const Recipe::Data& data, const std::vector<std::string_view>& documents,
                                       std::vector<std::string>& plain);

/// The fields of records that `data` names.
RecordFields record_fields(const Recipe::Data& data);
/// The names of the classes, in order: those that `data` names, those of the model that the run starts from if the
/// training records have no others, else class_names_of these. Throws DataError unless there are two classes or more.
std::vector<std::string> checked_class_names(const Recipe::Data& data, const std::vector<std::string_view>& records);

struct RecordLabels {
  const std::vector<std::string>& classes;
  PlaceOfRecord place_of;
};
/// The same as tokenized_text, for a task of records.
Dataset::Text tokenized_records(const Recipe::Data& data, const DataFolders& folders, const Tokenizer& tokenizer,
                                const std::vector<std::string_view>& records, const RecordLabels& labels,
                                DataObserver& observer);

/// The files given by some paths of a recipe.
std::vector<std::filesystem::path> find_all_texts(const std::vector<std::string>& paths, const DataFolders& folders);

/// The training texts with their weights: data.text, or the mixture.
struct TrainPaths {
  std::vector<std::string> paths;
  std::string name;
  double weight;
};
std::vector<TrainPaths> train_paths(const Recipe::Data& data);

/// Implements open_dataset with data.streaming.
Dataset open_streamed_dataset(const Recipe::Data& data, const DataFolders& folders, DataObserver& observer,
                              StreamRole role, int64_t context);

}  // namespace caravan
