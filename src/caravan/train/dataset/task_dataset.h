#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "caravan/data/tasks/record_task.h"
#include "caravan/data/tasks/task_rows.h"
#include "caravan/train/dataset/dataset.h"

namespace caravan {

/// How rows are made of the data of a run, as far as its model decides.
struct RowSettings {
  int64_t context = 0;
  int64_t source_context = 0;  ///< of an encoder-decoder; else 0
  LabelPlace label_place = LabelPlace::last;
  std::optional<int64_t> decoder_start{};  ///< default: the pad token
};
/// `checkpoint`: that a run resumes from, if any. Its model, or that of train.init_from, names the token that targets
/// start from.
RowSettings row_settings(const Recipe& recipe, const std::filesystem::path& checkpoint = {});

/// What the rows of the recipe will have, as far as a step sees it: without its data.
RowShape row_shape(const Recipe& recipe);

/// Gives the recipe the classes of the data, and the model as many. Throws UsageError for a recipe that has another
/// number.
void fit_classes(Recipe& recipe, const Dataset& dataset);

/// The rows of data.task, and those of its validation. They refer to the dataset, which must outlive them at its
/// present address. Throw UsageError for a task that the tokenizer or the model cannot have, ShapeError for contexts
/// that are too short, DataError for data that is.
std::unique_ptr<const TaskRows> train_rows(const Dataset& dataset, const Recipe::Data& data,
                                           const RowSettings& settings, int64_t seed);
std::unique_ptr<const ValidationRows> validation_rows(const Dataset& dataset, const Recipe::Data& data,
                                                      const RowSettings& settings);

}  // namespace caravan
