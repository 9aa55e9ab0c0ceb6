#include "caravan/registry/value_kind.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "caravan/base/text.h"

namespace caravan {

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

ValueKind whole_number(Range range) {
  return {[range](const RecipeValue& given, RecipeValue& taken) -> std::string {
    const auto* number = std::get_if<int64_t>(&given);
    if (number == nullptr) return is_not(given, "a whole number");
    taken = *number;
    return out_of(range, static_cast<double>(*number));
  }};
}

ValueKind byte_count() {
  return {[](const RecipeValue& given, RecipeValue& taken) -> std::string {
    const auto* whole = std::get_if<int64_t>(&given);
    const auto* text = std::get_if<std::string>(&given);
    if (whole == nullptr && text == nullptr) return is_not(given, "a number of bytes such as \"1.5G\"");
    taken = whole != nullptr ? std::to_string(*whole) : *text;
    const std::string& kept = std::get<std::string>(taken);
    if (kept.empty()) return "";
    const std::optional<int64_t> bytes = parse_bytes(kept);
    if (!bytes || *bytes == 0) return is_not(given, "a number of bytes such as \"1.5G\", above 0");
    return "";
  }};
}

ValueKind byte_count_or(std::vector<std::string> words) {
  return {[words = std::move(words)](const RecipeValue& given, RecipeValue& taken) -> std::string {
    const auto* text = std::get_if<std::string>(&given);
    if (text != nullptr && std::ranges::find(words, *text) != words.end()) {
      taken = given;
      return "";
    }
    const std::string wrong = text != nullptr && text->empty() ? "empty" : byte_count().take(given, taken);
    if (wrong.empty()) return "";
    return is_not(given, "\"" + join(words, "\", \"") + "\" or a number of bytes such as \"16M\", above 0");
  }};
}

ValueKind real_number(Range range) {
  return {[range](const RecipeValue& given, RecipeValue& taken) -> std::string {
    const auto* whole = std::get_if<int64_t>(&given);
    const auto* number = std::get_if<double>(&given);
    if (whole == nullptr && number == nullptr) return is_not(given, "a number");
    const double value = whole != nullptr ? static_cast<double>(*whole) : *number;
    taken = value;
    return out_of(range, value);
  }};
}

ValueKind true_or_false() {
  return {.take = [](const RecipeValue& given, RecipeValue& taken) -> std::string {
            taken = given;
            return std::holds_alternative<bool>(given) ? "" : is_not(given, "true or false");
          },
          .choices = {true, false}};
}

ValueKind any_text() {
  return {[](const RecipeValue& given, RecipeValue& taken) -> std::string {
    taken = given;
    return std::holds_alternative<std::string>(given) ? "" : is_not(given, "a string");
  }};
}

ValueKind one_of(std::vector<std::string> choices) {
  std::vector<RecipeValue> all(choices.begin(), choices.end());
  return {.take = [choices = std::move(choices)](const RecipeValue& given, RecipeValue& taken) -> std::string {
            taken = given;
            const auto* word = std::get_if<std::string>(&given);
            if (word == nullptr) return is_not(given, "a string");
            return std::ranges::find(choices, *word) == choices.end() ? not_one_of(*word, choices) : "";
          },
          .choices = std::move(all)};
}

ValueKind list_of_texts() {
  return {[](const RecipeValue& given, RecipeValue& taken) -> std::string {
    std::vector<std::string> all;
    if (const auto* one = std::get_if<std::string>(&given)) {
      all = {*one};
    } else if (const auto* many = std::get_if<std::vector<std::string>>(&given)) {
      all = *many;
    } else {
      return is_not(given, "a name or a list of names");
    }
    const bool names_nothing = std::ranges::find(all, "") != all.end();
    taken = std::move(all);
    return names_nothing ? "names nothing" : "";
  }};
}

ValueKind step_points(Range range) {
  return {[range](const RecipeValue& given, RecipeValue& taken) -> std::string {
    const auto* texts = std::get_if<std::vector<std::string>>(&given);
    const bool is_empty = texts != nullptr && texts->empty();
    const auto* points = std::get_if<std::vector<StepPoint>>(&given);
    if (points == nullptr && !is_empty) return is_not(given, "a list of [STEP, NUMBER]");
    int64_t before = -1;
    for (const StepPoint& point : is_empty ? std::vector<StepPoint>{} : *points) {
      if (point.step < 0) return fmt::format("step {} is too small, must be at least 0", point.step);
      if (point.step <= before) return fmt::format("step {} comes after step {}: steps must rise", point.step, before);
      before = point.step;
      const std::string wrong = out_of(range, point.value);
      if (!wrong.empty()) return fmt::format("at step {}: {}", point.step, wrong);
    }
    taken = is_empty ? std::vector<StepPoint>{} : *points;
    return "";
  }};
}

ValueKind whole_number_or(Range range, std::string word, int64_t value_of_word) {
  return {[range, word, value_of_word](const RecipeValue& given, RecipeValue& taken) -> std::string {
            const auto* text = std::get_if<std::string>(&given);
            const auto* number = std::get_if<int64_t>(&given);
            const bool is_word = text != nullptr && *text == word;
            if (!is_word && number == nullptr) return is_not(given, "a whole number or \"" + word + "\"");
            taken = is_word ? value_of_word : *number;
            return is_word ? "" : out_of(range, static_cast<double>(*number));
          },
          [word, value_of_word](const RecipeValue& kept) -> RecipeValue {
            if (std::get<int64_t>(kept) == value_of_word) return word;
            return kept;
          }};
}

}  // namespace caravan
