#include "caravan/nn/accumulate_grad.h"

#include <functional>
#include <map>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "caravan/nn/embedding.h"
#include "caravan/nn/norm.h"
#include "caravan/nn/product/product.h"
#include "tests/nn/compare.h"
#include "tests/nn/tiny.h"

namespace caravan::accumulate_grad_test {
namespace {

using testing::distance;
using testing::normal;
using testing::Slots;

/// Sums what is accumulated; keeps deferred work until run().
class FakeSink final : public GradientSink {
 public:
  int64_t open_step() const noexcept override { return 0; }
  Sum sum_of(Parameter& parameter) override {
    at::Tensor& sum = sums[parameter.name()];
    if (sum.defined()) return {sum, false};
    const at::Tensor& compute = parameter.compute();
    const auto type = compute.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    sum = at::full(compute.sizes(), NAN, compute.options().dtype(type).requires_grad(false));
    return {sum, true};
  }
  void accumulated(Parameter& parameter) override { ++counts[parameter.name()]; }
  void added_early(Parameter&) override {}
  void confirmed(Parameter&) override {}
  void withdrawn(Parameter&) override {}
  void defer(Parameter& parameter, std::function<void()> work) override {
    deferred.emplace_back(parameter.name(), std::move(work));
  }
  void run() {
    for (auto& [name, work] : deferred) work();
    deferred.clear();
  }

  std::map<std::string, at::Tensor> sums;
  std::map<std::string, int> counts;
  std::vector<std::pair<std::string, std::function<void()>>> deferred;
};

/// Detaches the sink before the parameters go.
class WithSink {
 public:
  WithSink(std::vector<Parameter*> parameters, GradientSink& sink) : parameters_(std::move(parameters)) {
    for (Parameter* parameter : parameters_) parameter->set_sink(&sink);
  }
  ~WithSink() {
    for (Parameter* parameter : parameters_) parameter->set_sink(nullptr);
  }

 private:
  std::vector<Parameter*> parameters_;
};

TEST(Accumulations, ofALinearLayerWaitAndTheInputsGradientDoesNot) {
  Slots slots;
  Parameter& weight = slots.of(normal({5, 6}, 2).requires_grad_(true), "weight");
  Parameter& bias = slots.of(normal({5}, 3).requires_grad_(true), "bias");
  const at::Tensor x = normal({20, 6}, 1).requires_grad_(true);
  const at::Tensor outer = normal({20, 5}, 4);
  FakeSink sink;
  const WithSink with({&weight, &bias}, sink);
  {
    const at::Tensor y = linear(x, weight, &bias);
    y.backward(outer);
  }
  EXPECT_LT(distance(x.grad(), at::mm(outer, weight.unsharded().detach())), 1e-6);
  EXPECT_TRUE(sink.sums.empty()) << "the weight's gradient is deferred";
  ASSERT_EQ(sink.deferred.size(), 1U);
  EXPECT_EQ(sink.deferred[0].first, "weight");
  sink.run();
  EXPECT_LT(distance(sink.sums["weight"], at::mm(outer.t(), x.detach())), 1e-6);
  EXPECT_LT(distance(sink.sums["bias"], outer.sum(0)), 1e-6);
  EXPECT_EQ(sink.counts, (std::map<std::string, int>{{"weight", 1}, {"bias", 1}}));
  EXPECT_FALSE(weight.unsharded().grad().defined() || bias.unsharded().grad().defined());
}

TEST(Accumulations, areMadeOnlyWhereBackwardNeedsThem) {
  Slots slots;
  Parameter& weight = slots.of(normal({6}, 2).requires_grad_(true), "norm");
  Parameter& bias = slots.of(normal({6}, 3).requires_grad_(true), "bias");
  Parameter& matrix = slots.of(normal({5, 6}, 2).requires_grad_(true), "matrix");
  const at::Tensor x = normal({20, 6}, 1).requires_grad_(true);
  const auto forward = [&] { return linear(rms_norm(layer_norm(x, weight, bias, 1e-5), weight, 1e-5), matrix).sum(); };
  FakeSink sink;
  const WithSink with({&weight, &bias, &matrix}, sink);
  EXPECT_TRUE(torch::autograd::grad({forward()}, {x}).front().defined());
  EXPECT_TRUE(sink.counts.empty() && sink.deferred.empty());
  forward().backward();
  sink.run();
  EXPECT_EQ(sink.counts, (std::map<std::string, int>{{"norm", 2}, {"bias", 1}, {"matrix", 1}}));
}

TEST(Accumulations, inBf16AreNotRounded) {
  Slots slots;
  const at::Tensor value = normal({5, 40}, 2).to(at::kBFloat16).requires_grad_(true);
  Parameter& weight = slots.of(value);
  const at::Tensor ids = testing::tokens(20, 30, 5);
  const at::Tensor outer = normal({20, 30, 40}, 1).to(at::kBFloat16);
  FakeSink sink;
  const WithSink with({&weight}, sink);
  embedding(ids, weight, "").backward(outer);
  const at::Tensor want =
      at::zeros({5, 40}, at::kDouble).index_add(0, ids.flatten(), outer.to(at::kDouble).flatten(0, 1));
  EXPECT_LT(distance(sink.sums["weight"], want), 1e-6);
}

TEST(Accumulations, ofAnEmbeddingTouchTheRowsThatOccur) {
  Slots slots;
  Parameter& weight = slots.of(normal({9, 4}, 2).requires_grad_(true));
  FakeSink sink;
  const WithSink with({&weight}, sink);
  sink.sums["weight"] = at::full({9, 4}, -0.0F);  // + 0 would make it 0
  embedding(at::tensor({3, 7, 3}, at::kLong), weight, "").sum().backward();
  for (int64_t row = 0; row < 9; ++row) {
    const float want = row == 3 ? 2 : row == 7 ? 1 : 0;
    EXPECT_TRUE(sink.sums["weight"][row].equal(at::full({4}, want))) << row;
    EXPECT_EQ(sink.sums["weight"][row].signbit().all().item<bool>(), want == 0) << row;
  }
}

/// The layers see the compute tensor, 3 times the unsharded parameter; the latter gets the gradient.
TEST(Accumulations, goThroughADerivation) {
  Slots slots;
  const at::Tensor leaf = normal({5, 6}, 2).requires_grad_(true);
  Parameter& weight = slots.of(leaf);
  weight.set_derivation([](const at::Tensor& x) { return 3 * x; }, {});
  const at::Tensor x = normal({20, 6}, 1);
  const at::Tensor y = linear(x, weight);
  EXPECT_LT(distance(y, 3 * at::linear(x, leaf)), 1e-6);
  y.sum().backward();
  EXPECT_LT(distance(leaf.grad(), 3 * x.sum(0).expand({5, 6})), 1e-6);
}

class ModelDeposits : public ::testing::TestWithParam<std::tuple<Architecture, bool>> {
 protected:
  /// The gradients of one backward without a sink.
  static NamedTensors taken_gradients(Model& model) {
    NamedTensors all = testing::gradients(model);
    for (Parameter* parameter : model.parameters()) parameter->unsharded().mutable_grad() = at::Tensor();
    return all;
  }
};

/// With and without a sink, at once and later: the same gradients, accumulated once for each use.
TEST_P(ModelDeposits, areTheGradients) {
  const auto [kind, is_tied] = GetParam();
  const ModelConfig config = testing::tiny_config(kind, is_tied);
  const auto model = testing::whole_model(config);
  const at::Tensor ids = testing::tokens(3, 11, config.vocabulary);
  const at::Tensor labels = testing::tokens(3, 11, config.vocabulary, 1);
  model->run({ids, labels}, {}).front().backward();
  const NamedTensors want = taken_gradients(*model);
  FakeSink sink;
  const WithSink with(model->parameters(), sink);
  model->run({ids, labels}, {}).front().backward();
  sink.run();
  for (const auto& [name, gradient] : want) {
    EXPECT_TRUE(sink.sums.at(name).equal(gradient)) << name;
    EXPECT_EQ(sink.counts.at(name), is_tied && name == "embedding.token.weight" ? 2 : 1) << name;
  }
}

/// Four micro-batches of a pipeline: all forwards, then all backwards.
TEST_P(ModelDeposits, ofMicroBatchesInFlightAddUp) {
  const auto [kind, is_tied] = GetParam();
  const ModelConfig config = testing::tiny_config(kind, is_tied);
  const auto model = testing::whole_model(config);
  const at::Tensor ids = testing::tokens(4, 11, config.vocabulary);
  const at::Tensor labels = testing::tokens(4, 11, config.vocabulary, 1);
  model->run({ids, labels}, {}).front().backward();
  const NamedTensors want = taken_gradients(*model);
  FakeSink sink;
  const WithSink with(model->parameters(), sink);
  std::vector<at::Tensor> losses;
  for (int64_t i = 0; i < 4; ++i) {
    losses.push_back(model->run({ids.narrow(0, i, 1), labels.narrow(0, i, 1)}, {}).front());
  }
  for (const at::Tensor& loss : losses) loss.backward();
  sink.run();
  for (const auto& [name, gradient] : want) {
    if (name.ends_with("key.bias")) continue;  // zero apart from rounding
    EXPECT_LT(distance(sink.sums.at(name), gradient), 2e-6) << name;
    const bool is_head = name == (is_tied ? "embedding.token.weight" : "head.weight");
    EXPECT_EQ(sink.counts.at(name), is_head ? (is_tied ? 5 : 1) : 4) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(, ModelDeposits,
                         ::testing::Combine(::testing::Values(Architecture::gpt2(), Architecture::llama()),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + (std::get<1>(info.param) ? "_tied" : "_untied");
                         });

}  // namespace
}  // namespace caravan::accumulate_grad_test
