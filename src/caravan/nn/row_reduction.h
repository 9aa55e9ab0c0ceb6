#pragma once

#include <ATen/core/Tensor.h>

#include "caravan/mesh/layout.h"

namespace caravan {

/// Combines statistics of rows whose elements are split over ranks: of a norm over a split feature dim, of a softmax
/// over a split vocabulary. A technique implements it and sets it on the modules that it splits. All these ranks call
/// it in the same order, in forward and backward; `rows` has the same shape on each and is replaced by the result.
class RowReduction {
 public:
  virtual ~RowReduction() = default;
  virtual void max(at::Tensor& rows) = 0;
  virtual void sum(at::Tensor& rows) = 0;
  /// In a dry run: the layout of the reduced sums of rows laid out as `summands`.
  virtual Layout reduced(const Layout& summands) const = 0;
};

}  // namespace caravan
