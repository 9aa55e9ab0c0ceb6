#pragma once

#include <span>
#include <string>
#include <string_view>

namespace caravan {

/// Whether a dotted name fits: * stands for any characters, also dots, or for none.
bool matches_pattern(std::string_view pattern, std::string_view name);

/// The pattern that was meant by one that no name matches: what follows its last star is compared with the ends of the
/// names.
std::string nearest_pattern(const std::string& pattern, std::span<const std::string> names);

}  // namespace caravan
