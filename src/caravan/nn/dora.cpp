#include "caravan/nn/dora.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include "caravan/module/path.h"
#include "caravan/nn/accumulate_grad.h"
#include "caravan/nn/experts/dispatch.h"

namespace caravan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

constexpr int64_t kElementsAtOnce = int64_t{1} << 20;
constexpr double kLeastNorm = 1e-30;  ///< of a row of zeros, whose magnitude is zero too

struct Magnitudes : Function<Magnitudes> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& m, const at::Tensor& norms,
                            Parameter& magnitude) {
    const at::ScalarType type = norms.scalar_type();
    // Rounded alike, so that a model whose magnitudes have not changed computes what its base does.
    const at::Tensor factors = m.detach().to(type) / norms.to(m.scalar_type()).to(type);
    will_accumulate(ctx, {&magnitude});
    ctx->save_for_backward({x, factors, norms});
    at::Tensor y = (x.to(type) * factors).to(x.scalar_type());
    take_path("magnitudes of adapters", y);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    variable_list gradients(4);
    if (!grads[0].defined()) return gradients;
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor dy = grads[0].to(saved[1].scalar_type());
    if (ctx->needs_input_grad(0)) gradients[0] = (dy * saved[1]).to(grads[0].scalar_type());
    if (ctx->needs_input_grad(1)) {
      const at::Tensor x = saved[0].detach().to(dy.scalar_type());
      const at::Tensor gradient = (dy * x).flatten(0, -2).sum(0) / saved[2];
      take_path("gradient of magnitudes", gradient);
      accumulations_of(ctx)[0]->accumulate_grad(gradient);
    }
    return gradients;
  }
};

}  // namespace

at::Tensor adapted_row_norms(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b, double scale,
                             RowReduction* reduction, at::Tensor* squares) {
  const at::NoGradGuard no_grad;
  const at::ScalarType type = compute_type(weight.scalar_type());
  const at::Tensor down = a.to(type);
  const int64_t rows = weight.size(0);
  const int64_t at_once = std::max<int64_t>(1, kElementsAtOnce / std::max<int64_t>(1, weight.size(1)));
  at::Tensor sums = at::empty({rows}, weight.options().dtype(type).requires_grad(false));
  for (int64_t begin = 0; begin < rows; begin += at_once) {
    const int64_t count = std::min(at_once, rows - begin);
    const at::Tensor own = weight.narrow(0, begin, count).to(type);
    const at::Tensor adapted = at::addmm(own, b.narrow(0, begin, count).to(type), down, 1, scale);
    sums.narrow(0, begin, count).copy_(adapted.square_().sum(-1));
  }
  if (squares != nullptr) *squares = sums;
  if (reduction != nullptr) reduction->sum(sums);
  at::Tensor norms = sums.sqrt().clamp_min_(kLeastNorm);
  take_path("norms of adapted rows", norms);
  return norms;
}

at::Tensor with_magnitudes(const at::Tensor& x, Parameter& magnitude, const at::Tensor& norms) {
  return Magnitudes::apply(x, magnitude.compute(), norms, magnitude);
}

}  // namespace caravan
