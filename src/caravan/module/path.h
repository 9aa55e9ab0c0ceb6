#pragma once

#include <string_view>

#include <ATen/core/Tensor.h>
#include <ATen/ops/mul.h>

#include "caravan/base/trace/path_log.h"

namespace caravan {

/// Counts one execution of `path`, and multiplies `result` in place by the planted factor, if there is one. For results
/// that autograd does not record.
inline void take_path(std::string_view path, const at::Tensor& result) {
  const double factor = take_path(path);
  if (factor != 1) result.mul_(factor);
}

/// The same for a result that autograd records: returns the product.
inline at::Tensor taken(std::string_view path, const at::Tensor& result) {
  const double factor = take_path(path);
  return factor == 1 ? result : result * factor;
}

}  // namespace caravan
