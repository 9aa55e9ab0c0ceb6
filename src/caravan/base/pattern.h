#pragma once

#include <span>
#include <string>
#include <string_view>

namespace caravan {

/// Whether a dotted name matches: * stands for any characters, including dots, or for none.
bool matches_pattern(std::string_view pattern, std::string_view name);

/// The pattern that was probably meant by one without a match: compares the text after its last star with the ends of
/// the names.
std::string nearest_pattern(const std::string& pattern, std::span<const std::string> names);

}  // namespace caravan
