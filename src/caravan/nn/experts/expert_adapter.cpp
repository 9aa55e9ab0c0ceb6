#include "caravan/nn/experts/expert_adapter.h"

#include <cmath>

#include <ATen/ops/empty.h>

#include "caravan/base/error.h"
#include "caravan/nn/experts/expert_rows.h"
#include "caravan/nn/ops.h"

namespace caravan {

/// They start as those of Linear.
ExpertAdapter::ExpertAdapter(int64_t experts, int64_t in, int64_t out, const LoraConfig& lora)
    : scale_(lora.scale()),
      a_(register_parameter("a", {.shape = {experts * lora.rank, in},
                                  .init = {Init::Kind::normal, 1 / std::sqrt(3 * static_cast<double>(in))},
                                  .decays = true,
                                  .matrices = experts})),
      b_(register_parameter("b",
                            {.shape = {experts * out, lora.rank}, .init = {}, .decays = true, .matrices = experts})) {}

at::Tensor ExpertAdapter::added_to(const at::Tensor& y, const at::Tensor& rows, const std::vector<int64_t>& counts) {
  const at::Tensor h = expert_linear(rows, counts, a_, nullptr);
  return y + expert_linear(h * scale_, counts, b_, nullptr);
}

at::Tensor ExpertAdapter::recorded(const Parameter& table, const ForwardContext& context) const {
  static const OpType kSum{"eh,eh,er->eh", "hr", {{0}, {1, 2}}};
  at::Tensor sum = at::empty({0, 0});
  record_layout(context, kSum, sum, {table, a_, b_}, name());
  return sum;
}

Tensors PartOfExperts::forward(Tensors, const ForwardContext&) {
  throw InternalError({"experts", name(), "is not run by itself: the experts compute with its parameters", "", ""});
}

}  // namespace caravan
