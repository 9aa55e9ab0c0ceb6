#include "caravan/recipe/recipe_value.h"

namespace caravan {
namespace {

/// The entry of data.sources in a table; nothing if the table is not one.
std::optional<DataSource> source_of(const toml::table& table) {
  const auto* path = table.get_as<std::string>("path");
  if (path == nullptr) return std::nullopt;
  DataSource source{.path = path->get()};
  for (const auto& [key, value] : table) {
    if (key == "path") continue;
    const auto weight = value.value<double>();
    if (key != "weight" || !value.is_number() || !weight) return std::nullopt;
    source.weight = *weight;
  }
  return source;
}

/// The number that `node` is; nothing if it is none.
std::optional<double> number_of(const toml::node& node) {
  return node.is_number() ? node.value<double>() : std::nullopt;
}

/// The entry of optimizer.groups in a table; nothing if the table is not one.
std::optional<ParameterGroup> group_of(const toml::table& table) {
  ParameterGroup group;
  for (const auto& [key, value] : table) {
    const std::optional<double> number = number_of(value);
    if (key == "parameters") {
      if (const auto* one = value.as_string()) group.parameters.push_back(one->get());
      const auto* many = value.as_array();
      for (size_t i = 0; many != nullptr && i < many->size(); ++i) {
        if (!(*many)[i].is_string()) return std::nullopt;
        group.parameters.push_back((*many)[i].as_string()->get());
      }
    } else if (key == "lr_factor" && number) {
      group.lr_factor = *number;
    } else if (key == "weight_decay" && number) {
      group.weight_decay = number;
    } else {
      return std::nullopt;
    }
  }
  return group.parameters.empty() ? std::nullopt : std::optional(group);
}

/// What an array of tables holds: lists of them are either sources or groups.
struct Tables {
  std::vector<DataSource> sources;
  std::vector<ParameterGroup> groups;
  std::string wrong;

  void add(const toml::table& table) {
    const bool is_group = table.contains("parameters") || table.contains("lr_factor") || table.contains("weight_decay");
    if (is_group) {
      if (const auto group = group_of(table)) return groups.push_back(*group);
      wrong = "has an entry that is not {parameters = [NAMES], lr_factor = NUMBER, weight_decay = NUMBER}";
    } else {
      if (const auto source = source_of(table)) return sources.push_back(*source);
      wrong = "has an entry that is not {path = \"FILE\", weight = NUMBER}";
    }
  }
};

/// [STEP, NUMBER]; nothing if the array is not that.
std::optional<StepPoint> point_of(const toml::array& pair) {
  if (pair.size() != 2 || !pair[0].is_integer() || !pair[1].is_number()) return std::nullopt;
  return StepPoint{pair[0].as_integer()->get(), *pair[1].value<double>()};
}

/// A list of texts, of whole numbers, of points, of sources, or of groups.
std::optional<RecipeValue> read_array(const toml::array& array, std::string& wrong) {
  std::vector<std::string> texts;
  std::vector<int64_t> numbers;
  std::vector<StepPoint> points;
  Tables tables;
  for (const auto& item : array) {
    if (const auto* text = item.as_string()) texts.push_back(text->get());
    if (const auto* number = item.as_integer()) numbers.push_back(number->get());
    if (const auto* pair = item.as_array()) {
      const std::optional<StepPoint> point = point_of(*pair);
      if (point) points.push_back(*point);
      if (!point) wrong = "has an entry that is not [STEP, NUMBER]";
    }
    if (const auto* table = item.as_table()) tables.add(*table);
  }
  if (texts.size() == array.size()) return texts;
  if (numbers.size() == array.size()) return numbers;
  if (tables.sources.size() == array.size()) return tables.sources;
  if (tables.groups.size() == array.size()) return tables.groups;
  if (points.size() == array.size()) return points;
  if (!tables.wrong.empty()) wrong = tables.wrong;
  if (wrong.empty()) wrong = "has entries of different or unknown kinds";
  return std::nullopt;
}

}  // namespace

std::optional<RecipeValue> read_value(const toml::node& node, std::string& wrong) {
  if (const auto* boolean = node.as_boolean()) return boolean->get();
  if (const auto* integer = node.as_integer()) return integer->get();
  if (const auto* real = node.as_floating_point()) return real->get();
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* array = node.as_array()) return read_array(*array, wrong);
  if (const auto* table = node.as_table()) {
    const auto* vocabulary = table->size() == 1 ? table->get_as<int64_t>("train") : nullptr;
    if (vocabulary != nullptr) return TrainTokenizer{vocabulary->get()};
  }
  wrong = "dates, times and nested values are not supported";
  return std::nullopt;
}

}  // namespace caravan
