#pragma once

#include <cstdint>
#include <string>

#include "caravan/recipe/recipe.h"

namespace caravan::app {

/// Rows of a model's embedding, known before its tokenizer is trained.
struct Vocabulary {
  int64_t size;
  std::string note;  ///< source of the number
};

/// The vocabulary of the model of a recipe. Throws UsageError if it is smaller than its tokenizer, DataError for a
/// tokenizer that cannot be read.
Vocabulary vocabulary_of(const Recipe& recipe);

}  // namespace caravan::app
