#pragma once

#include <cstdint>
#include <optional>
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

/// A number at a step of a run: [1000, 0.1].
struct StepPoint {
  int64_t step;
  double value;
  bool operator==(const StepPoint&) const = default;
};

/// Parameters with a learning rate and a decay of their own: {parameters = ["embedding.*"], lr_factor = 0.1}.
struct ParameterGroup {
  std::vector<std::string> parameters;  ///< patterns of names
  double lr_factor = 1;
  std::optional<double> weight_decay{};  ///< of all of them; none: that of the optimizer
  bool operator==(const ParameterGroup&) const = default;
};

/// One value of a recipe.
using RecipeValue =
    std::variant<bool, int64_t, double, std::string, std::vector<std::string>, std::vector<int64_t>, TrainTokenizer,
                 std::vector<DataSource>, std::vector<StepPoint>, std::vector<ParameterGroup>>;

/// One value as TOML.
std::string to_toml(const RecipeValue& value);

}  // namespace caravan
