#include "caravan/nn/attention/fused_attention.h"

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <ATen/SDPBackend.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/module/meta/accelerator_scope.h"
#include "caravan/module/path.h"
#include "caravan/nn/attention/attention_in_memory.h"
#include "caravan/nn/attention/one_query.h"
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

/// Throws UsageError for bf16 operands that no tiles multiply.
TileOperands operands_of(const at::Tensor& q) {
  if (q.scalar_type() != at::kBFloat16) return TileOperands::fp32;
  if (attends_in_fp32(q)) {
    const bool is_native = product_choice_in_use().bf16 == Bf16Arithmetic::native && has_bf16_tiles();
    return is_native ? TileOperands::exact_bf16 : TileOperands::fp32;
  }
  if (q.is_meta() || has_bf16_tiles()) return TileOperands::rounded_bf16;
  throw UsageError({"attention", "attention=native", "there are no products of bf16 tiles on this processor", "",
                    "set CARAVAN_PRODUCTS=attention=fp32, or start the ranks on processors of one kind"});
}

/// Whether the kernels of this library compute it.
bool is_own(const at::Tensor& q, const at::Tensor& k) {
  return !is_on_accelerator(q) && q.scalar_type() != at::kDouble && q.numel() > 0 && k.numel() > 0;
}
bool has_gradient(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& bias) {
  const auto has = [](const at::Tensor& x) { return x.defined() && x.requires_grad(); };
  return at::GradMode::is_enabled() && (has(q) || has(k) || has(v) || has(bias));
}

/// " (masked, capped)".
std::string kind_of(const VisibleKeys& seen, const Scores& scores) {
  std::vector<std::string> kinds;
  if (seen.is_masked()) kinds.emplace_back("masked");
  if (scores.soft_cap > 0) kinds.emplace_back("capped");
  if (scores.bias.defined()) kinds.emplace_back("biased");
  return kinds.empty() ? "" : fmt::format(" ({})", join(kinds, ", "));
}

/// "fused attention backward in fp32 (masked)".
std::string path_of_tiles(const char* what, const at::Tensor& q, const VisibleKeys& seen, const Scores& scores) {
  return fmt::format("{}{}{}", what, attends_in_fp32(q) ? " in fp32" : "", kind_of(seen, scores));
}

struct FusedAttention : Function<FusedAttention> {
  /// The bias is that of the scores, if they have one: an argument, for its gradient.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const std::optional<at::Tensor>& /*bias*/, const VisibleKeys& seen, const Scores& scores,
                            const c10::intrusive_ptr<AttentionDropout>& dropout) {
    const auto [out, log_sum_exp] =
        tiled_attention(q, k, v, seen, scores, dropout.get(), operands_of(q), q.scalar_type());
    take_path(path_of_tiles(dropout ? "attention with dropout" : "fused attention", q, seen, scores), out);
    const auto [bounds, query_documents, key_documents] = seen.saved();
    ctx->save_for_backward({q, k, v, out, log_sum_exp, bounds, query_documents, key_documents, scores.bias,
                            scores.query_positions, scores.key_positions});
    ctx->saved_data["is_causal"] = seen.is_causal();
    ctx->saved_data["window"] = seen.window();
    ctx->saved_data["scale"] = scores.scale;
    ctx->saved_data["soft_cap"] = scores.soft_cap;
    ctx->saved_data["zero"] = scores.zero;
    if (dropout) ctx->saved_data["dropout"] = c10::IValue::make_capsule(dropout);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& q = saved[0];
    const auto of = [&](const char* name) -> const c10::IValue& { return ctx->saved_data.at(name); };
    const VisibleKeys seen =
        VisibleKeys::restored(of("is_causal").toBool(), of("window").toInt(), {saved[5], saved[6], saved[7]});
    const Scores scores{.scale = of("scale").toDouble(),
                        .soft_cap = of("soft_cap").toDouble(),
                        .bias = saved[8],
                        .zero = of("zero").toInt(),
                        .query_positions = saved[9],
                        .key_positions = saved[10]};
    const auto holder = ctx->saved_data.find("dropout");
    const bool drops = holder != ctx->saved_data.end();
    const auto capsule = drops ? holder->second.toCapsule() : c10::intrusive_ptr<torch::CustomClassHolder>();
    const auto [dq, dk, dv, of_bias] =
        tiled_attention_backward(grads[0], q, saved[1], saved[2], {saved[3], saved[4]}, seen, scores,
                                 static_cast<const AttentionDropout*>(capsule.get()), operands_of(q), q.scalar_type());
    const char* what = drops ? "attention with dropout, backward" : "fused attention backward";
    take_path(path_of_tiles(what, q, seen, scores), dq);
    return {dq, dk, dv, of_bias, {}, {}, {}};
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
                         const std::optional<at::Tensor>& mask, bool is_causal, std::optional<double> scale) {
  std::optional<at::Tensor> bias;
  if (mask.has_value()) bias = at::zeros(mask->sizes(), q.options());
  return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, is_causal, bias, scale));
}

/// Of a block, and of its gradients.
at::ScalarType block_type(const at::Tensor& q) { return compute_type(q.scalar_type()); }

/// A path for each way in which a block is called.
std::string block_path(const char* what, const VisibleKeys& seen, const Scores& scores) {
  return fmt::format("{} of {} block{}", what, seen.is_causal() ? "own" : "another", kind_of(seen, scores));
}

/// For torch's kernels, which take a mask or a flag.
bool is_only_causal(const VisibleKeys& seen) { return seen.is_causal() && !seen.is_masked(); }

std::optional<at::Tensor> fp64_bias(const VisibleKeys& seen, const at::Tensor& q, const at::Tensor& k) {
  if (!seen.is_masked()) return std::nullopt;
  return added_to_scores(seen.mask(q.size(1), k.size(1), q), at::kDouble);
}

/// In fp64, by torch's kernel, or with all scores in memory where it lacks them.
TiledAttention fp64_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const VisibleKeys& seen,
                              const Scores& scores) {
  if (!scores.is_plain()) return block_in_memory(q, k, v, seen, scores);
  const int64_t group = q.size(2) / k.size(2);
  auto [out, log_sum_exp] = at::_scaled_dot_product_flash_attention_for_cpu(
      by_head(q), repeated(by_head(k), group), repeated(by_head(v), group), 0.0, is_only_causal(seen),
      fp64_bias(seen, q, k), scores.scale_of(q.size(3)));
  out = by_head(out);
  if (seen.is_masked()) {  // the kernel gives 0 for both if nothing is visible
    const at::Tensor sees_nothing = seen.mask(q.size(1), k.size(1), q).any(-1).logical_not();
    log_sum_exp.masked_fill_(sees_nothing, -std::numeric_limits<double>::infinity());
    out.masked_fill_(by_head(sees_nothing).unsqueeze(-1), 0);
  }
  return {out, log_sum_exp};
}

AttentionGradients fp64_attention_backward(const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k,
                                           const at::Tensor& v, const TiledAttention& all, const VisibleKeys& seen,
                                           const Scores& scores) {
  if (!scores.is_plain()) return block_gradients_in_memory(dy, q, k, v, all, seen, scores);
  const int64_t group = q.size(2) / k.size(2);
  const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      by_head(dy), by_head(q), repeated(by_head(k), group), repeated(by_head(v), group), by_head(all.out),
      all.log_sum_exp, 0.0, is_only_causal(seen), fp64_bias(seen, q, k), scores.scale_of(q.size(3)));
  const auto finished = [](const at::Tensor& x, int64_t of) { return by_head(summed(x, of)).contiguous(); };
  return {finished(dq, 1), finished(dk, group), finished(dv, group), at::Tensor()};
}

/// By torch's choice of kernel: plain scores.
at::Tensor attention_of_torch(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const VisibleKeys& seen,
                              std::optional<double> scale) {
  const bool is_grouped = q.size(2) != k.size(2);
  const auto mask = seen.is_masked() ? std::optional(seen.mask(q.size(1), k.size(1), q)) : std::optional<at::Tensor>();
  const bool is_causal = is_only_causal(seen);
  const at::Tensor queries = by_head(q), keys = by_head(k), values = by_head(v);
  const bool is_dry = q.is_meta() && q.numel() > 0 && k.numel() > 0;
  const at::Tensor out = by_head(
      is_dry ? fused_on_meta(queries, keys, values, mask, is_causal, scale)
             : at::scaled_dot_product_attention(queries, keys, values, mask, 0.0, is_causal, scale, is_grouped));
  if (PathLog::current() == nullptr) return out;
  const bool is_flash =
      is_dry || at::_fused_sdp_choice(queries, keys, values, mask, 0.0, is_causal, scale, is_grouped) != kMathKernel;
  return taken(
      fmt::format("torch's attention {}{}", is_flash ? "fused" : "in products", mask.has_value() ? " (masked)" : ""),
      out);
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

AttentionBlock attend_to_block(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const VisibleKeys& seen,
                               const Scores& scores) {
  auto [out, log_sum_exp] = q.scalar_type() == at::kDouble
                                ? fp64_attention(q, k, v, seen, scores)
                                : tiled_attention(q, k, v, seen, scores, nullptr, operands_of(q), block_type(q));
  take_path(block_path("ring attention", seen, scores), out);
  return {out, log_sum_exp};
}

BlockGradients block_gradients(const at::Tensor& gradient, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const AttentionBlock& all, const VisibleKeys& seen,
                               const Scores& scores) {
  const TiledAttention of_all{all.out, all.log_sum_exp};
  auto [dq, dk, dv, of_bias] =
      q.scalar_type() == at::kDouble
          ? fp64_attention_backward(gradient, q, k, v, of_all, seen, scores)
          : tiled_attention_backward(gradient, q, k, v, of_all, seen, scores, nullptr, operands_of(q), block_type(q));
  take_path(block_path("ring attention backward", seen, scores), dq);
  return {dq, dk, dv, of_bias};
}

at::Tensor fused_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const VisibleKeys& seen,
                           const Scores& scores, const c10::intrusive_ptr<AttentionDropout>& dropout) {
  if (is_own(q, k)) {
    if (q.size(1) == 1 && !dropout && !has_gradient(q, k, v, scores.bias)) {
      const at::Tensor out = attention_of_one_query(q, k, v, seen, scores);
      take_path("attention of one query" + kind_of(seen, scores), out);
      return out;
    }
    const auto bias = scores.bias.defined() ? std::optional(scores.bias) : std::nullopt;
    return FusedAttention::apply(q, k, v, bias, seen, scores, dropout);
  }
  check_scores(scores, q, k, seen);
  const bool drops = dropout && q.numel() > 0 && k.numel() > 0;
  if (drops || !scores.is_plain()) {
    const char* what = drops ? "attention with dropout" : "attention in memory";
    return taken(what + kind_of(seen, scores),
                 attention_in_memory(q, k, v, seen, scores, drops ? dropout.get() : nullptr));
  }
  return attention_of_torch(q, k, v, seen, scores.scale == 0 ? std::nullopt : std::optional(scores.scale));
}

}  // namespace caravan
