#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace caravan {

/// A tokenizer that is trained on the text: {train = 2048}.
struct TrainTokenizer {
  int64_t vocabulary;
  bool operator==(const TrainTokenizer&) const = default;
};

/// A text of a mixture: {path = "a.txt", weight = 2}.
struct DataSource {
  std::string path;   ///< as one of data.text
  double weight = 1;  ///< its share of the sequences, relative to the others'
  bool operator==(const DataSource&) const = default;
};

/// One value of a recipe.
using RecipeValue = std::variant<bool, int64_t, double, std::string, std::vector<std::string>, std::vector<int64_t>,
                                 TrainTokenizer, std::vector<DataSource>>;

/// One value as TOML.
std::string to_toml(const RecipeValue& value);

}  // namespace caravan
