// Proves rules of losses, norms and attention of which the recorded calls have none: DTensor has no rule for them.
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/global/proof.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing::loss_rules_test {
namespace {

using Values = std::vector<c10::IValue>;

struct Call {
  std::string name;
  Values arguments;
};

at::Tensor x(at::IntArrayRef sizes, uint64_t seed = 1) { return random_tensor(sizes, seed); }
at::Tensor classes(at::IntArrayRef sizes, int64_t count) {
  int64_t num = 1;
  for (const int64_t size : sizes) num *= size;
  return at::arange(num).mul(5).remainder(count).view(sizes);
}
const c10::IValue kNone;

void add_margins(std::vector<Call>& calls) {
  for (const int64_t reduction : {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
    const at::Tensor self = x({6, 12});
    const at::Tensor grad = reduction == at::Reduction::None ? x({6}, 2) : x({}, 2);
    const at::Tensor weight = x({12}, 3);
    calls.push_back({"aten::multi_margin_loss", {self, classes({6}, 12), 1, 1.0, weight, reduction}});
    calls.push_back({"aten::multi_margin_loss", {self[0], classes({1}, 12)[0], 1, 1.0, kNone, reduction}});
    calls.push_back({"aten::multi_margin_loss_backward", {grad, self, classes({6}, 12), 1, 1.0, weight, reduction}});
    const at::Tensor labels = classes({6, 12}, 13) - 1;
    calls.push_back({"aten::multilabel_margin_loss_forward", {self, labels, reduction}});
    const at::Tensor is_target = std::get<1>(at::multilabel_margin_loss_forward(self, labels, reduction));
    calls.push_back({"aten::multilabel_margin_loss_backward", {grad, self, labels, reduction, is_target}});
  }
}

void add_element_losses(std::vector<Call>& calls) {
  for (const int64_t reduction : {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
    const at::Tensor self = x({6, 12}).sigmoid();
    const at::Tensor target = x({6, 12}, 2).sigmoid();
    const at::Tensor weight = x({12}, 3).sigmoid();
    const at::Tensor grad = reduction == at::Reduction::None ? x({6, 12}, 4) : x({}, 4);
    calls.push_back({"aten::mse_loss", {self, target, reduction}});
    calls.push_back({"aten::mse_loss", {self, target.slice(0, 0, 1), reduction}});
    calls.push_back({"aten::mse_loss_backward", {grad, self, target, reduction}});
    calls.push_back({"aten::smooth_l1_loss", {self, target, reduction, 0.1}});
    calls.push_back({"aten::smooth_l1_loss_backward", {grad, self, target, reduction, 0.1}});
    calls.push_back({"aten::huber_loss", {self, target, reduction, 0.1}});
    calls.push_back({"aten::huber_loss_backward", {grad, self, target, reduction, 0.1}});
    calls.push_back({"aten::soft_margin_loss", {self, target, reduction}});
    calls.push_back({"aten::soft_margin_loss_backward", {grad, self, target, reduction}});
    calls.push_back({"aten::binary_cross_entropy", {self, target, weight.expand({6, 12}), reduction}});
    calls.push_back({"aten::binary_cross_entropy_backward", {grad, self, target, weight.expand({6, 12}), reduction}});
    calls.push_back({"aten::binary_cross_entropy_with_logits", {self, target, kNone, weight, reduction}});
  }
}

void add_softmaxes(std::vector<Call>& calls) {
  const at::Tensor self = x({6, 6, 2, 12});
  calls.push_back({"aten::_masked_softmax", {self, classes({6, 6, 2, 12}, 3).eq(0), 3, 2}});
  const at::Tensor square = x({6, 2, 12, 12});
  calls.push_back({"aten::_masked_softmax", {square, classes({6, 12}, 3).eq(0), 3, 1}});
  calls.push_back({"aten::_masked_softmax", {square, classes({12, 12}, 3).eq(0), 3, 0}});
  const at::Tensor output = square.softmax(3);
  calls.push_back(
      {"aten::_masked_softmax_backward", {x({6, 2, 12, 12}, 2), output, classes({6, 2, 12, 12}, 3).eq(0), 3}});
  calls.push_back({"aten::log_sigmoid_forward", {self}});
  const at::Tensor buffer = std::get<1>(at::log_sigmoid_forward(self));
  calls.push_back({"aten::log_sigmoid_backward", {x({6, 6, 2, 12}, 2), self, buffer}});
}

void add_weight_norms(std::vector<Call>& calls) {
  for (const int64_t dim : {0, 1}) {
    const at::Tensor v = x({6, 12});
    const at::Tensor g = dim == 0 ? x({6, 1}, 2) : x({1, 12}, 2);
    calls.push_back({"aten::_weight_norm_interface", {v, g, dim}});
    const at::Tensor norms = std::get<1>(at::_weight_norm_interface(v, g, dim));
    calls.push_back({"aten::_weight_norm_interface_backward", {x({6, 12}, 3), v, g, norms, dim}});
  }
  calls.push_back({"aten::renorm", {x({6, 12, 2}), 2, 1, 0.5}});
}

void add_distances(std::vector<Call>& calls) {
  for (const double p : {1.0, 2.0, 3.0}) {
    const at::Tensor a = x({6, 12, 2});
    const at::Tensor b = x({6, 2}, 2);
    calls.push_back({"aten::_cdist_forward", {a, b, p, kNone}});
    const at::Tensor whole = b.expand({6, 6, 2}).contiguous();
    calls.push_back({"aten::_cdist_backward", {x({6, 12, 6}, 3), a, whole, p, at::_cdist_forward(a, whole, p, 2)}});
    calls.push_back({"aten::_pdist_forward", {b, p}});
    calls.push_back({"aten::_pdist_backward", {x({15}, 4), x({6, 12}, 5), p, at::_pdist_forward(x({6, 12}, 5), p)}});
  }
}

void add_attentions(std::vector<Call>& calls) {
  const at::Tensor q = x({2, 6, 12, 4});
  const at::Tensor k = x({2, 2, 6, 4}, 2);
  const at::Tensor v = x({2, 2, 6, 4}, 3);
  for (const at::Tensor& mask : {at::Tensor(), x({12, 6}, 4), x({2, 1, 12, 6}, 4), x({1, 6, 1, 6}, 4)}) {
    const c10::IValue value = mask.defined() ? c10::IValue(mask) : kNone;
    calls.push_back({"aten::_scaled_dot_product_flash_attention_for_cpu", {q, k, v, 0.0, false, value, kNone}});
    calls.push_back({"aten::_fused_sdp_choice", {q, k, v, value, 0.0, false, kNone, true}});
  }
  calls.push_back({"aten::_scaled_dot_product_flash_attention_for_cpu",
                   {x({6, 2, 12, 4}), x({6, 2, 12, 4}, 2), x({6, 2, 12, 4}, 3), 0.0, true, kNone, kNone}});
  calls.push_back({"aten::_transform_bias_rescale_qkv", {x({6, 4, 36}), x({36}, 2), 6}});
  const at::Tensor in = x({6, 4, 12});
  const at::Tensor qkv = x({36, 12}, 2), qkv_bias = x({36}, 3), projection = x({12, 12}, 4), bias = x({12}, 5);
  const at::Tensor mask = classes({6, 4}, 3).eq(0);
  for (const bool averages : {false, true}) {
    calls.push_back({"aten::_native_multi_head_attention",
                     {in, in, in, 12, 3, qkv, qkv_bias, projection, bias, kNone, true, averages, kNone}});
    calls.push_back({"aten::_native_multi_head_attention",
                     {in, in, in, 12, 3, qkv, qkv_bias, projection, bias, mask, true, averages, 1}});
  }
  calls.push_back({"aten::_transformer_encoder_layer_fwd",
                   {in,   12,   3,    qkv,  qkv_bias,       projection, bias,           true, false, 1e-5,
                    bias, bias, bias, bias, x({24, 12}, 6), x({24}, 7), x({12, 24}, 8), bias, kNone, kNone}});
}

/// Those of which no part is independent, and a choice, which cuts nothing.
const std::set<std::string> kWhole{"aten::_pdist_forward", "aten::_fused_sdp_choice"};

void prove_calls(void (*add)(std::vector<Call>&)) {
  std::vector<Call> calls;
  add(calls);
  std::set<std::string> uncut = [&] {
    std::set<std::string> names;
    for (const Call& call : calls) names.insert(call.name);
    return names;
  }();
  uint64_t seed = 0;
  for (const Call& call : calls) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(call.name.c_str(), "");
    const OpSample sample(op, c10::Stack(call.arguments.begin(), call.arguments.end()), {}, true);
    const ProofCase proof(sample);
    for (const int num_ranks : {2, 3}) {
      const auto assignments = assignments_on_one_axis(proof, num_ranks, 40, ++seed);
      for (const ProofRun& run : prove(proof, {{"t", num_ranks}}, assignments)) {
        EXPECT_EQ(run.failure, "") << proof.text() << " with " << assignment_text(run.assignment);
        EXPECT_NE(run.way, ProofRun::Way::whole) << proof.text();
        if (run.is_cut && !run.moves) uncut.erase(call.name);
      }
    }
  }
  for (const std::string& name : uncut) EXPECT_TRUE(kWhole.contains(name)) << name << " never ran on pieces";
}

TEST(GlobalLossRules, margins) { prove_calls(add_margins); }
TEST(GlobalLossRules, losses_of_elements) { prove_calls(add_element_losses); }
TEST(GlobalLossRules, softmaxes) { prove_calls(add_softmaxes); }
TEST(GlobalLossRules, norms_of_weights) { prove_calls(add_weight_norms); }
TEST(GlobalLossRules, distances) { prove_calls(add_distances); }
TEST(GlobalLossRules, attentions) { prove_calls(add_attentions); }

}  // namespace
}  // namespace caravan::testing::loss_rules_test
