#include "caravan/comm/c10d_reduction.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/format.h>
#include <torch/headeronly/version.h>

#include "caravan/base/error.h"

namespace caravan {
namespace {

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
using Supplement = c10d::PreMulSumSupplement;
#else
using Supplement = c10d::NCCLPreMulSumSupplement;
#endif

const char* name_of(c10d::ReduceOp::RedOpType type) {
  switch (type) {
    case c10d::ReduceOp::PRODUCT: return "PRODUCT";
    case c10d::ReduceOp::BAND: return "BAND";
    case c10d::ReduceOp::BOR: return "BOR";
    case c10d::ReduceOp::BXOR: return "BXOR";
    default: return "this op";
  }
}

double factor_of(const c10d::ReduceOp& op) {
  const auto* supplement = static_cast<const Supplement*>(op.supplement_.get());
  if (supplement == nullptr) return 1;
  return supplement->tensor_factor.defined() ? supplement->tensor_factor.item<double>() : supplement->double_factor;
}

}  // namespace

C10dReduction C10dReduction::of(const c10d::ReduceOp& op, int size, const at::Tensor& tensor, std::string_view title) {
  const c10d::ReduceOp::RedOpType type = op;
  const bool divides = type == c10d::ReduceOp::AVG || type == c10d::ReduceOp::PREMUL_SUM;
  if (divides && tensor.defined() && !tensor.is_floating_point()) {
    throw UsageError(
        {.op = std::string(title),
         .fact = fmt::format("{} of {}: an average needs a floating point dtype",
                             type == c10d::ReduceOp::AVG ? "AVG" : "PREMUL_SUM", c10::toString(tensor.scalar_type())),
         .action = "use SUM"});
  }
  switch (type) {
    case c10d::ReduceOp::SUM: return {ReduceOp::sum, {}, 1};
    case c10d::ReduceOp::MAX: return {ReduceOp::max, {}, 1};
    case c10d::ReduceOp::MIN: return {ReduceOp::min, {}, 1};
    case c10d::ReduceOp::AVG: return {ReduceOp::sum, {}, size};
    case c10d::ReduceOp::PREMUL_SUM: return {ReduceOp::sum, factor_of(op), 1};
    default: break;
  }
  throw UsageError({.op = std::string(title),
                    .fact = fmt::format("the back-end does not do {}", name_of(type)),
                    .action = "choose one of SUM, AVG, MAX, MIN and PREMUL_SUM"});
}

at::Tensor C10dReduction::scaled(const at::Tensor& in) const {
  if (!factor) return in;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return in.mul(*factor);
}

void C10dReduction::divide(const at::Tensor& out) const {
  if (divisor != 1) out.div_(divisor);
}

}  // namespace caravan
