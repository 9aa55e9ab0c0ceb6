#include "caravan/data/windows/source_turns.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {
namespace {

constexpr int64_t kLongestPeriod = 10'000;

/// The weights times `scale` as whole numbers; empty if they are not whole, or if their sum is more than a period.
std::vector<int64_t> whole_weights(const std::vector<WeighedSource>& sources, double scale) {
  std::vector<int64_t> whole;
  int64_t sum = 0;
  for (const WeighedSource& source : sources) {
    const double scaled = source.weight * scale;
    const double rounded = std::round(scaled);
    // 0.7 * 10 need not be 7 exactly.
    if (rounded < 1 || rounded > static_cast<double>(kLongestPeriod) || std::abs(scaled - rounded) > 1e-9 * rounded) {
      return {};
    }
    whole.push_back(static_cast<int64_t>(rounded));
    sum += whole.back();
  }
  return sum <= kLongestPeriod ? whole : std::vector<int64_t>{};
}

/// Ten-thousandths of the sum; the rounding remainder goes to the largest.
std::vector<int64_t> rounded_weights(const std::vector<WeighedSource>& sources) {
  double sum = 0;
  for (const WeighedSource& source : sources) sum += source.weight;
  std::vector<int64_t> rounded;
  for (const WeighedSource& source : sources) {
    rounded.push_back(std::llround(source.weight / sum * static_cast<double>(kLongestPeriod)));
    if (rounded.back() >= 1) continue;
    throw DataError(
        {.op = "data",
         .subject = source.name,
         .fact = fmt::format("has a weight of {}, less than a ten-thousandth of all, {}", source.weight, sum),
         .action = "leave it out, or raise its weight"});
  }
  const int64_t total = std::accumulate(rounded.begin(), rounded.end(), int64_t{0});
  *std::ranges::max_element(rounded) += kLongestPeriod - total;
  return rounded;
}

/// Samples of each source in a period.
std::vector<int64_t> quotas_of(const std::vector<WeighedSource>& sources) {
  if (sources.size() == 1) return {1};
  for (const WeighedSource& source : sources) {
    if (source.weight > 0 && std::isfinite(source.weight)) continue;
    throw DataError({.op = "data",
                     .subject = source.name,
                     .fact = fmt::format("has a weight of {}", source.weight),
                     .action = "use a number above 0"});
  }
  for (const double scale : {1.0, 10.0, 100.0, 1000.0}) {
    std::vector<int64_t> whole = whole_weights(sources, scale);
    if (whole.empty()) continue;
    const int64_t divisor = std::accumulate(whole.begin(), whole.end(), int64_t{0}, std::gcd<int64_t, int64_t>);
    for (int64_t& weight : whole) weight /= divisor;
    return whole;
  }
  return rounded_weights(sources);
}

}  // namespace

SourceTurns::SourceTurns(const std::vector<WeighedSource>& sources) : quotas_(quotas_of(sources)) {
  // Each turn goes to the source that is furthest behind its quota; ties go to the first.
  const int64_t period = std::accumulate(quotas_.begin(), quotas_.end(), int64_t{0});
  std::vector<int64_t> drawn(quotas_.size());
  for (int64_t turn = 0; turn < period; ++turn) {
    size_t next = 0;
    const auto behind = [&](size_t i) { return quotas_[i] * (turn + 1) - drawn[i] * period; };
    for (size_t i = 1; i < quotas_.size(); ++i) {
      if (behind(i) > behind(next)) next = i;
    }
    turns_.push_back(next);
    earlier_.push_back(drawn[next]++);
  }
}

TaskRows::Draw SourceTurns::draw(int64_t sample) const {
  const auto period = static_cast<int64_t>(turns_.size());
  const auto turn = static_cast<size_t>(sample % period);
  const size_t source = turns_[turn];
  return {source, sample / period * quotas_[source] + earlier_[turn]};
}

std::vector<int64_t> SourceTurns::drawn(int64_t sample) const {
  const auto period = static_cast<int64_t>(turns_.size());
  std::vector<int64_t> counts;
  for (const int64_t quota : quotas_) counts.push_back(sample / period * quota);
  for (int64_t turn = 0; turn < sample % period; ++turn) ++counts[turns_[static_cast<size_t>(turn)]];
  return counts;
}

}  // namespace caravan
