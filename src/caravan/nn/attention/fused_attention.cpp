#include "caravan/nn/attention/fused_attention.h"

#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include <ATen/SDPBackend.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include "caravan/base/error.h"
#include "caravan/module/meta/accelerator_scope.h"
#include "caravan/module/path.h"
#include "caravan/nn/attention/tiled_attention.h"
#include "caravan/nn/experts/dispatch.h"
#include "caravan/nn/product/product.h"
#include "caravan/nn/product/tile_product.h"

namespace caravan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// torch's attention by two products and a softmax
constexpr auto kMathKernel = static_cast<int64_t>(at::SDPBackend::math);

at::Tensor by_head(const at::Tensor& x) { return x.transpose(1, 2); }

/// Heads that share keys and values read copies; torch's kernel wants equal numbers of heads.
at::Tensor repeated(const at::Tensor& x, int64_t group) { return group == 1 ? x : x.repeat_interleave(group, 1); }
at::Tensor summed(const at::Tensor& dx, int64_t group) {
  return group == 1 ? dx : dx.unflatten(1, {dx.size(1) / group, group}).sum(2);
}

bool attends_in_fp32(const at::Tensor& q) {
  if (is_on_accelerator(q)) return false;
  return q.scalar_type() == at::kHalf ||
         (q.scalar_type() == at::kBFloat16 && product_choice_in_use().attention == Bf16Arithmetic::fp32);
}

/// Throws UsageError for bf16 operands that oneDNN cannot multiply.
TileOperands operands_of(const at::Tensor& q) {
  if (q.scalar_type() != at::kBFloat16) return TileOperands::fp32;
  if (attends_in_fp32(q)) {
    const bool is_native = product_choice_in_use().bf16 == Bf16Arithmetic::native && has_bf16_tiles();
    return is_native ? TileOperands::exact_bf16 : TileOperands::fp32;
  }
  if (q.is_meta() || has_bf16_tiles()) return TileOperands::rounded_bf16;
  throw UsageError({"attention", "attention=native", "oneDNN has no products of bf16 tiles on this processor", "",
                    "set CARAVAN_PRODUCTS=attention=fp32, or start the ranks on processors of one kind"});
}

/// Whether the tiles of this library can compute it, and whether they do: one query alone is torch's.
bool can_be_tiled(const at::Tensor& q, const at::Tensor& k) {
  return !is_on_accelerator(q) && q.scalar_type() != at::kDouble && q.numel() > 0 && k.numel() > 0;
}
bool is_tiled(const at::Tensor& q, const at::Tensor& k) {
  return can_be_tiled(q, k) && (q.size(1) > 1 || attends_in_fp32(q));
}

/// "fused attention backward in fp32 (masked)".
std::string path_of_tiles(const char* what, const at::Tensor& q, bool has_ranges) {
  return fmt::format("{}{}{}", what, attends_in_fp32(q) ? " in fp32" : "", has_ranges ? " (masked)" : "");
}

struct FusedAttention : Function<FusedAttention> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const VisibleKeys& seen, const c10::intrusive_ptr<AttentionDropout>& dropout) {
    const auto [out, log_sum_exp] = tiled_attention(q, k, v, seen, dropout.get(), operands_of(q), q.scalar_type());
    take_path(path_of_tiles(dropout ? "attention with dropout" : "fused attention", q, seen.has_ranges()), out);
    const auto [bounds, query_documents, key_documents] = seen.saved();
    ctx->save_for_backward({q, k, v, out, log_sum_exp, bounds, query_documents, key_documents});
    ctx->saved_data["is_causal"] = seen.is_causal();
    if (dropout) ctx->saved_data["dropout"] = c10::IValue::make_capsule(dropout);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& q = saved[0];
    const VisibleKeys seen =
        VisibleKeys::restored(ctx->saved_data["is_causal"].toBool(), {saved[5], saved[6], saved[7]});
    const auto holder = ctx->saved_data.find("dropout");
    const bool drops = holder != ctx->saved_data.end();
    const auto capsule = drops ? holder->second.toCapsule() : c10::intrusive_ptr<torch::CustomClassHolder>();
    const auto [dq, dk, dv] =
        tiled_attention_backward(grads[0], q, saved[1], saved[2], {saved[3], saved[4]}, seen,
                                 static_cast<const AttentionDropout*>(capsule.get()), operands_of(q), q.scalar_type());
    const char* what = drops ? "attention with dropout, backward" : "fused attention backward";
    take_path(path_of_tiles(what, q, seen.has_ranges()), dq);
    return {dq, dk, dv, {}, {}};
  }
};

/// torch's fused kernel supports a mask only as numbers that are added to the scores.
at::Tensor added_to_scores(const at::Tensor& mask, at::ScalarType type) {
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

/// Of a block, and of its gradients.
at::ScalarType block_type(const at::Tensor& q) { return compute_type(q.scalar_type()); }

/// A path for each way in which a block is called.
std::string block_path(const char* what, const VisibleKeys& seen) {
  return fmt::format("{} of {} block{}", what, seen.is_causal() ? "own" : "another",
                     seen.has_ranges() ? " (masked)" : "");
}

/// For torch's kernels, which take a mask or a flag.
bool is_only_causal(const VisibleKeys& seen) { return seen.is_causal() && !seen.has_ranges(); }

std::optional<at::Tensor> fp64_bias(const VisibleKeys& seen, const at::Tensor& q, const at::Tensor& k) {
  if (!seen.has_ranges()) return std::nullopt;
  return added_to_scores(seen.mask(q.size(1), k.size(1), q), at::kDouble);
}

/// In fp64, by torch's kernel.
TiledAttention fp64_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const VisibleKeys& seen) {
  const int64_t group = q.size(2) / k.size(2);
  auto [out, log_sum_exp] = at::_scaled_dot_product_flash_attention_for_cpu(
      by_head(q), repeated(by_head(k), group), repeated(by_head(v), group), 0.0, is_only_causal(seen),
      fp64_bias(seen, q, k));
  out = by_head(out);
  if (seen.has_ranges()) {  // the kernel gives 0 for both if nothing is visible
    const at::Tensor sees_nothing = seen.mask(q.size(1), k.size(1), q).any(-1).logical_not();
    log_sum_exp.masked_fill_(sees_nothing, -std::numeric_limits<double>::infinity());
    out.masked_fill_(by_head(sees_nothing).unsqueeze(-1), 0);
  }
  return {out, log_sum_exp};
}

AttentionGradients fp64_attention_backward(const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k,
                                           const at::Tensor& v, const TiledAttention& all, const VisibleKeys& seen) {
  const int64_t group = q.size(2) / k.size(2);
  const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      by_head(dy), by_head(q), repeated(by_head(k), group), repeated(by_head(v), group), by_head(all.out),
      all.log_sum_exp, 0.0, is_only_causal(seen), fp64_bias(seen, q, k));
  const auto finished = [](const at::Tensor& x, int64_t of) { return by_head(summed(x, of)).contiguous(); };
  return {finished(dq, 1), finished(dk, group), finished(dv, group)};
}

/// By the plain formula, with all weights in memory.
at::Tensor fp64_attention_with_dropout(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                       const VisibleKeys& seen, const AttentionDropout& dropout) {
  const int64_t group = q.size(2) / k.size(2);
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
  const at::Tensor keys = repeated(by_head(k), group), values = repeated(by_head(v), group);
  const at::Tensor hidden = seen.mask(q.size(1), k.size(1), q).logical_not();
  const at::Tensor scores = at::matmul(by_head(q) * scale, keys.transpose(2, 3));
  const at::Tensor weights = at::softmax(scores.masked_fill(hidden, -std::numeric_limits<double>::infinity()), -1);
  return taken("attention with dropout", by_head(at::matmul(dropout.dropped(weights), values)));
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

AttentionBlock attend_to_block(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const VisibleKeys& seen) {
  auto [out, log_sum_exp] = q.scalar_type() == at::kDouble
                                ? fp64_attention(q, k, v, seen)
                                : tiled_attention(q, k, v, seen, nullptr, operands_of(q), block_type(q));
  take_path(block_path("ring attention", seen), out);
  return {out, log_sum_exp};
}

BlockGradients block_gradients(const at::Tensor& gradient, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const AttentionBlock& all, const VisibleKeys& seen) {
  const TiledAttention of_all{all.out, all.log_sum_exp};
  auto [dq, dk, dv] = q.scalar_type() == at::kDouble ? fp64_attention_backward(gradient, q, k, v, of_all, seen)
                                                     : tiled_attention_backward(gradient, q, k, v, of_all, seen,
                                                                                nullptr, operands_of(q), block_type(q));
  take_path(block_path("ring attention backward", seen), dq);
  return {dq, dk, dv};
}

at::Tensor fused_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const VisibleKeys& seen,
                           const c10::intrusive_ptr<AttentionDropout>& dropout) {
  if (is_tiled(q, k) || (dropout && can_be_tiled(q, k))) return FusedAttention::apply(q, k, v, seen, dropout);
  if (dropout && q.numel() > 0 && k.numel() > 0) return fp64_attention_with_dropout(q, k, v, seen, *dropout);
  const bool is_grouped = q.size(2) != k.size(2);
  const auto mask = seen.has_ranges() ? std::optional(seen.mask(q.size(1), k.size(1), q)) : std::optional<at::Tensor>();
  const bool is_causal = is_only_causal(seen);
  const at::Tensor queries = by_head(q), keys = by_head(k), values = by_head(v);
  const bool is_dry = q.is_meta() && q.numel() > 0 && k.numel() > 0;
  const at::Tensor out = by_head(
      is_dry ? fused_on_meta(queries, keys, values, mask, is_causal)
             : at::scaled_dot_product_attention(queries, keys, values, mask, 0.0, is_causal, std::nullopt, is_grouped));
  if (PathLog::current() == nullptr) return out;
  const bool is_flash = is_dry || at::_fused_sdp_choice(queries, keys, values, mask, 0.0, is_causal, std::nullopt,
                                                        is_grouped) != kMathKernel;
  return taken(
      fmt::format("torch's attention {}{}", is_flash ? "fused" : "in products", mask.has_value() ? " (masked)" : ""),
      out);
}

}  // namespace caravan
