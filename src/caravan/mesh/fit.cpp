#include "caravan/mesh/fit.h"

#include <numeric>
#include <span>

#include <fmt/format.h>

#include "caravan/base/divisors.h"
#include "caravan/base/text.h"

namespace caravan {
namespace {

Misfit not_divisible(const Placement& shard, int64_t rows, int n, const std::string& axis) {
  const std::string by = axis.empty() ? fmt::format("{}", n) : fmt::format("axis {} ({})", axis, n);
  return {"", fmt::format("dim {} has {} elements, not divisible by {}", shard.dim(), rows, by),
          fmt::format("pad the dim to {}, or choose {} from {}", (rows / n + 1) * n, axis.empty() ? "the degree" : axis,
                      divisors_near(rows, n))};
}

Misfit wrong_sum(const Placement& shard, int64_t rows, int64_t sum) {
  return {"", fmt::format("dim {} has {} elements, {} places {}", shard.dim(), rows, shard.to_string(), sum),
          fmt::format("give sizes that add up to {}", rows)};
}

}  // namespace

std::optional<Misfit> misfit(const Placement& shard, int64_t rows, int n, std::string_view axis) {
  const std::string name(axis);
  if (shard.is_even()) {
    if (rows % n == 0) return std::nullopt;
    return not_divisible(shard, rows, n, name);
  }
  const std::string whose = name.empty() ? "the axis" : "axis " + name;
  if (shard.owner() >= n) {
    return Misfit{
        "", fmt::format("{} names an owner, but the coordinates of {} are 0 to {}", shard.to_string(), whose, n - 1),
        fmt::format("choose an owner from 0 to {}", n - 1)};
  }
  if (shard.owner() >= 0) {
    if (shard.owner_rows() < 0 || shard.owner_rows() == rows) return std::nullopt;
    return wrong_sum(shard, rows, shard.owner_rows());
  }
  if (static_cast<int>(shard.sizes().size()) != n) {
    return Misfit{
        "", fmt::format("{} has {} sizes, {} has {} coordinates", shard.to_string(), shard.sizes().size(), whose, n),
        "give one size for each coordinate"};
  }
  const int64_t sum = std::accumulate(shard.sizes().begin(), shard.sizes().end(), int64_t{0});
  if (sum == rows) return std::nullopt;
  return wrong_sum(shard, rows, sum);
}

std::vector<int64_t> rows_of(const Placement& shard, int64_t rows, int n) {
  if (!shard.sizes().empty()) return shard.sizes();
  if (shard.owner() < 0) return std::vector<int64_t>(n, rows / n);
  std::vector<int64_t> parts(n, 0);
  parts[shard.owner()] = rows;
  return parts;
}

std::string shape_text(const int64_t* sizes, size_t count) {
  return "[" + join(std::span<const int64_t>(sizes, count)) + "]";
}

}  // namespace caravan
