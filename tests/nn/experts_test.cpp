#include "caravan/nn/experts/experts.h"

#include <functional>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/nn/experts/expert_rows.h"
#include "caravan/nn/experts/moe.h"
#include "caravan/nn/experts/router.h"
#include "caravan/nn/mlp.h"
#include "tests/nn/tiny.h"

namespace caravan::experts_test {
namespace {

using testing::distance;
using testing::normal;
using testing::one_rank;

constexpr int64_t kRows = 2, kLength = 6;

ModelConfig config_of(Architecture kind, const MoeConfig& moe) {
  return {
      .arch = kind, .layers = 1, .width = 8, .heads = 2, .context = kLength, .vocabulary = 11, .hidden = 5, .moe = moe};
}

/// A module in fp64 with random values, biases too.
template <class M>
std::unique_ptr<M> make(const ModelConfig& config, const std::function<void(M&)>& change = {}) {
  auto module = std::make_unique<M>(config);
  if (change) change(*module);
  module->materialise(one_rank(), {}, {});
  uint64_t seed = 1;
  for (Parameter* parameter : module->parameters()) {
    const at::Tensor values = normal(parameter->global_shape(), ++seed).to(at::kDouble);
    parameter->set_unsharded(values.requires_grad_(), parameter->sharded_layout());
  }
  return module;
}

at::Tensor value(Module& module, const std::string& name) {
  for (Parameter* parameter : module.parameters()) {
    if (parameter->name() == name) return parameter->unsharded().detach().clone().requires_grad_();
  }
  throw std::out_of_range(name);
}

at::Tensor gradient(Module& module, const std::string& name) {
  for (Parameter* parameter : module.parameters()) {
    if (parameter->name() == name) return parameter->unsharded().grad();
  }
  throw std::out_of_range(name);
}

at::Tensor input(uint64_t seed = 100) { return normal({kRows, kLength, 8}, seed).to(at::kDouble).requires_grad_(); }

/// The same in ATen operations, which autograd differentiates: gates of all experts [rows, length, experts], zero for
/// experts that are not chosen, and the losses of the router.
struct Reference {
  at::Tensor gates;
  at::Tensor balance;
  at::Tensor losses;
};

Reference route(const at::Tensor& x, const at::Tensor& weight, const MoeConfig& moe) {
  const at::Tensor logits = at::matmul(x, weight.t());
  const bool is_softmax = moe.gates == Gates::softmax;
  const at::Tensor scores = is_softmax ? at::softmax(logits, -1) : at::sigmoid(logits);
  const at::Tensor chosen = std::get<1>(at::topk(scores.detach(), moe.top_k, -1));
  const at::Tensor mask = at::zeros_like(scores).scatter(-1, chosen, 1.0);
  at::Tensor gates = scores * mask;
  if (moe.normalize) gates = gates / gates.sum(-1, true);
  const at::Tensor probabilities = scores / scores.sum(-1, true);
  const at::Tensor shares = mask.mean(1) / static_cast<double>(moe.top_k);
  const at::Tensor balance = static_cast<double>(moe.experts) * (shares * probabilities.mean(1)).sum(-1).mean();
  const at::Tensor z = at::logsumexp(logits, {-1}).square().mean();
  return {gates, balance, moe.balance_loss * balance + moe.z_loss * z};
}

class RouterKinds : public ::testing::TestWithParam<MoeConfig> {};

INSTANTIATE_TEST_SUITE_P(
    All, RouterKinds,
    ::testing::Values(MoeConfig{.experts = 4, .balance_loss = 0.5, .z_loss = 0.1},
                      MoeConfig{.experts = 4, .normalize = false, .balance_loss = 0.5},
                      MoeConfig{.experts = 5, .top_k = 3, .gates = Gates::sigmoid, .balance_loss = 0.5, .z_loss = 0.1},
                      MoeConfig{.experts = 3, .top_k = 1, .gates = Gates::sigmoid, .normalize = false},
                      MoeConfig{.experts = 1, .top_k = 1, .balance_loss = 0, .z_loss = 0.2}));

/// Gates, and the gradients of x and the weight for a loss of the gates plus those of the router.
TEST_P(RouterKinds, MatchesAutograd) {
  const MoeConfig moe = GetParam();
  const auto router = make<Router>(config_of(Architecture::llama(), moe));
  const at::Tensor x = input(), weight = value(*router, "weight"), want_x = x.detach().clone().requires_grad_();
  const at::Tensor factors = normal({kRows, kLength, moe.experts}, 7).to(at::kDouble);
  const Tensors got = router->run({x}, {.phase = Phase::forward});
  (got[0] * factors.gather(-1, got[1])).sum().backward();
  const Reference want = route(want_x, weight, moe);
  ((want.gates * factors).sum() + want.losses).backward();
  EXPECT_LT(distance(got[0].sum(-1).detach(), want.gates.sum(-1).detach()), 1e-12);
  EXPECT_LT(distance(got[0].detach(), want.gates.gather(-1, got[1]).detach()), 1e-12);
  EXPECT_LT(distance(x.grad(), want_x.grad()), 1e-11);
  EXPECT_LT(distance(gradient(*router, "weight"), weight.grad()), 1e-11);
  EXPECT_NEAR(router->take_load().balance / (kRows * kLength), want.balance.item<double>(), 1e-12);
}

/// An evaluation does not include these losses.
TEST(Router, AddsItsLossesInTrainingOnly) {
  const MoeConfig moe{.experts = 4, .balance_loss = 0.5, .z_loss = 0.1};
  const auto router = make<Router>(config_of(Architecture::llama(), moe));
  const auto gradient_in = [&](const ForwardContext& context) {
    const at::Tensor x = input();
    router->run({x}, context)[0].sum().mul(0).backward();
    return x.grad();
  };
  EXPECT_EQ(gradient_in({.phase = Phase::evaluate}).norm().item<double>(), 0);
  const at::Tensor plain = gradient_in({.phase = Phase::forward});
  EXPECT_GT(plain.norm().item<double>(), 1e-3);
  EXPECT_LT(distance(gradient_in({.phase = Phase::forward, .gradient_scale = 8}), 8 * plain), 1e-12);
  router->set_adds_losses(false);
  EXPECT_EQ(gradient_in({.phase = Phase::forward}).norm().item<double>(), 0);
}

TEST(Router, TakesTheFirstOfEqualScores) {
  const at::Tensor experts = top_experts(at::tensor({0.5, 1.0, 1.0, 0.5}, at::kDouble).view({1, 1, 4}), 3);
  EXPECT_TRUE(experts.flatten().equal(at::tensor({1, 2, 0}, at::kLong)));
}

/// Capacity 2 of 4 tokens' 8 copies among 4 experts, twice the even share at most 1: all first choices go before second
/// ones, in the order of the sequence.
TEST(Router, DropsWhatIsBeyondCapacity) {
  const MoeConfig moe{.experts = 2, .top_k = 2, .capacity = 0.5};
  const auto router = make<Router>(config_of(Architecture::llama(), moe));
  const at::Tensor x = input();
  const at::Tensor all = router->run({x}, {.phase = Phase::evaluate})[1];
  EXPECT_EQ(all.lt(0).sum().item<int64_t>(), 0) << "capacity is for training";
  const at::Tensor kept = router->run({x}, {.phase = Phase::forward})[1];
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t expert = 0; expert < 2; ++expert) {
      int64_t taken = 0;
      for (int64_t j = 0; j < 2; ++j) {
        for (int64_t t = 0; t < kLength; ++t) {
          if (all[row][t][j].item<int64_t>() != expert) continue;
          EXPECT_EQ(kept[row][t][j].item<int64_t>(), taken < 3 ? expert : -1) << row << t << j;  // 0.5 x 2 x 6 / 2
          ++taken;
        }
      }
      EXPECT_EQ(taken, kLength);  // every token has both experts
    }
  }
  EXPECT_EQ(router->take_load().dropped, kRows * 2 * 3);
}

TEST(Router, CountsItsLoad) {
  const MoeConfig moe{.experts = 3};
  const auto router = make<Router>(config_of(Architecture::llama(), moe));
  const Tensors got = router->run({input()}, {.phase = Phase::forward});
  router->run({input(5)}, {.phase = Phase::recompute});  // of a forward that was counted
  const RouterLoad load = router->take_load();
  for (int64_t e = 0; e < 3; ++e) {
    EXPECT_EQ(load.copies[static_cast<size_t>(e)], got[1].eq(e).sum().item<double>());
  }
  EXPECT_EQ(router->take_load().copies, std::vector<double>(3, 0));
}

TEST(Router, NeedsTheSharesOfABatch) {
  const auto router = make<Router>(config_of(Architecture::llama(), {.experts = 3, .balance = BalanceScope::batch}));
  EXPECT_THROW(router->run({input()}, {.phase = Phase::forward}), UsageError);
  {
    const at::NoGradGuard no_grad;
    router->run({input()}, {.phase = Phase::forward});
  }
  EXPECT_EQ(router->take_load().copies, std::vector<double>(3, 0));
  const std::vector<double> counted = router->take_counted();
  EXPECT_EQ(counted[0] + counted[1] + counted[2], kRows * kLength * 2);
  router->set_shares({0.5, 0.25, 0.25});
  EXPECT_NO_THROW(router->run({input()}, {.phase = Phase::forward}));
}

/// Every expert with every token, times gates that are mostly zero.
at::Tensor dense(Moe& moe, const ModelConfig& config, const at::Tensor& x, std::map<std::string, at::Tensor>& p) {
  for (Parameter* parameter : moe.parameters()) p[parameter->name()] = value(moe, parameter->name());
  const Reference routed = route(x, p["router.weight"], config.moe);
  const int64_t f = config.hidden_width(), h = config.width, r = config.lora.rank;
  const auto part = [&](const std::string& name, int64_t e, int64_t rows) {
    const at::Tensor own = p[name].narrow(0, e * rows, rows);
    const size_t dot = name.rfind('.') + 1;
    const std::string adapter = name.substr(0, dot) + "lora." + name.substr(dot);
    if (!p.contains(adapter + ".a")) return own;
    const at::Tensor a = p[adapter + ".a"].narrow(0, e * r, r);
    return own + config.lora.scale() * at::matmul(p[adapter + ".b"].narrow(0, e * rows, rows), a);
  };
  at::Tensor y = at::zeros_like(x);
  for (int64_t e = 0; e < config.moe.experts; ++e) {
    at::Tensor up = at::matmul(x, part("experts.up", e, f).t());
    at::Tensor out;
    if (config.arch == Architecture::llama()) {
      const at::Tensor gate = at::matmul(x, part("experts.gate", e, f).t());
      out = at::matmul(at::silu(gate) * up, part("experts.down", e, h).t());
    } else {
      up = at::gelu(up + part("experts.up_bias", e, f), "tanh");
      out = at::matmul(up, part("experts.down", e, h).t()) + part("experts.down_bias", e, h);
    }
    y = y + out * routed.gates.narrow(-1, e, 1);
  }
  if (config.moe.has_shared()) {
    at::Tensor up = at::matmul(x, p["shared.up.weight"].t());
    at::Tensor out;
    if (config.arch == Architecture::llama()) {
      out = at::matmul(at::silu(at::matmul(x, p["shared.gate.weight"].t())) * up, p["shared.down.weight"].t());
    } else {
      out = at::matmul(at::gelu(up + p["shared.up.bias"], "tanh"), p["shared.down.weight"].t()) + p["shared.down.bias"];
    }
    if (config.moe.shared_gate) out = out * at::sigmoid(at::matmul(x, p["shared_gate.weight"].t()));
    y = y + out;
  }
  return y;
}

/// With the adapters of these tables.
void expect_dense(const ModelConfig& config, const std::vector<std::string>& adapted = {}) {
  const auto moe = make<Moe>(config, [&](Moe& of) {
    auto& experts = dynamic_cast<Experts&>(of.find("experts"));
    for (const std::string& table : adapted) experts.add_adapter(table, config.lora);
  });
  const at::Tensor x = input(), want_x = x.detach().clone().requires_grad_();
  std::map<std::string, at::Tensor> parameters;
  const at::Tensor factors = normal({kRows, kLength, 8}, 9).to(at::kDouble);
  const at::Tensor got = moe->run({x}, {.phase = Phase::forward}).front();
  const at::Tensor want = dense(*moe, config, want_x, parameters);
  EXPECT_LT(distance(got.detach(), want.detach()), 1e-12);
  got.backward(factors);
  want.backward(factors);
  EXPECT_LT(distance(x.grad(), want_x.grad()), 1e-11);
  for (const auto& [name, parameter] : parameters) {
    EXPECT_LT(distance(gradient(*moe, name), parameter.grad()), 1e-11) << name;
  }
}

TEST(Moe, IsEveryExpertTimesItsGate) {
  const MoeConfig plain{.experts = 4, .balance_loss = 0};
  MoeConfig shared = plain;
  shared.shared_hidden = 3;
  MoeConfig gated = shared;
  gated.shared_gate = true;
  for (const MoeConfig& moe : {plain, shared, gated}) {
    expect_dense(config_of(Architecture::gpt2(), moe));
    expect_dense(config_of(Architecture::llama(), moe));
  }
}

TEST(Moe, AddsTheAdaptersOfEachExpert) {
  for (const Architecture& kind : {Architecture::gpt2(), Architecture::llama()}) {
    ModelConfig config = config_of(kind, {.experts = 4, .balance_loss = 0});
    config.lora = {.rank = 3, .alpha = 2, .rslora = true};
    expect_dense(config, {"up"});
    expect_dense(config, {"up", "down"});
    if (kind.is_gated) expect_dense(config, {"gate", "up", "down"});
  }
}

/// An expert that no token chooses has a gradient of zero, not none.
TEST(Experts, WithoutTokensHaveAGradientOfZero) {
  const auto experts = make<Experts>(config_of(Architecture::gpt2(), {.experts = 3, .top_k = 1}));
  const at::Tensor all_to_one = at::full({kRows, kLength, 1}, 1, at::kLong);
  const at::Tensor gates = at::ones({kRows, kLength, 1}, at::kDouble);
  experts->run({input(), gates, all_to_one}, {}).front().sum().backward();
  for (const std::string& name : expert_tables(Architecture::gpt2())) {
    const at::Tensor of_experts = gradient(*experts, name).reshape({3, -1});
    EXPECT_EQ(of_experts[0].norm().item<double>(), 0) << name;
    EXPECT_GT(of_experts[1].norm().item<double>(), 0) << name;
    EXPECT_EQ(of_experts[2].norm().item<double>(), 0) << name;
  }
}

TEST(Experts, DivideAmongRanks) {
  Experts experts(config_of(Architecture::llama(), {.experts = 8}));
  const auto undo = experts.take_part(1, 2);
  EXPECT_EQ(experts.first(), 4);
  const auto undo_part = experts.take_part(1, 2);
  EXPECT_EQ(experts.first(), 6);
  EXPECT_EQ(experts.count(), 2);
  EXPECT_THROW(experts.take_part(0, 3), ShapeError);
  undo_part();
  undo();
  EXPECT_EQ(experts.count(), 8);
}

TEST(ExpertRows, AreSortedAndComeBack) {
  const at::Tensor groups = at::tensor({2, 0, -1, 2, 0, 1}, at::kLong).view({3, 2});
  const ExpertRows rows = sort_by_group(groups, 3);
  EXPECT_EQ(rows.counts, (std::vector<int64_t>{2, 1, 2}));
  EXPECT_TRUE(rows.copy.equal(at::tensor({1, 4, 5, 0, 3}, at::kLong)));
  const at::Tensor x = normal({3, 4}, 1).to(at::kDouble).requires_grad_();
  const at::Tensor copies = collect(spread(x, rows), rows);
  const at::Tensor has_row = groups.ge(0).to(at::kDouble).unsqueeze(-1);
  EXPECT_TRUE(copies.equal(x.unsqueeze(1) * has_row));
  const at::Tensor factors = normal({3, 2, 4}, 2).to(at::kDouble);
  copies.backward(factors);
  EXPECT_LT(distance(x.grad(), (factors * has_row).sum(1)), 1e-14);
}

}  // namespace
}  // namespace caravan::experts_test
