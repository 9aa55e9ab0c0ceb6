#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/base/numeric/random.h"
#include "caravan/global/local_call.h"
#include "caravan/mesh/layout.h"

namespace caravan {

enum class Draw : uint8_t { uniform, normal };

/// The random numbers of one call: number i is a function of the seed of the context, the number of the call, and i,
/// the place of an element in the global tensor. So ranks that have the same element draw the same, and any layout on
/// any number of ranks gives the same tensor. Every rank makes one for each call, also for pieces without elements.
class Draws {
 public:
  Draws(GlobalState& state, const Layout& layout, const std::vector<int64_t>& sizes);

  /// For each element of this rank's piece, a double: uniform in [0, 1) with 53 bits, or standard normal.
  at::Tensor of(Draw draw) const;
  /// Number k of those that an element has, uniform in [0, 1).
  double number(int64_t element, int64_t k) const;
  /// The place in the global tensor of element i of the piece.
  int64_t element(int64_t i) const;

 private:
  RandomStream stream_;
  std::vector<std::vector<int64_t>> rows_;  ///< of each dim: where the rows of the piece are in the global tensor
  std::vector<int64_t> strides_;            ///< of the global tensor
  int64_t num_elements_ = 1;                ///< of the global tensor
  int64_t num_local_ = 1;
};

/// The type that an op ..._like makes: its argument dtype, or that of self. An argument out= is cast to its own.
at::ScalarType type_like(LocalCall& local);

}  // namespace caravan
