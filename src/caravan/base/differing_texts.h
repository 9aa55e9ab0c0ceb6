#pragma once

#include <string>
#include <string_view>

namespace caravan {

/// Two different values as a message shows them.
struct DifferingTexts {
  std::string first;
  std::string other;
};

/// Whole if both are short. Of lists, [a, b, ..] as in TOML: their number of entries and the first that differs. Of
/// other texts some 200 bytes, from shortly before the first difference, and how many are left out.
DifferingTexts differing_texts(std::string_view first, std::string_view other);

}  // namespace caravan
