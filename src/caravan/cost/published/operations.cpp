#include "caravan/cost/published/operations.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "caravan/cost/constants/operations.h"
#include "caravan/cost/hardware_costs.h"

namespace caravan::published {
namespace {

using enum Communication::Behind;
using fitted::Elementwise;
enum class Way : uint8_t { forward, backward };

int64_t whole(double value) { return std::max<int64_t>(1, std::llround(value)); }

int64_t size_of_axis(const Run& run, const std::string& axis) {
  return axis == "tp" ? run.tp : axis == "cp" ? run.cp : axis == "dp" ? run.dp : run.dp * run.cp;
}

/// `bytes` of the whole tensor.
void add_call(Pass& pass, const Run& run, const char* axis, Verb verb, double bytes,
              Communication::Behind behind = nothing) {
  const double sent = ring_bytes(verb, bytes, size_of_axis(run, axis));
  pass.calls.push_back({{.axis = axis, .verb = verb, .what = "", .sent_bytes = sent}, behind});
}

struct Product {
  double m, n, k;
  bool is_of_weights = false;  ///< of gradients and inputs: k are tokens, which m is of others
};

void add_product(Pass& pass, const std::string& dtype, const Product& size, double count = 1) {
  // Tensors have a row for each token, so how many tokens there are does not move the begin of a row.
  const double features = size.is_of_weights ? size.m : size.k;
  pass.computes.push_back({.work = {.kind = KernelWork::Kind::product,
                                    .what = "mm",
                                    .dtype = dtype,
                                    .batch = whole(count),
                                    .m = whole(size.m),
                                    .n = whole(size.n),
                                    .k = whole(size.k),
                                    .is_unaligned = whole(size.n) % 8 != 0 || whole(features) % 8 != 0},
                           .kernels = 1,
                           .launches = fitted::kProductLaunches});
}

void add_moves(Pass& pass, const char* what, double bytes, double kernels) {
  pass.computes.push_back(
      {.work = {.what = what, .bytes = std::llround(std::min(bytes, 9e18))}, .kernels = kernels, .launches = kernels});
}

/// Of qkv, projection, up and down. Experts see each token as often as it is sent to one.
std::vector<Product> layer_products(const Run& run) {
  const double tokens = std::floor(run.tokens()),
               to_experts = std::floor(run.tokens() * static_cast<double>(run.experts_per_token));
  const auto width = static_cast<double>(run.width);
  const auto part = [&](int64_t size) {
    const int64_t of_rank = size / run.tp;
    return static_cast<double>(of_rank);
  };
  return {{tokens, part(run.width + 2 * run.kv_heads * run.head_width), width},
          {tokens, width, part(run.width)},
          {to_experts, part((run.is_gated ? 2 : 1) * run.mlp_width), width},
          {to_experts, width, part(run.mlp_width)}};
}

/// Scores, softmax, dropout and values.
void add_attention(Pass& pass, const Run& run, Way way) {
  const double queries = static_cast<double>(run.sequence) / static_cast<double>(run.cp);
  const auto keys = static_cast<double>(run.sequence), head = static_cast<double>(run.head_width);
  const double heads = static_cast<double>(run.micro_batch * run.heads) / static_cast<double>(run.tp);
  const bool is_forward = way == Way::forward;
  if (run.is_flash) {
    pass.computes.push_back({.work = {.kind = KernelWork::Kind::attention,
                                      .what = "attention",
                                      .dtype = run.dtype,
                                      .batch = whole(heads),
                                      .m = whole(queries),
                                      .n = run.sequence,
                                      .k = run.head_width,
                                      .products = is_forward ? 2 : 5,
                                      .is_causal = run.is_causal},
                             .kernels = 1,
                             .launches = fitted::kAttentionLaunches});
    return;
  }
  const int times = is_forward ? 1 : 2;
  for (int i = 0; i < times; ++i) {
    add_product(pass, run.dtype, {queries, keys, head}, heads);
    add_product(pass, run.dtype, {queries, head, keys}, heads);
  }
  const fitted::SoftmaxWork& work = run.framework.fuses_softmax ? fitted::kFusedSoftmax : fitted::kEagerSoftmax;
  const double bytes = is_forward ? work.forward : work.backward;
  add_moves(pass, "softmax", bytes * heads * queries * keys * run.element_bytes / 2, work.kernels * times);
}

/// Norms, residuals, biases, dropout, activations and rotary positions, counted in bytes of 16-bit elements.
void add_elementwise(Pass& pass, const Run& run, Way way) {
  const double tp = static_cast<double>(run.tp),
               kv = static_cast<double>(run.kv_heads) / static_cast<double>(run.heads);
  const double tokens = run.tokens(), hidden = tokens * static_cast<double>(run.width);
  const double between = hidden / (run.cuts_sequence ? tp : 1), qkv = hidden * (1 + 2 * kv) / tp;
  const double inner = tokens * static_cast<double>(run.mlp_width) / tp;
  const bool is_eager = run.framework.kernels == Elementwise::eager;
  const fitted::ElementwiseWork& work = is_eager ? fitted::kEagerWork : fitted::kFusedWork;
  const double norm = run.is_llama ? work.rms_norm : work.norm;
  double bytes = between * 2 * (norm + work.residual + (run.has_dropout ? work.dropout : 0));
  bytes += inner * (run.is_gated ? work.gated : work.activation);
  bytes += qkv * work.qkv;
  if (run.is_llama) bytes += work.rotary * hidden * (1 + kv) / tp;
  if (run.framework.kernels == Elementwise::compiled) bytes *= fitted::kCompiledShare;
  if (run.dtype == "fp8") bytes += fitted::kFp8Casts * (2 * hidden + 2 * hidden / tp + inner);
  const double kernels = run.is_llama ? work.of_llama : work.kernels;
  const bool is_forward = way == Way::forward;
  add_moves(pass, "elementwise", bytes * run.element_bytes / 2 * (is_forward ? 1 : work.backward),
            kernels * (is_forward ? 1 : 2));
}

/// Of tensor parallelism: Megatron's (arXiv 1909.08053), with cut sequences (arXiv 2205.05198), or over squares and
/// cubes of ranks (Xu et al., arXiv 2104.05343; Bian et al., arXiv 2105.14450).
void add_tensor_calls(const Run& run, double bytes, Pass& forward, Pass& backward) {
  if (run.tp == 1) return;
  const fitted::Framework& traits = run.framework;
  const auto behind_forward = traits.tp_hidden > 0 ? products : nothing;
  const auto behind_backward = traits.tp_behind_weights || run.cuts_sequence ? weight_gradients : behind_forward;
  if (run.tensor_cube > 0) {
    const auto tp = static_cast<double>(run.tp);
    const double side = std::round(std::pow(tp, 1 / run.tensor_cube));
    const double volume = 2 * (side - 1) / tp *
                          (run.tokens() * static_cast<double>(run.width) *
                               (4 + 0.75 * static_cast<double>(run.mlp_width) / static_cast<double>(run.width)) +
                           run.layer_weights);
    const double whole_bytes = volume / 4 * tp / (tp - 1);
    for (int i = 0; i < 4; ++i) add_call(forward, run, "tp", Verb::all_gather, whole_bytes, behind_forward);
    for (int i = 0; i < 8; ++i) add_call(backward, run, "tp", Verb::all_gather, whole_bytes, behind_forward);
    return;
  }
  for (int i = 0; i < 2; ++i) {  // attention and MLP
    if (run.cuts_sequence) {
      add_call(forward, run, "tp", Verb::all_gather, bytes, behind_forward);
      add_call(forward, run, "tp", Verb::reduce_scatter, bytes, behind_forward);
      for (const Verb verb : {Verb::all_gather, Verb::reduce_scatter, Verb::all_gather}) {
        add_call(backward, run, "tp", verb, bytes, behind_backward);
      }
    } else {
      add_call(forward, run, "tp", Verb::all_reduce, bytes, behind_forward);
      add_call(backward, run, "tp", Verb::all_reduce, bytes, behind_backward);
    }
  }
}

/// Of context parallelism: keys and values of all ranks go round (arXiv 2310.01889), or heads are exchanged for tokens
/// (Jacobs et al., arXiv 2309.14509).
void add_context_calls(const Run& run, double bytes, Pass& forward, Pass& backward) {
  if (run.cp == 1) return;
  const auto cp = static_cast<double>(run.cp), tp = static_cast<double>(run.tp);
  const double kv = static_cast<double>(run.kv_heads) / static_cast<double>(run.heads);
  if (run.is_ulysses) {
    for (const double share : {1.0, kv, kv, 1.0}) {
      for (Pass* pass : {&forward, &backward}) add_call(*pass, run, "cp", Verb::all_to_all, bytes * cp / tp * share);
    }
    return;
  }
  const double all =
      2 * bytes * static_cast<double>(run.kv_heads * run.head_width) / static_cast<double>(run.width) / tp * cp;
  add_call(forward, run, "cp", Verb::all_gather, all, attention);
  add_call(backward, run, "cp", Verb::all_gather, all, attention);
  add_call(backward, run, "cp", Verb::reduce_scatter, all, attention);
}

Pass recompute_pass(const Run& run, const Pass& forward, const std::vector<Product>& products) {
  Pass pass;
  switch (run.recompute) {
    case Run::Recompute::none: break;
    case Run::Recompute::full: {
      pass = forward;
      // The last product saves nothing that backward reads.
      if (run.framework.stops_early)
        pass.computes.erase(pass.computes.begin() + static_cast<std::ptrdiff_t>(products.size()) - 1);
      pass.share = run.recomputed;
      break;
    }
    case Run::Recompute::operators:  // torchtitan saves every second product, attention and reduce-scatters
      add_product(pass, run.dtype, products[0]);
      add_product(pass, run.dtype, products[2]);
      add_elementwise(pass, run, Way::forward);
      pass.share = fitted::kOperatorShare;
      break;
    case Run::Recompute::attention:
      if (!run.is_flash) add_attention(pass, run, Way::forward);
      break;
  }
  return pass;
}

}  // namespace

Passes layer_passes(const Run& run) {
  const double bytes = run.element_bytes * run.tokens() * static_cast<double>(run.width);
  const std::vector<Product> products = layer_products(run);
  Passes passes;
  for (const Product& one : products) {
    add_product(passes.forward, run.dtype, one);
    add_product(passes.backward, run.dtype, {one.m, one.k, one.n});
    add_product(passes.weights, run.dtype, {one.n, one.k, one.m, true});
  }
  add_attention(passes.forward, run, Way::forward);
  add_attention(passes.backward, run, Way::backward);
  add_elementwise(passes.forward, run, Way::forward);
  add_elementwise(passes.backward, run, Way::backward);
  add_tensor_calls(run, bytes, passes.forward, passes.backward);
  add_context_calls(run, bytes, passes.forward, passes.backward);
  if (run.micro_batches > 1 && run.zero < 3) {
    add_moves(passes.weights, "sum of gradients",
              run.framework.sum_bytes * run.layer_weights / static_cast<double>(run.tp),
              run.framework.kernels == Elementwise::eager ? 4 : 1);
  }
  passes.recompute = recompute_pass(run, passes.forward, products);
  return passes;
}

Passes embedding_passes(const Run& run) {
  const double bytes = run.element_bytes * run.tokens() * static_cast<double>(run.width);
  const double table = fitted::kTableBytes + (run.micro_batches > 1 ? run.framework.sum_bytes : 0);
  Passes passes;
  add_moves(passes.forward, "embedding", fitted::kEmbeddingForward * bytes, fitted::kEmbeddingKernels);
  add_moves(passes.backward, "embedding",
            fitted::kEmbeddingBackward * bytes + table * run.embedding_weights / static_cast<double>(run.tp),
            fitted::kEmbeddingKernels);
  if (run.tp > 1)
    add_call(passes.forward, run, "tp", run.cuts_sequence ? Verb::reduce_scatter : Verb::all_reduce, bytes);
  return passes;
}

Passes head_passes(const Run& run) {
  const double tokens = run.tokens(), bytes = run.element_bytes * tokens * static_cast<double>(run.width);
  const int64_t rows_of_rank = run.vocabulary / run.tp;
  const auto rows = static_cast<double>(rows_of_rank), width = static_cast<double>(run.width);
  const double loss = run.framework.loss_bytes * tokens * rows;
  const std::string dtype = run.dtype == "fp8" ? "bf16" : run.dtype;  // the head stays in 16 bit
  Passes passes;
  add_product(passes.forward, dtype, {tokens, rows, width});
  add_product(passes.backward, dtype, {tokens, width, rows});
  add_product(passes.weights, dtype, {rows, width, tokens, true});
  const double hidden = fitted::kHeadHidden * bytes;
  add_moves(passes.forward, "loss", loss * fitted::kLossForward + hidden, fitted::kLossKernels);
  add_moves(passes.backward, "loss", loss * (1 - fitted::kLossForward) + hidden, fitted::kLossKernels);
  if (run.tp == 1) return passes;
  add_call(passes.forward, run, "tp", Verb::all_reduce, 12 * tokens);  // maximum, sum, own logit
  if (run.cuts_sequence) add_call(passes.forward, run, "tp", Verb::all_gather, bytes);
  add_call(passes.backward, run, "tp", run.cuts_sequence ? Verb::reduce_scatter : Verb::all_reduce, bytes);
  return passes;
}

StepWork step_work(const Run& run, size_t stage) {
  const double weights = run.stage_weights[stage];
  const fitted::Framework& traits = run.framework;
  const bool has_tied = run.ties_embedding && run.pp > 1 && (stage == 0 || stage + 1 == run.stage_weights.size());
  return {.gradient_bytes = weights * traits.gradient_bytes,
          .weight_bytes = weights * run.element_bytes,
          .optimizer_bytes = weights * traits.step_bytes / static_cast<double>(run.zero > 0 ? run.shards : 1),
          .tied_bytes = has_tied ? run.embedding_weights / static_cast<double>(run.tp) * traits.gradient_bytes : 0,
          .offloaded_weights = run.offload == Run::Offload::none ? 0 : weights / static_cast<double>(run.shards)};
}

}  // namespace caravan::published
