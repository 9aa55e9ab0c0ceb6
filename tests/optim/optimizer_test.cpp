#include "caravan/optim/optimizer.h"

#include <functional>
#include <gmock/gmock.h>
#include <map>
#include <memory>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "caravan/base/error.h"
#include "caravan/comm/record.h"
#include "caravan/optim/lion.h"
#include "caravan/techniques/data/ddp.h"
#include "caravan/techniques/data/zero.h"
#include "caravan/techniques/offload/offload.h"
#include "tests/data/support.h"
#include "tests/engine/parameters.h"

namespace caravan::testing::optimizer_test {
namespace {

using ::testing::HasSubstr;

/// Parameters in flat buffers, and the same values in plain tensors for torch's optimizer, in its two groups.
struct Pair {
  Parameters model{{"w", {5, 7}, true}, {"bias", {7}, false}, {"v", {33}, true}, {"scale", {}, false}};
  Mesh mesh = Mesh::create(make_record_world(0, 1), {});
  Engine engine{model, mesh, whole_model(model, mesh), {.seed = 4}};
  FlatState& state = engine.state();
  std::vector<at::Tensor> decayed, others;

  Pair() {
    for (const Parameter* parameter : model.parameters()) {
      (parameter->spec().decays ? decayed : others).push_back(parameter->sharded().detach().clone().requires_grad_());
    }
  }

  /// The same new gradients for both; one in three is 0, as of an unused row.
  void set_gradients(int step) {
    size_t next_decayed = 0;
    size_t next_other = 0;
    for (const Parameter* parameter : model.parameters()) {
      at::Tensor& theirs = parameter->spec().decays ? decayed[next_decayed++] : others[next_other++];
      at::Tensor gradient = random_tensor(theirs.sizes(), 50 + step).to(at::kFloat);
      gradient = gradient.masked_fill(gradient < -0.33, 0);
      theirs.mutable_grad() = gradient.clone();
      state.layout.view(state.gradients, *parameter).copy_(gradient);
    }
  }

  void expect_equal(double tolerance) const {
    size_t next_decayed = 0;
    size_t next_other = 0;
    for (const Parameter* parameter : model.parameters()) {
      const at::Tensor& theirs = parameter->spec().decays ? decayed[next_decayed++] : others[next_other++];
      EXPECT_TRUE(is_close(parameter->sharded(), theirs, tolerance)) << parameter->name();
    }
  }
};

template <class Options>
std::vector<torch::optim::OptimizerParamGroup> groups_of(const Pair& pair, const Options& options) {
  Options without = options;
  without.weight_decay(0);
  return {{pair.decayed, std::make_unique<Options>(options)}, {pair.others, std::make_unique<Options>(without)}};
}

template <class Theirs>
void set_lr(torch::optim::Optimizer& optimizer, double lr) {
  for (auto& group : optimizer.param_groups()) static_cast<Theirs&>(group.options()).lr(lr);
}

/// 20 steps with a changing learning rate. fp32 in another order of operations: a few units in the last place per step,
/// for values of about 1.
constexpr double kTolerance = 2e-6;

TEST(Optimizer, AdamWMatchesTorch) {
  for (const double weight_decay : {0.0, 0.1}) {
    Pair pair;
    AdamW ours(pair.state, {.beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-7, .weight_decay = weight_decay});
    const auto options = torch::optim::AdamWOptions(1).betas({0.8, 0.95}).eps(1e-7).weight_decay(weight_decay);
    torch::optim::AdamW theirs(groups_of(pair, options), options);
    for (int step = 0; step < 20; ++step) {
      pair.set_gradients(step);
      const double lr = 0.01 / (1 + step);
      ours.step(lr);
      set_lr<torch::optim::AdamWOptions>(theirs, lr);
      theirs.step();
      pair.expect_equal(kTolerance);
    }
    EXPECT_EQ(ours.num_steps(), 20);
  }
}

TEST(Optimizer, SgdMatchesTorch) {
  for (const double momentum : {0.0, 0.9}) {
    for (const double weight_decay : {0.0, 0.1}) {
      Pair pair;
      Sgd ours(pair.state, {.momentum = momentum, .weight_decay = weight_decay});
      const auto options = torch::optim::SGDOptions(1).momentum(momentum).weight_decay(weight_decay);
      // A group that keeps torch's default for an option gets the optimizer's value instead; the default is no decay.
      torch::optim::SGD theirs(groups_of(pair, options), torch::optim::SGDOptions(1).momentum(momentum));
      for (int step = 0; step < 20; ++step) {
        pair.set_gradients(step);
        const at::Tensor gradients = pair.state.gradients.to_tensor();
        const double lr = 0.1 / (1 + step);
        ours.step(lr);
        EXPECT_TRUE(at::equal(pair.state.gradients.to_tensor(), gradients)) << "gradients are read, never written";
        set_lr<torch::optim::SGDOptions>(theirs, lr);
        theirs.step();
        pair.expect_equal(kTolerance);
      }
    }
  }
}

/// As in the paper, in plain operators of fp64. An element whose direction is 0 does not move.
TEST(Optimizer, LionIsThatOfThePaper) {
  Pair pair;
  const LionOptions options{.beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1};
  Lion ours(pair.state, options);
  std::map<std::string, at::Tensor> want, moments;
  for (const Parameter* parameter : pair.model.parameters()) {
    want[parameter->name()] = parameter->sharded().detach().to(at::kDouble);
    moments[parameter->name()] = at::zeros_like(want[parameter->name()]);
  }
  for (int step = 0; step < 20; ++step) {
    pair.set_gradients(step);
    const double lr = 0.01 / (1 + step);
    ours.step(lr, 0.5);
    for (const Parameter* parameter : pair.model.parameters()) {
      const at::Tensor gradient = 0.5 * pair.state.layout.view(pair.state.gradients, *parameter).to(at::kDouble);
      at::Tensor& w = want[parameter->name()];
      at::Tensor& m = moments[parameter->name()];
      const double decay = parameter->spec().decays ? options.weight_decay : 0;
      w = w - lr * (at::sign(options.beta1 * m + (1 - options.beta1) * gradient) + decay * w);
      m = options.beta2 * m + (1 - options.beta2) * gradient;
      EXPECT_TRUE(is_close(parameter->sharded(), w, kTolerance)) << parameter->name() << ", step " << step;
      EXPECT_TRUE(is_close(pair.state.layout.view(ours.state()[0].second, *parameter), m, kTolerance));
    }
  }
  EXPECT_EQ(ours.state().size(), 1U);
}

/// Rules of three parameters of four, against a group of torch for each parameter.
TEST(Optimizer, RulesAreGroupsOfTorch) {
  const std::map<std::string, UpdateRule> rules{{"w", {.lr_factor = 0.1, .weight_decay = 0}},
                                                {"bias", {.lr_factor = 2, .weight_decay = 0.3}},
                                                {"scale", {.lr_factor = 0}}};
  Parameters model{{"w", {5, 7}, true}, {"bias", {7}, false}, {"v", {33}, true}, {"scale", {}, false}};
  for (const auto& [name, rule] : rules) model.at(name).set_update_rule(rule);
  const Mesh mesh = Mesh::create(make_record_world(0, 1), {});
  Engine engine(model, mesh, whole_model(model, mesh), {.seed = 4});
  FlatState& state = engine.state();
  AdamW ours(state, {.beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1});
  const auto options = torch::optim::AdamWOptions(1).betas({0.8, 0.95}).eps(1e-8);
  std::vector<at::Tensor> copies;
  std::vector<double> factors;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const Parameter* parameter : model.parameters()) {
    const auto found = rules.find(parameter->name());
    const UpdateRule rule = found == rules.end() ? UpdateRule{} : found->second;
    const double usual = parameter->spec().decays ? 0.1 : 0;
    torch::optim::AdamWOptions own = options;
    own.weight_decay(rule.weight_decay.value_or(usual));
    copies.push_back(parameter->sharded().detach().clone().requires_grad_());
    factors.push_back(rule.lr_factor);
    groups.push_back({{copies.back()}, std::make_unique<torch::optim::AdamWOptions>(own)});
  }
  torch::optim::AdamW theirs(groups, torch::optim::AdamWOptions(options).weight_decay(7));
  const at::Tensor scale = model.at("scale").sharded().detach().clone();
  for (int step = 0; step < 20; ++step) {
    const double lr = 0.01 / (1 + step);
    size_t i = 0;
    for (const Parameter* parameter : model.parameters()) {
      const at::Tensor gradient = random_tensor(copies[i].sizes(), 50 + step).to(at::kFloat);
      copies[i].mutable_grad() = gradient.clone();
      state.layout.view(state.gradients, *parameter).copy_(gradient);
      static_cast<torch::optim::AdamWOptions&>(theirs.param_groups()[i].options()).lr(lr * factors[i]);
      ++i;
    }
    ours.step(lr);
    theirs.step();
    i = 0;
    for (const Parameter* parameter : model.parameters()) {
      EXPECT_TRUE(is_close(parameter->sharded(), copies[i++], kTolerance)) << parameter->name() << ", step " << step;
    }
  }
  EXPECT_TRUE(at::equal(model.at("scale").sharded(), scale)) << "a factor of 0";
}

TEST(Optimizer, GapsStayZero) {
  Pair pair;
  AdamW optimizer(pair.state, {.weight_decay = 0.1});
  for (int step = 0; step < 3; ++step) {
    pair.set_gradients(step);
    optimizer.step(0.1);
  }
  at::Tensor gaps = pair.state.values.to_tensor();
  for (const Parameter* parameter : pair.model.parameters()) pair.state.layout.view(gaps, *parameter).zero_();
  EXPECT_EQ(gaps.abs().max().item<double>(), 0);
}

const std::vector<std::string> kKinds{"adamw", "sgd", "lion"};

std::unique_ptr<Optimizer> optimizer_of(const std::string& kind, FlatState& state) {
  if (kind == "adamw") return std::make_unique<AdamW>(state, AdamWOptions{.weight_decay = 0.1});
  if (kind == "lion") return std::make_unique<Lion>(state, LionOptions{.weight_decay = 0.1});
  return std::make_unique<Sgd>(state, SgdOptions{.momentum = 0.9, .weight_decay = 0.1});
}

/// A checkpoint stores everything: a new optimizer with the same state and number of steps continues bit for bit.
TEST(Optimizer, ContinuesFromItsState) {
  const auto run = [](Pair& pair, Optimizer& optimizer, int begin, int end) {
    for (int step = begin; step < end; ++step) {
      pair.set_gradients(step);
      optimizer.step(0.01);
    }
  };
  for (const std::string& kind : kKinds) {
    Pair whole;
    const auto unbroken = optimizer_of(kind, whole.state);
    run(whole, *unbroken, 0, 6);
    Pair first;
    const auto before = optimizer_of(kind, first.state);
    run(first, *before, 0, 3);
    Pair second;
    second.state.values.narrow(0, second.state.layout.count()).copy_(first.state.values.to_tensor());
    const auto after = optimizer_of(kind, second.state);
    after->set_num_steps(before->num_steps());
    ASSERT_EQ(before->state().size(), kind == "adamw" ? 2U : 1U);
    for (size_t i = 0; i < before->state().size(); ++i) {
      EXPECT_EQ(before->state()[i].first, after->state()[i].first);
      after->state()[i].second.write(0, before->state()[i].second.to_tensor());
    }
    run(second, *after, 3, 6);
    EXPECT_TRUE(at::equal(second.state.values.to_tensor(), whole.state.values.to_tensor()));
  }
}

/// A step that has begun is complete for whoever reads the flat buffers, in whatever order.
TEST(Optimizer, ReadersWaitForAStepThatHasBegun) {
  const auto train = [](const OffloadOptions& options, bool begins) {
    Parameters model{{"w", {300, 70}, true}, {"bias", {7}, false}, {"v", {33}, true}};
    const Mesh mesh = Mesh::create(make_record_world(0, 1), {});
    Strategy strategy = whole_model(model, mesh);
    add_offload(strategy, options);
    Engine engine(model, mesh, strategy, {.seed = 4});
    FlatState& state = engine.state();
    AdamW optimizer(state, {});
    std::vector<at::Tensor> seen;
    for (int step = 0; step < 3; ++step) {
      for (const Slot& slot : state.layout.slots()) {
        const at::Tensor gradient = random_tensor(slot.sharded_shape, 50 + step).to(at::kFloat);
        state.layout.write(state.gradients, *slot.parameter, gradient);
      }
      begins ? optimizer.start_step(0.01) : optimizer.step(0.01);
      for (const Slot& slot : state.layout.slots()) {
        for (const auto& [name, moment] : optimizer.state())
          seen.push_back(state.layout.read(moment, *slot.parameter).clone());
        seen.push_back(state.layout.read(state.values, *slot.parameter).detach().clone());
      }
    }
    return seen;
  };
  const TemporaryFolder folder;
  const std::vector<at::Tensor> want = train({}, false);
  for (const Tier tier : {Tier::host, Tier::disk}) {
    const OffloadOptions options{.optimizer = tier, .gradients = tier, .disk_dirs = {folder.path()}};
    for (const bool begins : {true, false}) {
      const std::vector<at::Tensor> got = train(options, begins);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << i;
    }
  }
}

TEST(Optimizer, OneGroupMayBeEmpty) {
  Parameters model{{"bias", {7}, false}};
  const Mesh mesh = Mesh::create(make_record_world(0, 1), {});
  Engine engine(model, mesh, whole_model(model, mesh));
  FlatState& state = engine.state();
  state.gradients.narrow(0, state.layout.trained_count()).fill_(1);
  AdamW adamw(state);
  adamw.step(0.1);
  Sgd sgd(state, {.weight_decay = 1});
  EXPECT_NO_THROW(sgd.step(0.1));
}

/// Every rank updates its part: for all ranges, the parts together have the same bits as one rank's.
TEST(Optimizer, OfShardsMatchesTheWhole) {
  const auto train = [](Engine& engine, const Mesh& mesh, const std::string& kind) {
    FlatState& state = engine.state();
    const auto optimizer = optimizer_of(kind, state);
    for (int step = 0; step < 5; ++step) {
      for (const Parameter* parameter : engine.model().parameters()) {
        const at::Tensor gradient = random_tensor(parameter->global_shape(), 50 + step).to(at::kFloat);
        state.layout.view(state.gradients, *parameter).copy_(piece_of(gradient, parameter->sharded_layout(), mesh));
      }
      optimizer->step(0.01);
    }
  };
  const std::vector<Parameters::Spec> specs{{"w", {5, 7}}, {"bias", {7}, false}, {"v", {33}}, {"scale", {}, false}};
  for (const std::string& kind : kKinds) {
    std::map<std::string, at::Tensor> want;
    on_mesh({{"dp", 1}}, [&](const Mesh& mesh) {
      Parameters model(specs);
      Engine engine(model, mesh, whole_model(model, mesh), {.seed = 4});
      train(engine, mesh, kind);
      for (const Parameter* parameter : model.parameters()) want[parameter->name()] = parameter->sharded().detach();
    });
    on_mesh({{"dp", 3}}, [&](const Mesh& mesh) {
      Parameters model(specs);
      Strategy strategy = whole_model(model, mesh);
      add_data_axis(strategy, mesh, "dp");
      shard_at_rows(strategy, mesh, "dp");
      Engine engine(model, mesh, strategy, {.seed = 4});
      train(engine, mesh, kind);
      for (const Parameter* parameter : model.parameters()) {
        const at::Tensor piece = piece_of(want.at(parameter->name()), parameter->sharded_layout(), mesh);
        // torch's fused kernel rounds its last few elements differently from those that fill a vector.
        EXPECT_TRUE(is_close(parameter->sharded(), piece, kind == "adamw" ? 1e-6 : 0)) << parameter->name();
      }
    });
  }
}

/// Only trained values change, so only these are rounded in every step. Frozen ones are rounded again only after they
/// have been written from outside. Marks in the memory of their copies show who writes it.
TEST(Optimizer, FrozenValuesAreRoundedOnce) {
  using Make = std::function<std::unique_ptr<Engine>(Module&, const Mesh&)>;
  const std::map<std::string, Make> engines{
      {"ddp",
       [](Module& model, const Mesh& mesh) {
         return std::make_unique<Ddp>(model, mesh, DdpOptions{.compute_dtype = at::kBFloat16});
       }},
      {"zero1",
       [](Module& model, const Mesh& mesh) {
         return std::make_unique<Zero>(model, mesh,
                                       ZeroOptions{.stage = 1, .share = Share::off, .compute_dtype = at::kBFloat16});
       }},
      {"zero2", [](Module& model, const Mesh& mesh) {
         return std::make_unique<Zero>(model, mesh,
                                       ZeroOptions{.stage = 2, .share = Share::off, .compute_dtype = at::kBFloat16});
       }}};
  for (const auto& [name, make] : engines) {
    for (const std::string& kind : kKinds) {
      SCOPED_TRACE(name + " " + kind);
      on_mesh({{"dp", 2}}, [&](const Mesh& mesh) {
        Chain model({{{"frozen", {6, 4}}, {"w", {8}}}, {{"v", {4, 4}}, {"fixed", {10}}}});
        model.unit(0).at("frozen").set_requires_grad(false);
        model.unit(1).at("fixed").set_requires_grad(false);
        const auto engine = make(model, mesh);
        FlatState& state = engine->state();
        const auto optimizer = optimizer_of(kind, state);
        const auto pass = [&] {
          engine->begin_step();  // rounds
          const at::Tensor x = at::ones({1}, at::TensorOptions(at::kBFloat16).requires_grad(true));
          model.run({x}, {})[0].sum().backward();
          engine->finish_step();
        };
        const auto copy_of = [&](const Parameter& parameter) { return state.layout.view(state.copies, parameter); };
        const auto is_copied = [&](const Parameter& parameter) {
          return at::equal(copy_of(parameter), parameter.sharded().detach().to(at::kBFloat16));
        };
        pass();
        for (const Parameter* parameter : model.parameters()) {
          if (!parameter->requires_grad()) copy_of(*parameter).fill_(7);
        }
        for (int i = 0; i < 3; ++i) {
          optimizer->step(0.01);
          pass();
        }
        for (const Parameter* parameter : model.parameters()) {
          if (parameter->requires_grad()) {
            EXPECT_TRUE(is_copied(*parameter)) << parameter->name();
          } else {
            EXPECT_TRUE(copy_of(*parameter).eq(7).all().item<bool>()) << parameter->name();
          }
        }
        state.bump_version();  // as a load of a checkpoint does
        pass();
        for (const Parameter* parameter : model.parameters()) {
          if (!parameter->requires_grad()) {
            EXPECT_TRUE(is_copied(*parameter)) << parameter->name();
          }
        }
      });
    }
  }
}

TEST(Optimizer, RefusesOptionsOutsideTheirRange) {
  Pair pair;
  EXPECT_THAT(message_of<UsageError>([&] { AdamW(pair.state, {.beta1 = 1}); }),
              HasSubstr("beta1: 1 is outside [0, 1)"));
  EXPECT_THROW(AdamW(pair.state, {.beta2 = -0.1}), UsageError);
  EXPECT_THROW(AdamW(pair.state, {.epsilon = -1}), UsageError);
  EXPECT_THROW(AdamW(pair.state, {.weight_decay = -1}), UsageError);
  EXPECT_THROW(AdamW(pair.state, {.weight_decay = std::nan("")}), UsageError);
  EXPECT_THROW(Sgd(pair.state, {.momentum = 1}), UsageError);
  EXPECT_THROW(Lion(pair.state, {.beta2 = 1}), UsageError);
  EXPECT_THROW(Lion(pair.state, {.weight_decay = -1}), UsageError);
}

}  // namespace
}  // namespace caravan::testing::optimizer_test
