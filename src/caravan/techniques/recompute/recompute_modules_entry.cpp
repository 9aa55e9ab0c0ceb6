#include <algorithm>

#include <fmt/format.h>

#include "caravan/registry/registry.h"

namespace caravan {
namespace {

std::string wrong_with_patterns(const std::vector<std::string>& patterns) {
  if (patterns.empty()) return "names no module; \"none\" recomputes nothing";
  const std::vector<std::string> names = names_of("recompute");
  for (const std::string& pattern : patterns) {
    if (pattern.empty()) return "names a module \"\"";
    if (std::ranges::find(names, pattern) == names.end()) continue;
    return fmt::format("\"{0}\" is not a pattern of modules; use \"{0}\" alone, or patterns such as \"blocks.*\"",
                       pattern);
  }
  return "";
}

}  // namespace

Entry recompute_modules_entry() {
  return {.family = "recompute",
          .name = "modules",
          .summary = "these modules, including their submodules, keep only their inputs",
          .keys = {{{"modules", OnResume::free},
                    "names of modules, * stands for any characters",
                    std::vector<std::string>{"blocks.*"},
                    {.take = [](const RecipeValue& given, RecipeValue& taken) -> std::string {
                      taken = given;
                      const auto* patterns = std::get_if<std::vector<std::string>>(&given);
                      return patterns == nullptr ? is_not(given, "a list of modules") : wrong_with_patterns(*patterns);
                    }}}},
          .traits = usual_traits_of,
          .by_list = "a list of modules such as [\"blocks.*\"]"};
}

}  // namespace caravan
