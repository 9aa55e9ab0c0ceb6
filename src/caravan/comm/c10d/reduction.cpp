#include "caravan/comm/c10d/reduction.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <fmt/format.h>
#include <torch/headeronly/version.h>

#include "caravan/base/error.h"
#include "caravan/comm/c10d/tensors.h"

namespace caravan {
namespace {

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
using Supplement = c10d::PreMulSumSupplement;
#else
using Supplement = c10d::NCCLPreMulSumSupplement;
#endif

using Type = c10d::ReduceOp::RedOpType;

const char* name_of(Type type) {
  switch (type) {
    case c10d::ReduceOp::SUM: return "SUM";
    case c10d::ReduceOp::AVG: return "AVG";
    case c10d::ReduceOp::PRODUCT: return "PRODUCT";
    case c10d::ReduceOp::MIN: return "MIN";
    case c10d::ReduceOp::MAX: return "MAX";
    case c10d::ReduceOp::BAND: return "BAND";
    case c10d::ReduceOp::BOR: return "BOR";
    case c10d::ReduceOp::BXOR: return "BXOR";
    case c10d::ReduceOp::PREMUL_SUM: return "PREMUL_SUM";
    default: return "this op";
  }
}

[[noreturn]] void refuse(std::string_view method, Type type, at::ScalarType dtype, std::string action) {
  throw UsageError({.op = std::string(method),
                    .fact = fmt::format("there is no {} of {}", name_of(type), c10::toString(dtype)),
                    .action = std::move(action)});
}

bool is_integral(at::ScalarType dtype) { return c10::isIntegralType(dtype, /*includeBool=*/true); }

/// What this rank can fold, which is what ATen's operations take.
bool can_fold(Type type, at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16: return type == c10d::ReduceOp::PRODUCT;
    case at::kLong:
    case at::kInt:
    case at::kShort:
    case at::kChar:
    case at::kByte:
    case at::kBool: return true;
    default: return false;
  }
}

std::optional<ReduceOp> native_op(Type type, at::ScalarType dtype) {
  std::optional<ReduceOp> op;
  if (type == c10d::ReduceOp::SUM) op = dtype == at::kBool ? ReduceOp::max : ReduceOp::sum;
  if (type == c10d::ReduceOp::AVG || type == c10d::ReduceOp::PREMUL_SUM) op = ReduceOp::sum;
  if (type == c10d::ReduceOp::MAX) op = ReduceOp::max;
  if (type == c10d::ReduceOp::MIN) op = ReduceOp::min;
  const auto known = find_dtype(dtype);
  return op && known && reduces(*op, *known) ? op : std::nullopt;
}

double factor_of(const c10d::ReduceOp& op) {
  const auto* supplement = static_cast<const Supplement*>(op.supplement_.get());
  if (supplement == nullptr) return 1;
  return supplement->tensor_factor.defined() ? supplement->tensor_factor.item<double>() : supplement->double_factor;
}

}  // namespace

C10dReduction C10dReduction::of(const c10d::ReduceOp& op, int size, const at::Tensor& tensor, std::string_view method) {
  C10dReduction reduction;
  reduction.type_ = op;
  const at::ScalarType dtype = tensor.scalar_type();
  const bool is_average = reduction.type_ == c10d::ReduceOp::AVG || reduction.type_ == c10d::ReduceOp::PREMUL_SUM;
  if (is_average && !c10::isFloatingType(dtype)) {
    refuse(method, reduction.type_, dtype, "use SUM; an average needs a floating point dtype");
  }
  if (reduction.type_ == c10d::ReduceOp::AVG) reduction.divisor_ = size;
  if (reduction.type_ == c10d::ReduceOp::PREMUL_SUM) reduction.factor_ = factor_of(op);
  reduction.native_ = native_op(reduction.type_, dtype);
  if (reduction.native_ || can_fold(reduction.type_, dtype)) return reduction;
  const bool is_bitwise = reduction.type_ == c10d::ReduceOp::BAND || reduction.type_ == c10d::ReduceOp::BOR ||
                          reduction.type_ == c10d::ReduceOp::BXOR;
  refuse(method, reduction.type_, dtype,
         is_bitwise && !is_integral(dtype) ? "bitwise operations need an integer dtype or bool"
                                           : "convert the tensor to a dtype that every op takes, such as float32");
}

at::Tensor C10dReduction::scaled(const at::Tensor& in) const {
  if (!factor_) return in;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return in.mul(*factor_);
}

void C10dReduction::divide(const at::Tensor& out) const {
  if (divisor_ != 1) out.div_(divisor_);
}

void C10dReduction::fold(const at::Tensor& parts, const at::Tensor& out) const {
  const int64_t count = out.numel();
  if (count == 0) return;
  const bool is_half = out.scalar_type() == at::kHalf || out.scalar_type() == at::kBFloat16;
  const at::Tensor wide = is_half ? parts.to(at::kFloat) : parts;
  at::Tensor result = wide.narrow(0, 0, count).clone();
  for (int64_t begin = count; begin < parts.numel(); begin += count) {
    const at::Tensor next = wide.narrow(0, begin, count);
    switch (type_) {
      case c10d::ReduceOp::SUM: result.add_(next); break;
      case c10d::ReduceOp::PRODUCT: result.mul_(next); break;
      case c10d::ReduceOp::MIN: result = at::minimum(result, next); break;
      case c10d::ReduceOp::MAX: result = at::maximum(result, next); break;
      case c10d::ReduceOp::BAND: result.bitwise_and_(next); break;
      case c10d::ReduceOp::BOR: result.bitwise_or_(next); break;
      case c10d::ReduceOp::BXOR: result.bitwise_xor_(next); break;
      default: throw InternalError({.op = "fold", .fact = "this op is the communicator's"});
    }
  }
  out.copy_(result.view(out.sizes()));
}

}  // namespace caravan
