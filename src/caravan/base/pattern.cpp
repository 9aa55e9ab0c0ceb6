#include "caravan/base/pattern.h"

#include <algorithm>
#include <vector>

#include "caravan/base/text.h"

namespace caravan {
namespace {

/// The end of `name` after its dot number `num_dots`, counted from the end; after the last dot for 0.
std::string_view ending(std::string_view name, int64_t num_dots) {
  size_t dot = name.size();
  for (int64_t i = 0; i < std::max<int64_t>(num_dots, 1); ++i) {
    dot = dot == 0 ? name.npos : name.rfind('.', dot - 1);
    if (dot == name.npos) return num_dots == 0 ? name : "";
  }
  return name.substr(num_dots == 0 ? dot + 1 : dot);
}

}  // namespace

bool matches_pattern(std::string_view pattern, std::string_view name) {
  const size_t star = pattern.find('*');
  if (star == pattern.npos) return pattern == name;
  if (!name.starts_with(pattern.substr(0, star))) return false;
  for (size_t end = star; end <= name.size(); ++end) {
    if (matches_pattern(pattern.substr(star + 1), name.substr(end))) return true;
  }
  return false;
}

std::string nearest_pattern(const std::string& pattern, std::span<const std::string> names) {
  const size_t star = pattern.rfind('*');
  if (star == pattern.npos || star + 1 == pattern.size()) return nearest(pattern, names);
  const std::string end = pattern.substr(star + 1);
  std::vector<std::string> ends;
  for (const std::string& name : names) {
    const std::string_view its_end = ending(name, std::count(end.begin(), end.end(), '.'));
    if (!its_end.empty()) ends.emplace_back(its_end);
  }
  return ends.empty() ? nearest(pattern, names) : pattern.substr(0, star + 1) + nearest(end, ends);
}

}  // namespace caravan
