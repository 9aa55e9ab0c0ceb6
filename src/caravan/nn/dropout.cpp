#include "caravan/nn/dropout.h"

#include <array>

#include <ATen/Parallel.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty_like.h>

#include "caravan/base/error.h"
#include "caravan/base/random.h"
#include "caravan/base/runs.h"
#include "caravan/nn/ops.h"

namespace caravan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct Plan : torch::CustomClassHolder {
  Plan(double dropout_, const DropoutKey& key_)
      : keep(static_cast<float>(1 - dropout_)), key(key_), stream(key_.seed, key_.name, key_.step) {}
  float keep;
  DropoutKey key;
  RandomStream stream;
};

at::Tensor masked(const at::Tensor& input, const Plan& plan) {
  constexpr int64_t kChunk = 4096;
  const at::Tensor x = input.contiguous();
  at::Tensor y = at::empty_like(x);
  if (x.is_meta()) return y;
  const std::vector<int64_t> size = x.sizes().vec();
  with_dtype("dropout", x.scalar_type(), [&](auto type) {
    using T = decltype(type);
    at::parallel_for(0, x.numel(), int64_t{1} << 15, [&](int64_t begin, int64_t end) {
      std::array<float, kChunk> mask;
      for_each_run(plan.key.global_shape, plan.key.offset, size, begin, end,
                   [&](int64_t global, int64_t local, int64_t length) {
                     for (int64_t done = 0; done < length; done += kChunk) {
                       const int64_t count = std::min(kChunk, length - done);
                       plan.stream.dropout_mask(static_cast<uint64_t>(global + done), plan.keep,
                                                std::span(mask).first(static_cast<size_t>(count)));
                       const int64_t at = local + done;
                       kernels::multiply(data_of<T>(x) + at, mask.data(), data_of<T>(y) + at, count);
                     }
                   });
    });
  });
  return y;
}

struct CounterDropout : Function<CounterDropout> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, c10::intrusive_ptr<Plan> plan) {
    at::Tensor y = masked(x, *plan);
    ctx->saved_data["plan"] = c10::IValue::make_capsule(std::move(plan));
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto plan = ctx->saved_data["plan"].toCapsule();
    return {masked(grads[0], static_cast<const Plan&>(*plan)), {}};
  }
};

}  // namespace

at::Tensor counter_dropout(const at::Tensor& x, double dropout, const DropoutKey& key) {
  check_device("dropout", x);
  if (key.offset.size() != static_cast<size_t>(x.dim()) || key.global_shape.size() != key.offset.size()) {
    throw InternalError({"dropout", key.name, "the tensor and its place in the global one differ in dims", "", ""});
  }
  return CounterDropout::apply(x, c10::make_intrusive<Plan>(dropout, key));
}

at::Tensor Dropout::forward(const at::Tensor& input, const ForwardContext& context) {
  if (!context.training || dropout_ == 0) return input;
  const Piece batch = piece_of(context, Dim::batch, input.size(0));
  const Piece sequence = piece_of(context, Dim::sequence, input.size(1));
  const Piece feature = piece_of(context, Dim::feature, input.size(2));
  return counter_dropout(input, dropout_,
                         {.seed = context.seed,
                          .name = name(),
                          .step = context.step,
                          .offset = {batch.offset, sequence.offset, feature.offset},
                          .global_shape = {batch.global, sequence.global, feature.global}});
}

}  // namespace caravan
