#include "caravan/techniques/recompute/recompute.h"

#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "caravan/base/error.h"
#include "caravan/comm/record.h"
#include "caravan/engine/engine.h"
#include "caravan/redistribute/redistribute.h"
#include "caravan/techniques/technique_body.h"
#include "tests/acid/techniques/shard_everything.h"
#include "tests/redistribute/denote.h"
#include "tests/techniques/together/technique.h"

namespace caravan::testing::recompute_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// {x, labels, scale} -> {f(x), labels, scale, y}: integers, a float without gradient, and two outputs with one.
class Part final : public Module {
 public:
  Part() : weight_(register_parameter("weight", {.shape = {3}, .init = {Init::Kind::normal, 1}})) {}
  std::vector<Phase> phases;
  bool is_in_place = false;
  bool returns_integers = false;

 private:
  Tensors forward(Tensors inputs, const ForwardContext& context) override {
    phases.push_back(context.phase);
    if (is_in_place) inputs[0].mul_(2);
    const at::Tensor y = (inputs[0] * weight_.compute()).tanh();
    const at::Tensor scaled = y * inputs.at(2);
    return {scaled + y.square(), inputs[1], inputs[2], returns_integers ? inputs[1] + 1 : scaled};
  }
  Parameter& weight_;
};

class Chain final : public Module {
 public:
  Chain() : parts_{&register_module<Part>("a"), &register_module<Part>("b"), &register_module<Part>("c")} {}
  std::vector<Module*> blocks() override { return {parts_.begin(), parts_.end()}; }
  Part& part(size_t i) { return *parts_[i]; }

 private:
  Tensors forward(Tensors inputs, const ForwardContext& context) override {
    for (Part* part : parts_) {
      inputs = part->run(std::move(inputs), context);
      inputs.resize(3);
    }
    return inputs;
  }
  std::vector<Part*> parts_;
};

/// A list of blocks between other units.
class Tower final : public Module {
 public:
  Tower() : in_(register_module<Part>("in")), blocks_(register_module<Chain>("blocks")) {}
  std::vector<Module*> blocks() override {
    std::vector<Module*> all{&in_};
    for (Module* block : blocks_.blocks()) all.push_back(block);
    return all;
  }

 private:
  Tensors forward(Tensors inputs, const ForwardContext& context) override {
    inputs = in_.run(std::move(inputs), context);
    inputs.resize(3);
    return blocks_.run(std::move(inputs), context);
  }
  Part& in_;
  Chain& blocks_;
};

Tensors batch(bool requires_grad = false) {
  return {random_tensor({2, 3}, 5).requires_grad_(requires_grad), at::arange(2), at::full({}, 0.5, at::kDouble)};
}

Mesh one_rank() { return Mesh::create(make_record_world(0, 1), {{"dp", 1}}); }

Strategy strategy_of(Module& model, const Setting& choice) {
  const Mesh mesh = one_rank();
  for (Parameter* slot : model.parameters()) {
    if (slot->sharded().defined()) continue;
    slot->set_sharded(random_tensor(slot->global_shape(), slot->name().size()).requires_grad_(),
                      Layout::all(mesh, Invariant{}));
  }
  Strategy strategy = whole_model(model, mesh);
  add_around(choice, strategy, model);
  return strategy;
}

std::vector<at::Tensor> gradients_of(Chain& chain) {
  std::vector<at::Tensor> all;
  for (Parameter* slot : chain.parameters()) {
    all.push_back(slot->unsharded().grad());
    slot->unsharded().mutable_grad() = at::Tensor();
  }
  return all;
}

TEST(Recompute, TakesSeveralInputsAndOutputsWithAndWithoutGradient) {
  std::vector<std::vector<at::Tensor>> gradients;
  for (const std::string name : {"none", "full"}) {
    Chain chain;
    chain.part(2).returns_integers = true;
    const Strategy strategy = strategy_of(chain, recompute_of(name));
    const Tensors inputs = batch(/*requires_grad=*/true);
    Tensors outputs = chain.part(0).run(inputs, {});
    EXPECT_TRUE(outputs[1].is_same(inputs[1]));
    EXPECT_TRUE(outputs[2].is_same(inputs[2])) << "an input that is passed on stays what it is";
    const at::Tensor second = outputs[3];
    outputs.resize(3);
    outputs = chain.part(1).run(std::move(outputs), {});
    outputs.resize(3);
    outputs = chain.part(2).run(std::move(outputs), {});
    EXPECT_FALSE(outputs[3].requires_grad());
    (outputs[0].sum() + second.square().sum()).backward();
    gradients.push_back(gradients_of(chain));
    gradients.back().push_back(inputs[0].grad());
    const size_t num_runs = name == "full" ? 2 : 1;
    for (size_t i = 0; i < 3; ++i) ASSERT_EQ(chain.part(i).phases.size(), num_runs) << i;
    EXPECT_EQ(chain.part(0).phases.back(), name == "full" ? Phase::recompute : Phase::forward);
  }
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(at::equal(gradients[1][i], gradients[0][i])) << i;
}

TEST(Recompute, RunsOnceWhereNothingIsKept) {
  Chain chain;
  const Strategy strategy = strategy_of(chain, recompute_of("full"));
  chain.part(0).own_parameters()[0]->set_requires_grad(false);
  const Tensors outputs = chain.run(batch(), {});
  EXPECT_TRUE(outputs[0].requires_grad());
  outputs[0].sum().backward();
  EXPECT_EQ(chain.part(0).phases.size(), 1U) << "frozen, and so is what comes before";
  EXPECT_EQ(chain.part(1).phases.size(), 2U);
  chain.run(batch(), {.phase = Phase::evaluate});
  const at::NoGradGuard no_grad;
  chain.run(batch(), {});
  EXPECT_EQ(chain.part(2).phases.size(), 4U);
}

TEST(Recompute, BackwardTwiceRecomputesTwice) {
  Chain chain;
  const Strategy strategy = strategy_of(chain, recompute_of("full"));
  const at::Tensor loss = chain.run(batch(), {})[0].sum();
  loss.backward({}, /*retain_graph=*/true);
  std::vector<at::Tensor> once = gradients_of(chain);
  loss.backward();
  const std::vector<at::Tensor> again = gradients_of(chain);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(again[i], once[i])) << i;
}

/// The hooks are the strategy's: copies share them, and the model is as it was when the last has gone.
TEST(Recompute, LastsAsLongAsTheStrategy) {
  Chain chain;
  {
    const Strategy copy = strategy_of(chain, recompute_of("full"));
    EXPECT_EQ(copy.recomputed, (std::vector<std::string>{"a", "b", "c"}));
    for (const Strategy::Unit& unit : copy.units) EXPECT_TRUE(unit.is_recomputed);
    chain.run(batch(), {})[0].sum().backward();
  }
  chain.run(batch(), {})[0].sum().backward();
  EXPECT_EQ(chain.part(1).phases.size(), 3U);
}

TEST(Recompute, FullMeansTheBlocksOfAListAndPatternsWhatTheyMatchFirst) {
  Tower tower;
  EXPECT_EQ(strategy_of(tower, recompute_of("full")).recomputed,
            (std::vector<std::string>{"blocks.a", "blocks.b", "blocks.c"}));
  EXPECT_EQ(strategy_of(tower, recompute_of(std::vector<std::string>{"blocks.b", "in", "blocks.b"})).recomputed,
            (std::vector<std::string>{"blocks.b", "in"}));
  EXPECT_EQ(strategy_of(tower, recompute_of(std::vector<std::string>{"blocks.*"})).recomputed.size(), 3U);
  EXPECT_TRUE(strategy_of(tower, recompute_of("none")).recomputed.empty());
}

TEST(Recompute, RefusesWhatDoesNotFitTheModel) {
  Tower tower;
  const auto refusal = [&](const Setting& choice) {
    return message_of<UsageError>([&] { strategy_of(tower, choice); });
  };
  EXPECT_THAT(refusal(recompute_of(std::vector<std::string>{"block.b"})), HasSubstr("the nearest is 'blocks.b'"));
  EXPECT_THAT(refusal(recompute_of(std::vector<std::string>{"blocks.b", "*.d"})),
              HasSubstr("*.d: no module has such a name"));
  EXPECT_THAT(refusal(recompute_of(std::vector<std::string>{"blocks"})),
              AllOf(HasSubstr("holds 3 units"), HasSubstr("blocks.a, blocks.b, blocks.c")));
  EXPECT_THAT(refusal(recompute_of("selective")), HasSubstr("attention.core"));
  EXPECT_THAT(message_of<UsageError>([&] {
                Strategy strategy = strategy_of(tower, recompute_of("none"));
                strategy.units = {{.module = &tower}};
                add_recompute(strategy, tower, {.modules = {"blocks.a"}});
                add_recompute(strategy, tower, {.modules = {"*"}});
              }),
              HasSubstr("blocks.a: is inside the model, which is recomputed as a whole"));
}

TEST(Recompute, RefusesAForwardThatLosesItsInput) {
  Chain chain;
  const Strategy strategy = strategy_of(chain, recompute_of("full"));
  chain.part(1).is_in_place = true;
  EXPECT_THAT(message_of<UsageError>([&] { chain.run(batch(), {}); }),
              HasSubstr("b: its forward changes input 0 in place"));
}

TEST(Recompute, RefusesOtherGradientsThanThoseOfBackward) {
  Chain chain;
  const Strategy strategy = strategy_of(chain, recompute_of("full"));
  const Tensors inputs = batch(/*requires_grad=*/true);
  const at::Tensor loss = chain.run(inputs, {})[0].sum();
  for (const bool create_graph : {false, true}) {
    const auto of_input = [&] { torch::autograd::grad({loss}, {inputs[0]}, {}, /*retain_graph=*/true, create_graph); };
    EXPECT_THAT(message_of<UsageError>(of_input), HasSubstr("neither gradients of gradients nor of chosen tensors"));
  }
  at::autocast::set_autocast_enabled(at::kCPU, true);
  EXPECT_THAT(message_of<UsageError>([&] { chain.run(inputs, {}); }), HasSubstr("autocast"));
  at::autocast::set_autocast_enabled(at::kCPU, false);
}

/// One gather serves the recomputation and the backward.
TEST(Recompute, GathersOnceForBoth) {
  std::vector<std::string> tables;
  for (const char* name : {"none", "full"}) {
    on_mesh({{"dp", 2}}, [&](const Mesh& mesh) {
      Tower tower;
      Strategy strategy = whole_model(tower, mesh);
      shard_everything(strategy, mesh, "dp");
      add_around(recompute_of(name), strategy, tower);
      Engine engine(tower, mesh, strategy, {.seed = 3, .dtype = at::kDouble});
      for (int step = 0; step < 2; ++step) {
        engine.begin_step(2);
        for (int micro = 0; micro < 2; ++micro) {
          backward(tower.run(batch(), {.micro_batch = micro})[0].sum(), strategy.loss_layout);
        }
        engine.finish_step();
      }
      if (mesh.rank() == 0) tables.push_back(to_string(*engine.recorded(2)));
    });
  }
  EXPECT_EQ(tables[0], tables[1]);
  EXPECT_THAT(tables[0], HasSubstr("G1"));
}

TEST(Recompute, RanksMustAgree) {
  on_mesh({{"dp", 2}}, [&](const Mesh& mesh) {
    Tower tower;
    Strategy strategy = whole_model(tower, mesh);
    add_recompute(strategy, tower, {.modules = {mesh.rank() == 0 ? "blocks.a" : "blocks.b"}});
    EXPECT_THAT(message_of<UsageError>([&] { Engine(tower, mesh, strategy); }),
                AllOf(HasSubstr("recompute"), HasSubstr("blocks.a"), HasSubstr("blocks.b")));
  });
}

}  // namespace
}  // namespace caravan::testing::recompute_test
