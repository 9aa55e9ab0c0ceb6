#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "caravan/redistribute/labels.h"

namespace caravan {

/// Labels for two shapes of the same elements, so that each dim of each is made of whole labels. A group of dims that
/// share no such labels is whole.
struct Regrouped {
  Dims before;
  Dims after;
  std::string whole;
  std::map<char, int64_t> extents;
};
Regrouped regroup(const std::vector<int64_t>& before, const std::vector<int64_t>& after);

}  // namespace caravan
