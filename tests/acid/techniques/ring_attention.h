#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "caravan/comm/tensor.h"
#include "caravan/engine/strategy.h"
#include "caravan/nn/attention/attention.h"

namespace caravan::testing {

/// Test-only technique: an axis splits the sequence. Queries stay; keys and values, and in backward their gradients, go
/// around the ring (Liu et al., "Ring attention with blockwise transformers", 2023). No dropout of attention weights.
struct Ring : MeshAxis, torch::CustomClassHolder {
  explicit Ring(MeshAxis axis) : MeshAxis(std::move(axis)) {}
  at::Tensor pass(const at::Tensor& block) const {
    if (size() == 1) return block;
    const at::Tensor other = at::empty_like(block);
    send_async(comm(), block, (coord() + 1) % size(), "ring");
    recv_async(comm(), other, (coord() + size() - 1) % size(), "ring").wait();
    return other;
  }
};

struct RingAttention : torch::autograd::Function<RingAttention> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& q, const at::Tensor& kv,
                            const c10::intrusive_ptr<Ring>& ring) {
    auto [out, sum] = at::_scaled_dot_product_flash_attention_for_cpu(q, kv[0], kv[1], 0, /*is_causal=*/true);
    at::Tensor block = kv;
    for (int turn = 1; turn < ring->size(); ++turn) {
      block = ring->pass(block);
      if (turn > ring->coord()) continue;  // its keys come after all queries here
      const auto [more, of_more] = at::_scaled_dot_product_flash_attention_for_cpu(q, block[0], block[1]);
      out = at::lerp(out, more, at::sigmoid(of_more - sum).unsqueeze(-1));
      sum = at::logaddexp(sum, of_more);
    }
    ctx->save_for_backward({q, kv, out, sum});
    ctx->saved_data["ring"] = c10::IValue::make_capsule(ring);
    return out;
  }
  static Tensors backward(torch::autograd::AutogradContext* ctx, const Tensors& grads) {
    const Tensors saved = ctx->get_saved_variables();
    const auto ring = c10::static_intrusive_pointer_cast<Ring>(ctx->saved_data["ring"].toCapsule());
    at::Tensor dq = at::zeros_like(saved[0]), block = at::cat({saved[1], at::zeros_like(saved[1])});  // k, v, dk, dv
    for (int turn = 0; turn < ring->size(); ++turn, block = ring->pass(block)) {
      if (turn > ring->coord()) continue;
      const auto [of_q, of_k, of_v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          grads[0], saved[0], block[0], block[1], saved[2], saved[3], 0, /*is_causal=*/turn == 0);
      dq += of_q;
      block.narrow(0, 2, 2) += at::stack({of_k, of_v});
    }
    return {dq, block.narrow(0, 2, 2), {}};
  }
};

inline std::vector<Hook> ring_attention(Strategy& strategy, Module& model, const Mesh& mesh, const std::string& axis) {
  add_data_axis(strategy, mesh, axis);
  strategy.batch_layout = strategy.batch_layout.moved(axis, Shard{1});
  const auto ring = c10::make_intrusive<Ring>(mesh[axis]);
  const auto place = [ring](Module&, Tensors inputs, ForwardContext context, const Next& next) {
    if (context.positions.defined()) return next(std::move(inputs), context);  // generation: the whole sequence
    const int64_t count = inputs[0].size(1), first = ring->coord() * count;
    context.set(Dim::sequence, DimIndex(first, count, ring->size() * count));
    context.positions = at::arange(first, first + count, at::kLong);
    return next(std::move(inputs), context);
  };
  const auto attend = [ring](Module&, Tensors inputs, const ForwardContext& context, const Next& next) {
    if (context[Dim::sequence].is_whole()) return next(std::move(inputs), context);
    const at::Tensor kv = at::stack({inputs[1], inputs[2]}).transpose(2, 3).contiguous();
    return Tensors{RingAttention::apply(inputs[0].transpose(1, 2), kv, ring).transpose(1, 2)};
  };
  std::vector<Hook> hooks;
  hooks.push_back(model.add_hook(place, Module::Place::outermost));
  for (Module* module : model.modules()) {
    if (dynamic_cast<AttentionCore*>(module) != nullptr) hooks.push_back(module->add_hook(attend));
  }
  return hooks;
}

}  // namespace caravan::testing
