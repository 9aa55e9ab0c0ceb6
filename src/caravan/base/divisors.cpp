#include "caravan/base/divisors.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/text.h"

namespace caravan {

std::vector<int64_t> divisors(int64_t number) {
  std::vector<int64_t> low;
  std::vector<int64_t> high;
  for (int64_t d = 1; d <= number / d; ++d) {
    if (number % d != 0) continue;
    low.push_back(d);
    if (d != number / d) high.push_back(number / d);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

std::vector<int64_t> divisors(int64_t number, int64_t least, int64_t most) {
  std::vector<int64_t> all = divisors(number);
  std::erase_if(all, [&](int64_t d) { return d < least || d > most; });
  return all;
}

std::vector<int64_t> nearest(const std::vector<int64_t>& ascending, int64_t n, size_t on_each_side) {
  const auto middle = std::ranges::upper_bound(ascending, n);
  const auto reach = static_cast<std::ptrdiff_t>(on_each_side);
  return {middle - std::min(middle - ascending.begin(), reach), middle + std::min(ascending.end() - middle, reach)};
}

std::string multiples_near(int64_t number, int64_t divisor) {
  const int64_t below = number / divisor * divisor;
  return below <= 0 ? std::to_string(divisor) : fmt::format("{} or {}", below, below + divisor);
}

std::string divisors_near(int64_t number, int64_t n, size_t on_each_side) {
  return "{" + join(nearest(divisors(number), n, on_each_side)) + "}";
}

}  // namespace caravan
