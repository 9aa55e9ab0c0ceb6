#include "caravan/train/key_kinds.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "caravan/base/text.h"

namespace caravan {
namespace {

template <typename T>
T read(const Field<T>& field, const Recipe& recipe) {
  return field(const_cast<Recipe&>(recipe));  // NOLINT: only read
}

}  // namespace

std::string out_of(const Range& range, double value) {
  if (!std::isfinite(value)) return fmt::format("{} is not a finite number", value);
  const bool has_high = range.high < std::numeric_limits<double>::max();
  if (value < range.low) return fmt::format("{} is too small, must be at least {}", value, range.low);
  if (has_high && value > range.high) return fmt::format("{} is too large, must be at most {}", value, range.high);
  return "";
}

std::string is_not(const RecipeValue& value, std::string_view kind) {
  return fmt::format("{} is not {}", to_toml(value), kind);
}

RecipeKey integer(std::string name, std::string help, Field<int64_t> field, Range range) {
  return {std::move(name), std::move(help), [field](const Recipe& recipe) { return read(field, recipe); },
          [field, range](Recipe& recipe, const RecipeValue& value) -> std::string {
            const auto* number = std::get_if<int64_t>(&value);
            if (number == nullptr) return is_not(value, "a whole number");
            const std::string wrong = out_of(range, static_cast<double>(*number));
            if (wrong.empty()) field(recipe) = *number;
            return wrong;
          }};
}

RecipeKey real(std::string name, std::string help, Field<double> field, Range range) {
  return {std::move(name), std::move(help), [field](const Recipe& recipe) { return read(field, recipe); },
          [field, range](Recipe& recipe, const RecipeValue& value) -> std::string {
            const auto* whole = std::get_if<int64_t>(&value);
            const auto* number = std::get_if<double>(&value);
            if (whole == nullptr && number == nullptr) return is_not(value, "a number");
            const double given = whole != nullptr ? static_cast<double>(*whole) : *number;
            const std::string wrong = out_of(range, given);
            if (wrong.empty()) field(recipe) = given;
            return wrong;
          }};
}

RecipeKey boolean(std::string name, std::string help, Field<bool> field) {
  return {std::move(name), std::move(help), [field](const Recipe& recipe) { return read(field, recipe); },
          [field](Recipe& recipe, const RecipeValue& value) -> std::string {
            const auto* given = std::get_if<bool>(&value);
            if (given == nullptr) return is_not(value, "true or false");
            field(recipe) = *given;
            return "";
          }};
}

RecipeKey text(std::string name, std::string help, Field<std::string> field) {
  return {std::move(name), std::move(help), [field](const Recipe& recipe) { return read(field, recipe); },
          [field](Recipe& recipe, const RecipeValue& value) -> std::string {
            const auto* given = std::get_if<std::string>(&value);
            if (given == nullptr) return is_not(value, "a string");
            field(recipe) = *given;
            return "";
          }};
}

RecipeKey texts(std::string name, std::string help, Field<std::vector<std::string>> field) {
  return {std::move(name), std::move(help),
          [field](const Recipe& recipe) -> RecipeValue { return read(field, recipe); },
          [field](Recipe& recipe, const RecipeValue& value) -> std::string {
            std::vector<std::string>& all = field(recipe);
            if (const auto* one = std::get_if<std::string>(&value)) {
              all = {*one};
            } else if (const auto* many = std::get_if<std::vector<std::string>>(&value)) {
              all = *many;
            } else {
              return is_not(value, "a name or a list of names");
            }
            return std::ranges::find(all, "") != all.end() ? "names nothing" : "";
          }};
}

RecipeKey integer_or(std::string name, std::string help, Field<int64_t> field, Range range, std::string word,
                     int64_t value_of_word) {
  return {std::move(name), std::move(help),
          [field, word, value_of_word](const Recipe& recipe) -> RecipeValue {
            const int64_t value = read(field, recipe);
            if (value == value_of_word) return word;
            return value;
          },
          [field, range, word, value_of_word](Recipe& recipe, const RecipeValue& value) -> std::string {
            const auto* text = std::get_if<std::string>(&value);
            const auto* number = std::get_if<int64_t>(&value);
            const bool is_word = text != nullptr && *text == word;
            if (!is_word && number == nullptr) return is_not(value, "a whole number or \"" + word + "\"");
            const std::string wrong = is_word ? "" : out_of(range, static_cast<double>(*number));
            if (wrong.empty()) field(recipe) = is_word ? value_of_word : *number;
            return wrong;
          }};
}

RecipeKey choice(std::string name, std::string help, Field<std::string> field, std::vector<std::string> choices) {
  RecipeKey key = text(std::move(name), std::move(help), field);
  key.set = [set = key.set, choices](Recipe& recipe, const RecipeValue& value) -> std::string {
    const auto* given = std::get_if<std::string>(&value);
    if (given != nullptr && std::find(choices.begin(), choices.end(), *given) == choices.end()) {
      return not_one_of(*given, choices);
    }
    return set(recipe, value);
  };
  return key;
}

RecipeKey only_with(RecipeKey key, std::function<bool(const Recipe&)> condition, std::string reason) {
  key.idle = [condition = std::move(condition), reason = std::move(reason)](const Recipe& recipe) {
    return condition(recipe) ? std::string() : reason;
  };
  return key;
}

}  // namespace caravan
