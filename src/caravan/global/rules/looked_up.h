#pragma once

#include <ATen/core/Tensor.h>

#include "caravan/global/local_call.h"
#include "caravan/global/operation.h"

namespace caravan {

/// Indices as they are among the rows that this rank has.
struct OwnRows {
  at::Tensor rows;       ///< 0 where the row is on another rank; out of range where it is in no rank's
  at::Tensor elsewhere;  ///< true where the row is on another rank
};
OwnRows own_rows(const at::Tensor& index, const LabelRange& range);

/// The piece of a table, or one row of zeros if it has none, so that row 0 can be read.
at::Tensor with_a_row(const at::Tensor& table, int64_t dim);

/// Lets a kernel that asks LocalCall::range of it have the label cut, unless an operand is cut in blocks.
void add_row_kernel(TypedCall& operation, const OpCall& call, const std::string& label, LocalKernel kernel);

}  // namespace caravan
