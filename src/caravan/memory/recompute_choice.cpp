#include "caravan/memory/recompute_choice.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/text.h"

namespace caravan {

std::string RecomputeChoice::to_string() const {
  return kind == Kind::modules ? join(patterns) : recompute_kinds()[static_cast<size_t>(kind)];
}

const std::vector<std::string>& recompute_kinds() {
  static const std::vector<std::string> kinds{"none", "selective", "full", "stage"};
  return kinds;
}

std::string wrong_with_patterns(const std::vector<std::string>& patterns) {
  if (patterns.empty()) return "names no module; \"none\" recomputes nothing";
  for (const std::string& pattern : patterns) {
    if (pattern.empty()) return "names a module \"\"";
    if (std::ranges::find(recompute_kinds(), pattern) == recompute_kinds().end()) continue;
    return fmt::format("\"{0}\" is not a pattern of modules; use \"{0}\" alone, or patterns such as \"blocks.*\"",
                       pattern);
  }
  return "";
}

}  // namespace caravan
