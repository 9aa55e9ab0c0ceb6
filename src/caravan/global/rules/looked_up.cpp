#include "caravan/global/rules/looked_up.h"

#include <algorithm>
#include <utility>

#include "caravan/global/rules/shapes.h"

namespace caravan {

OwnRows own_rows(const at::Tensor& index, const LabelRange& range) {
  const at::Tensor rows = index - range.begin;
  const at::Tensor is_known = index.ge(0).logical_and_(index.lt(range.whole));
  at::Tensor elsewhere = rows.lt(0).logical_or_(rows.ge(range.length)).logical_and_(is_known);
  return {rows.masked_fill(elsewhere, 0), std::move(elsewhere)};
}

at::Tensor with_a_row(const at::Tensor& table, int64_t dim) {
  if (table.size(dim) > 0) return table;
  Sizes sizes = table.sizes().vec();
  sizes[dim] = 1;
  return table.new_zeros(sizes);
}

void add_row_kernel(TypedCall& operation, const OpCall& call, const std::string& label, LocalKernel kernel) {
  const bool has_blocks = std::ranges::any_of(call.operands(), [](const GlobalOperand& operand) {
    return std::ranges::any_of(operand.layout->entries(), [](const auto& entry) { return entry.second.blocks() > 1; });
  });
  if (label.empty() || has_blocks) return;
  operation.kernel_labels = label;
  operation.kernel = std::move(kernel);
}

}  // namespace caravan
