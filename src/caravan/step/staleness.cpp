#include "caravan/step/staleness.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

namespace caravan {

void StalenessCounts::add(int64_t staleness) noexcept {
  ++bins_[static_cast<size_t>(std::clamp<int64_t>(staleness, 0, kBins - 1))];
}

int64_t StalenessCounts::total() const noexcept { return std::accumulate(bins_.begin(), bins_.end(), int64_t{0}); }

double StalenessCounts::mean() const noexcept {
  double sum = 0;
  for (size_t i = 0; i < kBins; ++i) sum += static_cast<double>(i) * static_cast<double>(bins_[i]);
  return total() == 0 ? 0 : sum / static_cast<double>(total());
}

std::vector<int64_t> StalenessCounts::used() const {
  size_t count = kBins;
  while (count > 0 && bins_[count - 1] == 0) --count;
  return {bins_.begin(), bins_.begin() + static_cast<std::ptrdiff_t>(count)};
}

std::string StalenessCounts::to_string() const {
  std::string text;
  for (size_t i = 0; i < kBins; ++i) {
    if (bins_[i] == 0) continue;
    text += fmt::format("{}{}{}: {}", text.empty() ? "" : "  ", i, i + 1 == kBins ? "+" : "", bins_[i]);
  }
  return text;
}

StalenessCounts& StalenessCounts::operator+=(const StalenessCounts& other) noexcept {
  for (size_t i = 0; i < kBins; ++i) bins_[i] += other.bins_[i];
  return *this;
}

}  // namespace caravan
