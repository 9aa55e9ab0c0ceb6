// Every activation of torch::nn runs on pieces, forward and backward: in strict mode nothing runs whole.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/activation.h>

#include "caravan/global/global.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing::activations_test {
namespace {

namespace F = torch::nn::functional;
using Activation = std::function<at::Tensor(const at::Tensor&)>;

const std::vector<std::pair<std::string, Activation>>& activations() {
  static const std::vector<std::pair<std::string, Activation>> all{
      {"relu", [](const at::Tensor& x) { return at::relu(x); }},
      {"relu6", [](const at::Tensor& x) { return F::relu6(x); }},
      {"elu", [](const at::Tensor& x) { return at::elu(x); }},
      {"selu", [](const at::Tensor& x) { return at::selu(x); }},
      {"celu", [](const at::Tensor& x) { return at::celu(x); }},
      {"gelu", [](const at::Tensor& x) { return at::gelu(x); }},
      {"gelu, tanh", [](const at::Tensor& x) { return at::gelu(x, "tanh"); }},
      {"silu", [](const at::Tensor& x) { return at::silu(x); }},
      {"mish", [](const at::Tensor& x) { return at::mish(x); }},
      {"hardtanh", [](const at::Tensor& x) { return at::hardtanh(x); }},
      {"hardsigmoid", [](const at::Tensor& x) { return at::hardsigmoid(x); }},
      {"hardswish", [](const at::Tensor& x) { return at::hardswish(x); }},
      {"softplus", [](const at::Tensor& x) { return at::softplus(x); }},
      {"softsign", [](const at::Tensor& x) { return F::softsign(x); }},
      {"leaky_relu", [](const at::Tensor& x) { return at::leaky_relu(x, 0.1); }},
      {"rrelu", [](const at::Tensor& x) { return at::rrelu(x, 0.1, 0.3, /*training=*/false); }},
      {"softshrink", [](const at::Tensor& x) { return at::softshrink(x); }},
      {"hardshrink", [](const at::Tensor& x) { return at::hardshrink(x); }},
      {"tanhshrink", [](const at::Tensor& x) { return F::tanhshrink(x); }},
      {"logsigmoid", [](const at::Tensor& x) { return at::log_sigmoid(x); }},
      {"threshold", [](const at::Tensor& x) { return at::threshold(x, 0.1, 0.2); }},
      {"sigmoid", [](const at::Tensor& x) { return at::sigmoid(x); }},
      {"tanh", [](const at::Tensor& x) { return at::tanh(x); }},
      {"glu", [](const at::Tensor& x) { return at::glu(x, 1); }},
      {"softmax", [](const at::Tensor& x) { return at::softmax(x, 1); }},
      {"log_softmax", [](const at::Tensor& x) { return at::log_softmax(x, 1); }},
      {"hardswish_",
       [](const at::Tensor& x) {
         at::Tensor y = x * 2;
         return at::hardswish_(y);
       }},
      {"leaky_relu_",
       [](const at::Tensor& x) {
         at::Tensor y = x * 2;
         return at::leaky_relu_(y, 0.1);
       }},
  };
  return all;
}

/// The same elements in the same order: 1e-14 for vector instructions that treat the end of a piece otherwise.
TEST(GlobalActivations, RunOnPieces) {
  const at::Tensor values = random_tensor({6, 8}, 1) * 2;
  for (const auto& [name, activation] : activations()) {
    const at::Tensor plain = values.clone().requires_grad_();
    const at::Tensor expected = activation(plain);
    const at::Tensor cotangent = random_tensor(expected.sizes().vec(), 2);
    expected.backward(cotangent);
    on_mesh({{"dp", 2}, {"tp", 2}}, [&, &name = name, &activation = activation](const Mesh& mesh) {
      const GlobalContext context(mesh, {.is_strict = true});
      for (const Layout& where : {Layout{{"dp", Shard{0}}}, Layout{{"dp", Shard{0}}, {"tp", Shard{0, {2, 1}}}},
                                  Layout{{"tp", Shard{.dim = 1, .blocks = 2}}}}) {
        const at::Tensor x = distribute(values.clone().requires_grad_(), where, context);
        const at::Tensor y = activation(x);
        y.backward(distribute(cotangent, layout(y), context));
        EXPECT_TRUE(is_close(full(y.detach()), expected, 1e-14)) << name << " " << where;
        EXPECT_TRUE(is_close(full(x.grad()), plain.grad(), 1e-14)) << name << " " << where;
      }
    });
  }
}

TEST(GlobalActivations, LearnedSlopesRunOnPieces) {
  const at::Tensor values = random_tensor({6, 8}, 1);
  const at::Tensor slopes = random_tensor({8}, 2);
  const at::Tensor x = values.clone().requires_grad_();
  const at::Tensor weight = slopes.clone().requires_grad_();
  at::prelu(x, weight).square().sum().backward();
  on_mesh({{"dp", 2}, {"tp", 2}}, [&](const Mesh& mesh) {
    const GlobalContext context(mesh, {.is_strict = true});
    const at::Tensor own = distribute(values.clone().requires_grad_(), {{"dp", Shard{0}}, {"tp", Shard{1}}}, context);
    const at::Tensor own_weight = distribute(slopes.clone().requires_grad_(), {{"tp", Shard{0}}}, context);
    at::prelu(own, own_weight).square().sum().backward();
    EXPECT_TRUE(is_close(full(own.grad()), x.grad(), 1e-13));
    EXPECT_TRUE(is_close(full(own_weight.grad()), weight.grad(), 1e-13));
  });
}

}  // namespace
}  // namespace caravan::testing::activations_test
