#include "caravan/train/balance/balancer.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace caravan {
namespace {

constexpr double kWeight = 0.5;  ///< of the newest measurement
/// Beyond this ratio to what was expected a rank is faster or slower than before, and the newest measurement counts
/// alone.
constexpr double kOtherSpeed = 1.2;

double smoothed(double before, double now) {
  const double ratio = now / before;
  const bool is_other = ratio > kOtherSpeed || ratio < 1 / kOtherSpeed;
  return is_other ? now : before + kWeight * (now - before);
}

}  // namespace

Balancer::Balancer(const RowsToDeal& what, std::vector<int64_t> rows) : what_(what), rows_(std::move(rows)) {}

bool Balancer::measure(const std::vector<double>& busy_ms) {
  const bool is_first = ms_per_row_.empty();
  ms_per_row_.resize(rows_.size(), 0);
  std::vector<double> speeds;
  for (size_t i = 0; i < rows_.size(); ++i) {
    constexpr double kLeastMs = 1e-3;  // the resolution of what ranks exchange
    const double now = std::max(busy_ms[i], kLeastMs) / static_cast<double>(rows_[i]);
    ms_per_row_[i] = is_first ? now : smoothed(ms_per_row_[i], now);
    speeds.push_back(1 / ms_per_row_[i]);
  }
  std::vector<int64_t> rows = deal_rows(what_, speeds);
  if (end_of_deal(rows, speeds) > (1 - kLeastGain) * end_of_deal(rows_, speeds)) return false;
  rows_ = std::move(rows);
  return true;
}

}  // namespace caravan
