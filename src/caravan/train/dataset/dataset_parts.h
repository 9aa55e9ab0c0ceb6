#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "caravan/train/dataset/dataset.h"

namespace caravan {

// Common parts of open_dataset for whole and streamed texts.

/// The tokenizer that `data` names, or one trained on `text`. Throws UsageError for data.pack = "documents" and a
/// tokenizer without an end-of-text token.
Tokenizer open_tokenizer(const Recipe::Data& data, const DataFolders& folders,
                         const std::vector<std::string_view>& text, DataObserver& observer);

std::optional<PackRule> pack_rule(const Recipe::Data& data, const Tokenizer& tokenizer);

Dataset::Text tokenized_text(const Recipe::Data& data, const DataFolders& folders, const Tokenizer& tokenizer,
                             const std::vector<std::string_view>& documents, DataObserver& observer);

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
                              StreamRole role);

}  // namespace caravan
