#include "caravan/global/rules/draws.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include <ATen/ops/empty.h>

#include "caravan/mesh/fit.h"

namespace caravan {
namespace {

/// The part of `rows` that this rank has on one axis.
std::vector<int64_t> part_of_rows(const std::vector<int64_t>& rows, const Placement& shard, const MeshAxis& axis) {
  const auto blocks = static_cast<int64_t>(std::max(1, shard.blocks()));
  const auto size = static_cast<int64_t>(rows.size());
  const std::vector<int64_t> lengths = rows_of(shard, size, axis.size());
  const int64_t begin = std::accumulate(lengths.begin(), lengths.begin() + axis.coord(), int64_t{0}) / blocks;
  const int64_t length = lengths[axis.coord()] / blocks;
  std::vector<int64_t> part;
  for (int64_t block = 0; block < blocks; ++block) {
    const auto first = rows.begin() + block * (size / blocks) + begin;
    part.insert(part.end(), first, first + length);
  }
  return part;
}

}  // namespace

Draws::Draws(GlobalState& state, const Layout& layout, const std::vector<int64_t>& sizes)
    : stream_(state.drawn().seed, "global tensors", static_cast<int64_t>(state.drawn().calls++)),
      strides_(sizes.size(), 1) {
  for (size_t dim = sizes.size(); dim-- > 0;) {
    strides_[dim] = num_elements_;
    num_elements_ *= sizes[dim];
  }
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    std::vector<int64_t> rows(sizes[dim]);
    std::iota(rows.begin(), rows.end(), int64_t{0});
    for (const std::string& axis : layout.sharding(static_cast<int>(dim))) {
      rows = part_of_rows(rows, layout[axis], state.mesh()[axis]);
    }
    num_local_ *= static_cast<int64_t>(rows.size());
    rows_.push_back(std::move(rows));
  }
}

int64_t Draws::element(int64_t i) const {
  int64_t element = 0;
  for (size_t dim = rows_.size(); dim-- > 0;) {
    const auto length = static_cast<int64_t>(rows_[dim].size());
    element += rows_[dim][i % length] * strides_[dim];
    i /= length;
  }
  return element;
}

double Draws::number(int64_t element, int64_t k) const {
  const auto i = 2 * (static_cast<uint64_t>(element) + static_cast<uint64_t>(k) * static_cast<uint64_t>(num_elements_));
  const uint64_t high = stream_.bits(i) >> 5;     // 27 bits
  const uint64_t low = stream_.bits(i + 1) >> 6;  // 26 bits
  return static_cast<double>((high << 26) | low) * 0x1p-53;
}

at::Tensor Draws::of(Draw draw) const {
  std::vector<int64_t> sizes;
  for (const auto& rows : rows_) sizes.push_back(static_cast<int64_t>(rows.size()));
  at::Tensor draws = at::empty(sizes, at::kDouble);
  auto* out = draws.mutable_data_ptr<double>();
  for (int64_t i = 0; i < num_local_; ++i) {
    const int64_t at = element(i);
    if (draw == Draw::uniform) {
      out[i] = number(at, 0);
      continue;
    }
    // Box and Muller: a pair for two neighbours.
    const double radius = std::sqrt(-2 * std::log1p(-number(at & ~int64_t{1}, 0)));
    const double angle = 2 * std::numbers::pi * number(at | 1, 0);
    out[i] = radius * (at % 2 == 0 ? std::cos(angle) : std::sin(angle));
  }
  return draws;
}

at::ScalarType type_like(LocalCall& local) {
  const c10::IValue dtype = local.has_argument("dtype") ? local.argument("dtype") : c10::IValue();
  return dtype.isNone() ? local.tensor("self").scalar_type() : dtype.toScalarType();
}

}  // namespace caravan
