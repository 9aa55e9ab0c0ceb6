#pragma once

#include <cstdint>
#include <iostream>
#include <map>
#include <string>

namespace caravan::testing {

/// Prints how many combinations of a product test ran, and how many were refused for which reason. Returns the number
/// of refused ones.
inline int64_t print_product(const std::map<std::string, int64_t>& refusals, int64_t total, int64_t ran) {
  int64_t refused = 0;
  for (const auto& [reason, count] : refusals) {
    std::cout << "refused " << count << ": " << reason << "\n";
    refused += count;
  }
  std::cout << "combinations: " << total << ", ran " << ran << ", refused " << refused << std::endl;
  return refused;
}

}  // namespace caravan::testing
