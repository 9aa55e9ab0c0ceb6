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

/// A list of texts, of whole numbers, or of sources.
std::optional<RecipeValue> read_array(const toml::array& array, std::string& wrong) {
  std::vector<std::string> texts;
  std::vector<int64_t> numbers;
  std::vector<DataSource> sources;
  for (const auto& item : array) {
    if (const auto* text = item.as_string()) texts.push_back(text->get());
    if (const auto* number = item.as_integer()) numbers.push_back(number->get());
    if (const auto* table = item.as_table()) {
      const std::optional<DataSource> source = source_of(*table);
      if (source) sources.push_back(*source);
      if (!source) wrong = "has an entry that is not {path = \"FILE\", weight = NUMBER}";
    }
  }
  if (texts.size() == array.size()) return texts;
  if (numbers.size() == array.size()) return numbers;
  if (sources.size() == array.size()) return sources;
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
