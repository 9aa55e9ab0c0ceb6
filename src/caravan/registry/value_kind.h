#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/registry/value.h"

namespace caravan {

/// The values that a key accepts.
struct ValueKind {
  /// Returns what is wrong with `given`, or "" and the value to store in `taken`.
  std::function<std::string(const RecipeValue& given, RecipeValue& taken)> take;
  /// How a stored value is written.
  std::function<RecipeValue(const RecipeValue& kept)> show = [](const RecipeValue& kept) { return kept; };
  std::vector<RecipeValue> choices{};  ///< every value, if they can be listed; else empty
};

struct Range {
  double low;
  double high = std::numeric_limits<double>::max();
};

/// What is wrong with a number; "" if nothing.
std::string out_of(const Range& range, double value);
/// "3 is not a string"
std::string is_not(const RecipeValue& value, std::string_view kind);

// The stored value is a bool, an int64_t, a double, a std::string, a std::vector of these or of points.
ValueKind whole_number(Range range);
ValueKind real_number(Range range);
ValueKind true_or_false();
ValueKind any_text();
/// A text that is one of `choices`.
ValueKind one_of(std::vector<std::string> choices);
/// Points of a course over a run, [[STEP, NUMBER], ..], at rising steps from 0 on; [] : none.
ValueKind step_points(Range range);
/// A list of non-empty texts; a single text is a list of one.
ValueKind list_of_texts();
/// A number of bytes such as "1.5G", kept as a text; "": none.
ValueKind byte_count();
/// The same, or one of `words`; not "".
ValueKind byte_count_or(std::vector<std::string> words);
/// A whole number in `range`, or `word`, which stands for `value_of_word`.
ValueKind whole_number_or(Range range, std::string word, int64_t value_of_word);

}  // namespace caravan
