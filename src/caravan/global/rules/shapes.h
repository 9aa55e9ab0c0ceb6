#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <vector>

#include "caravan/global/operation.h"

namespace caravan {

// What rules of ops on shapes share.
using Sizes = std::vector<int64_t>;

inline int64_t num_elements(const Sizes& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

/// A dim from 0 on.
inline int64_t wrapped(int64_t dim, int64_t num_dims) { return dim < 0 ? dim + num_dims : dim; }

/// 0, 1, ..
inline Sizes identity_order(int64_t num_dims) {
  Sizes order(num_dims);
  std::iota(order.begin(), order.end(), int64_t{0});
  return order;
}

/// An op of one operand, linear in it, whose output has its dims in this order; -1: a new dim of one element.
TypedCall reordered(const OpCall& call, const Sizes& order);
/// Ops of operand 0 that move elements within some dims, which they need whole; its sizes stay.
TypedCall within_dims(const OpCall& call, const Sizes& dims);

}  // namespace caravan
