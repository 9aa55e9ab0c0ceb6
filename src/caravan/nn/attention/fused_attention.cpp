#include "caravan/nn/attention/fused_attention.h"

#include <limits>
#include <string>

#include <ATen/SDPBackend.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "caravan/module/meta/accelerator_scope.h"
#include "caravan/module/meta/product_workspace.h"
#include "caravan/module/path.h"
#include "caravan/nn/experts/dispatch.h"
#include "caravan/nn/product/product.h"

namespace caravan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// torch's attention by two products and a softmax
constexpr auto kMathKernel = static_cast<int64_t>(at::SDPBackend::math);

at::Tensor to_fp32(const at::Tensor& x) { return x.to(at::kFloat); }

/// Heads that share keys and values read copies; torch's kernel wants equal numbers of heads.
at::Tensor repeated(const at::Tensor& x, int64_t group) { return group == 1 ? x : x.repeat_interleave(group, 1); }
at::Tensor summed(const at::Tensor& dx, int64_t group) {
  return group == 1 ? dx : dx.unflatten(1, {dx.size(1) / group, group}).sum(2);
}

/// Inputs, outputs and saved tensors in 16 bits; fp32 in between.
struct AttentionInFp32 : Function<AttentionInFp32> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const std::optional<at::Tensor>& bias, bool is_causal) {
    const int64_t group = q.size(1) / k.size(1);
    auto [wide, log_sum_exp] = at::_scaled_dot_product_flash_attention_for_cpu(
        to_fp32(q), repeated(to_fp32(k), group), repeated(to_fp32(v), group), 0.0, is_causal, bias);
    at::Tensor out = wide.to(q.scalar_type());
    take_path(bias.has_value() ? "fused attention in fp32 (masked)" : "fused attention in fp32", out);
    ctx->save_for_backward({q, k, v, out, log_sum_exp, bias.value_or(at::Tensor())});
    ctx->saved_data["is_causal"] = is_causal;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const int64_t group = saved[0].size(1) / saved[1].size(1);
    const std::optional<at::Tensor> bias = saved[5].defined() ? std::optional(saved[5]) : std::nullopt;
    const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        to_fp32(grads[0]), to_fp32(saved[0]), repeated(to_fp32(saved[1]), group), repeated(to_fp32(saved[2]), group),
        to_fp32(saved[3]), saved[4], 0.0, ctx->saved_data["is_causal"].toBool(), bias);
    take_path("fused attention backward in fp32", dq);
    const auto rounded = [type = saved[0].scalar_type()](const at::Tensor& x) { return x.to(type); };
    return {rounded(dq), rounded(summed(dk, group)), rounded(summed(dv, group)), {}, {}};
  }
};

/// The kernel that scaled_dot_product_attention chooses for the CPU.
struct CausalAttention : Function<CausalAttention> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    auto [out, log_sum_exp] = at::_scaled_dot_product_flash_attention_for_cpu(q.transpose(1, 2), k.transpose(1, 2),
                                                                              v.transpose(1, 2), 0.0, true);
    out = out.transpose(1, 2);
    take_path("fused attention", out);
    ctx->save_for_backward({q, k, v, out, log_sum_exp});
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const auto by_head = [](const at::Tensor& x) { return x.transpose(1, 2); };
    const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        by_head(grads[0]), by_head(saved[0]), by_head(saved[1]), by_head(saved[2]), by_head(saved[3]), saved[4], 0.0,
        true);
    take_path("fused attention backward", dq);
    return {by_head(dq), by_head(dk), by_head(dv)};
  }
};

/// torch's fused kernel supports a mask only as numbers that are added to the scores.
at::Tensor added_to_scores(const at::Tensor& mask, at::ScalarType type = at::kFloat) {
  const at::Tensor bias = at::zeros(mask.sizes(), mask.options().dtype(type));
  return bias.masked_fill(mask.logical_not(), -std::numeric_limits<double>::infinity());
}

/// The kernel that scaled_dot_product_attention chooses for such tensors on the CPU; on meta tensors it would choose
/// products.
at::Tensor fused_on_meta(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         const std::optional<at::Tensor>& mask, bool is_causal) {
  std::optional<at::Tensor> bias;
  if (mask.has_value()) bias = at::zeros(mask->sizes(), q.options());
  return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, is_causal, bias));
}

bool attends_in_fp32(const at::Tensor& q) {
  if (is_on_accelerator(q)) return false;
  return q.scalar_type() == at::kHalf ||
         (q.scalar_type() == at::kBFloat16 && product_choice_in_use().attention == Bf16Arithmetic::fp32);
}

/// a b, one sequence of the batch at a time: the widened operands of all would take as much additional memory as
/// attention's weights.
at::Tensor multiplied(const at::Tensor& a, const at::Tensor& b) {
  at::Tensor out = at::empty({a.size(0), a.size(1), a.size(2), b.size(3)}, a.options());
  for (int64_t i = 0; i < a.size(0); ++i) out[i].copy_(at::bmm(to_fp32(a[i]), to_fp32(b[i])));
  return out;
}

struct ProductInFp32 : Function<ProductInFp32> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& a, const at::Tensor& b) {
    ctx->save_for_backward({a, b});
    return multiplied(a, b);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    return {multiplied(grads[0], saved[1].transpose(2, 3)), multiplied(saved[0].transpose(2, 3), grads[0])};
  }
};

/// Batched products of meta tensors, with the memory that torch's library takes for real ones.
struct ProductOnMeta : Function<ProductOnMeta> {
  static at::Tensor multiply(const at::Tensor& a, const at::Tensor& b) {
    const at::Tensor out = at::bmm(a, b);
    const auto call = [](const at::Tensor& x, const at::Tensor& y, const auto&) { return at::bmm(x, y); };
    if (a.scalar_type() == at::kBFloat16 && out.numel() > 0) product_workspace(a, b, std::nullopt, call);
    return out;
  }
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& a, const at::Tensor& b) {
    ctx->save_for_backward({a, b});
    return multiply(a, b);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor of_b = multiply(saved[0].transpose(1, 2), grads[0]);  // autograd computes it first
    return {multiply(grads[0], saved[1].transpose(1, 2)), of_b};
  }
};

/// As in at::matmul.
at::Tensor product_on_meta(const at::Tensor& a, const at::Tensor& b) {
  const auto batched = [](const at::Tensor& x) { return x.reshape({x.size(0) * x.size(1), x.size(2), x.size(3)}); };
  return at::_unsafe_view(ProductOnMeta::apply(batched(a), batched(b)), {a.size(0), a.size(1), a.size(2), b.size(3)});
}

/// The dtype in which a block is computed, and of its result.
at::ScalarType kernel_type(const at::Tensor& q) { return attends_in_fp32(q) ? at::kFloat : q.scalar_type(); }
at::ScalarType block_type(const at::Tensor& q) { return compute_type(q.scalar_type()); }

/// The layout that the kernels need: [batch, heads, positions, width].
at::Tensor for_kernel(const at::Tensor& x, at::ScalarType type, int64_t group = 1) {
  return repeated(x.to(type).transpose(1, 2), group);
}

/// A path for each way in which a block is called.
std::string block_path(const char* what, bool is_masked, bool is_causal) {
  return fmt::format("{} of {} block{}", what, is_causal ? "own" : "another", is_masked ? " (masked)" : "");
}

std::optional<at::Tensor> bias_of(const std::optional<at::Tensor>& mask, at::ScalarType type) {
  if (!mask.has_value()) return std::nullopt;
  return added_to_scores(*mask, type == at::kDouble ? at::kDouble : at::kFloat);
}

}  // namespace

AttentionBlock AttentionBlock::queries(int64_t first, int64_t count) const {
  return {out.narrow(1, first, count), log_sum_exp.narrow(2, first, count)};
}

void AttentionBlock::merge(const AttentionBlock& other) const {
  const at::Tensor share = at::sigmoid(other.log_sum_exp - log_sum_exp);
  out.lerp_(other.out, share.transpose(1, 2).unsqueeze(-1));
  log_sum_exp.copy_(at::logaddexp(log_sum_exp, other.log_sum_exp));
}

AttentionBlock attend_to_block(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const std::optional<at::Tensor>& mask, bool is_causal) {
  const at::ScalarType type = kernel_type(q);
  const int64_t group = q.size(2) / k.size(2);
  auto [out, log_sum_exp] = at::_scaled_dot_product_flash_attention_for_cpu(
      for_kernel(q, type), for_kernel(k, type, group), for_kernel(v, type, group), 0.0, is_causal, bias_of(mask, type));
  out = out.transpose(1, 2).to(block_type(q));
  take_path(block_path("ring attention", mask.has_value(), is_causal), out);
  if (mask.has_value()) {  // the kernel gives 0 for both if nothing is visible
    const at::Tensor sees_nothing = mask->any(-1).logical_not();
    log_sum_exp.masked_fill_(sees_nothing, -std::numeric_limits<double>::infinity());
    out.masked_fill_(sees_nothing.transpose(-1, -2).unsqueeze(-1), 0);
  }
  return {out, log_sum_exp};
}

BlockGradients block_gradients(const at::Tensor& gradient, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const AttentionBlock& all, const std::optional<at::Tensor>& mask,
                               bool is_causal) {
  const at::ScalarType type = kernel_type(q);
  const int64_t group = q.size(2) / k.size(2);
  const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      for_kernel(gradient, type), for_kernel(q, type), for_kernel(k, type, group), for_kernel(v, type, group),
      for_kernel(all.out, type), all.log_sum_exp, 0.0, is_causal, bias_of(mask, type));
  take_path(block_path("ring attention backward", mask.has_value(), is_causal), dq);
  const auto finished = [&](const at::Tensor& x, int64_t of) {
    return summed(x.to(block_type(q)), of).transpose(1, 2).contiguous();
  };
  return {finished(dq, 1), finished(dk, group), finished(dv, group)};
}

at::Tensor attention_product(const at::Tensor& a, const at::Tensor& b) {
  if (attends_in_fp32(a)) return ProductInFp32::apply(a, b);
  return a.is_meta() ? product_on_meta(a, b) : at::matmul(a, b);
}

at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const bool is_flash = !q.is_cuda() && !attends_in_fp32(q) && q.size(2) == k.size(2) && q.numel() > 0;
  if (is_flash) return CausalAttention::apply(q, k, v);
  return fused_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), std::nullopt, true).transpose(1, 2);
}

at::Tensor fused_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const std::optional<at::Tensor>& mask, bool is_causal) {
  if (!attends_in_fp32(q) || q.numel() == 0 || k.numel() == 0) {
    const bool is_grouped = q.size(1) != k.size(1);
    const bool is_dry = q.is_meta() && q.numel() > 0 && k.numel() > 0;
    const at::Tensor out =
        is_dry ? fused_on_meta(q, k, v, mask, is_causal)
               : at::scaled_dot_product_attention(q, k, v, mask, 0.0, is_causal, std::nullopt, is_grouped);
    if (PathLog::current() == nullptr) return out;
    const bool is_flash =
        is_dry || at::_fused_sdp_choice(q, k, v, mask, 0.0, is_causal, std::nullopt, is_grouped) != kMathKernel;
    return taken(
        fmt::format("torch's attention {}{}", is_flash ? "fused" : "in products", mask.has_value() ? " (masked)" : ""),
        out);
  }
  const auto bias = mask.has_value() ? std::optional(added_to_scores(*mask)) : std::nullopt;
  return AttentionInFp32::apply(q, k, v, bias, is_causal);
}

}  // namespace caravan
