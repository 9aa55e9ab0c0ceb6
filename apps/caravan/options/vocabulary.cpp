#include "apps/caravan/options/vocabulary.h"

#include <fmt/format.h>

#include "apps/caravan/launch/ranks.h"
#include "caravan/base/error.h"
#include "caravan/data/tokenizer/tokenizer.h"

namespace caravan::app {
namespace {

/// The vocabulary of the tokenizer.
Vocabulary tokens_of(const Recipe& recipe) {
  if (recipe.data.tokenizer.empty())
    return {recipe.data.trained_vocabulary, " (at most: the tokenizer is trained first)"};
  if (recipe.data.tokenizer == "bytes") return {256, " (bytes)"};
  return {Tokenizer::load(find_file(recipe.data.tokenizer, data_folders(recipe.folder))).vocab_size(), ""};
}

}  // namespace

Vocabulary vocabulary_of(const Recipe& recipe) {
  const Vocabulary tokens = tokens_of(recipe);
  const int64_t rows = recipe.model.vocabulary;
  if (rows == 0) return tokens;
  if (rows < tokens.size && !recipe.data.tokenizer.empty()) {
    throw UsageError({"inspect", "model.vocabulary",
                      fmt::format("{} rows for a tokenizer of {} tokens", rows, tokens.size),
                      recipe.where("model.vocabulary"), "leave it out, or use at least as many as there are tokens"});
  }
  return {rows, ""};
}

}  // namespace caravan::app
