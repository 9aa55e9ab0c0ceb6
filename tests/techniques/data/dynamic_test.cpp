/// Steps that differ: Strategy::static_graph and find_unused_parameters; and when reductions start.

#include <gmock/gmock.h>

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/techniques/data/ddp.h"
#include "caravan/techniques/data/zero.h"
#include "tests/engine/parameters.h"
#include "tests/techniques/together/technique.h"
#include "tests/techniques/together/user_net.h"

namespace caravan::testing::dynamic_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// ---- branches ----

/// A branch that some ranks skip, in some steps all: all ranks against one process.
TEST(UnusedParameters, CountAsZero) {
  for (const char* technique : {"ddp", "zero2", "zero3"}) {
    for (const bool has_units : {true, false}) {
      for (const int ranks : {1, 2, 4}) {
        UserRun run{
            .ranks = ranks, .choice = with(technique_of(technique), {{"share", "off"}}), .micros = 2, .steps = 4};
        run.has_units = has_units;
        run.takes_branch = [](int step, int rank, int micro) { return step != 2 && (step + rank + micro) % 3 == 0; };
        SCOPED_TRACE(run.to_string());
        expect_equal(on_ranks(run), in_one_process(run), 1e-10);
      }
    }
  }
}

TEST(UnusedParameters, AreAnErrorThatNamesThem) {
  for (const bool static_graph : {true, false}) {
    on_mesh({{"dp", 2}}, [&](const Mesh& mesh) {
      const auto net = std::make_shared<UserNet>();
      ModuleAdapter model(net, UserNet::units(net), mesh);
      Ddp ddp(model, mesh, {.static_graph = static_graph});
      net->takes_branch = false;
      ddp.begin_step();
      model(at::ones({2, 2, 5, 5}), {}).sum().backward();
      EXPECT_THAT(
          message_of<UsageError>([&] { ddp.finish_step(); }),
          AllOf(HasSubstr("branch."), HasSubstr("got no gradient in this step"), HasSubstr("find_unused_parameters")));
    });
  }
}

// ---- the units of a step, in any order ----

/// Which units the micro-batches of a step run, in their order: other ones on each rank and in each step.
std::vector<size_t> order_of(int step, int rank) {
  static const std::vector<std::vector<size_t>> orders{{0, 1, 2}, {2, 0}, {1, 2, 1, 0}, {1}, {2, 1, 0}};
  return orders[static_cast<size_t>(step * 2 + rank) % orders.size()];
}

Named gradients_of_chain(const Chain& chain) {
  Named gradients;
  for (const Parameter* parameter : chain.parameters()) {
    const at::Tensor grad = parameter->sharded().grad();
    gradients[parameter->name()] = grad.defined() ? grad.detach().clone() : at::zeros_like(parameter->sharded());
  }
  return gradients;
}

const std::vector<std::vector<Parameters::Spec>> kUnits{{{"a", {3}}}, {{"b", {2, 2}}}, {{"c", {5}}, {"d", {1}}}};

at::Tensor loss_of(Chain& chain, int step, int rank) {
  chain.order = order_of(step, rank);
  return chain(at::full({2}, 1.0 + rank + 0.5 * step, at::kDouble), {}).sum();
}

TEST(DynamicStep, RunsAnyUnitsInAnyOrder) {
  constexpr int kRanks = 3;
  constexpr int kSteps = 6;
  std::vector<Named> want;
  on_mesh({{"dp", 1}}, [&](const Mesh& mesh) {
    Chain chain(kUnits);
    Engine one(chain, mesh, ddp(chain, mesh, {.find_unused_parameters = true, .static_graph = false}),
               {.seed = 3, .dtype = at::kDouble});
    for (int step = 0; step < kSteps; ++step) {
      one.begin_step(kRanks);
      for (int rank = 0; rank < kRanks; ++rank) loss_of(chain, step, rank).backward();
      one.finish_step();
      want.push_back(gradients_of_chain(chain));
    }
    EXPECT_EQ(one.recorded(kRanks), nullptr);
  });
  on_mesh({{"dp", kRanks}}, [&](const Mesh& mesh) {
    Chain chain(kUnits);
    Engine engine(chain, mesh,
                  ddp(chain, mesh, {.bucket_bytes = 16, .find_unused_parameters = true, .static_graph = false}),
                  {.seed = 3, .dtype = at::kDouble});
    for (int step = 0; step < kSteps; ++step) {
      engine.begin_step();
      loss_of(chain, step, mesh.rank()).backward();
      engine.finish_step();
      const auto [apart, name] = distance(gradients_of_chain(chain), want[static_cast<size_t>(step)]);
      EXPECT_LE(apart, 1e-12) << name << " in step " << step;
    }
  });
}

/// Unlike in static steps, a parameter that one rank has used counts as used.
TEST(DynamicStep, AParameterIsUsedIfAnyRankUsesIt) {
  on_mesh({{"dp", 2}}, [&](const Mesh& mesh) {
    Chain chain(kUnits);
    Ddp engine(chain, mesh, {.static_graph = false});
    engine.begin_step();
    chain.order = mesh.rank() == 0 ? std::vector<size_t>{0, 2} : std::vector<size_t>{1};
    chain(at::ones({2}), {}).sum().backward();
    EXPECT_NO_THROW(engine.finish_step());
    engine.begin_step();
    chain.order = {mesh.rank() == 0 ? size_t{0} : size_t{2}};
    chain(at::ones({2}), {}).sum().backward();
    EXPECT_THAT(message_of<UsageError>([&] { engine.finish_step(); }), HasSubstr("u1.b: got no gradient"));
  });
}

TEST(DynamicStep, JoinsRanksWithoutABatch) {
  needs({"ddp"});
  UserRun run{.ranks = 3, .micros = 2, .steps = 4, .static_graph = false};
  run.has_batch = [](int step, int rank) { return step <= rank + 1; };
  run.takes_branch = [](int step, int rank, int micro) { return (step + rank + micro) % 2 == 0; };
  expect_equal(on_ranks(run), in_one_process(run), 1e-10);
}

TEST(DynamicStep, IsRefusedWhereUnitsAreGathered) {
  on_mesh({{"dp", 2}}, [&](const Mesh& mesh) {
    Chain chain(kUnits);
    Strategy strategy = fsdp(chain, mesh, {.share = Share::off});
    strategy.static_graph = false;
    EXPECT_THAT(message_of<UsageError>([&] { Engine(chain, mesh, strategy); }),
                AllOf(HasSubstr("takes part in the gathers of"), HasSubstr("use ddp, which gathers nothing")));
    Ddp engine(chain, mesh, {.static_graph = false});
    EXPECT_THAT(message_of<UsageError>([&] { engine.table(1); }),
                HasSubstr("there is no table of steps that may differ"));
  });
}

// ---- when reductions start ----

/// The groups that a recorded step reduces, in order.
std::vector<std::string> reduced(const Engine& engine) {
  std::vector<std::string> names;
  for (const Action& action : *engine.recorded(1)) {
    if (action.kind != Action::Kind::reduce) continue;
    names.push_back(engine.state().layout.units().groups[static_cast<size_t>(action.unit)].name);
  }
  return names;
}

TEST(OrderOfReductions, IsTheOrderOfBackward) {
  on_mesh({{"dp", 2}}, [&](const Mesh& mesh) {
    Chain chain(kUnits);
    chain.order = {1, 2, 0};
    Ddp engine(chain, mesh, {.bucket_bytes = 1});
    std::vector<int64_t> num_sent;  // when the backward of each unit is entered
    for (size_t unit = 0; unit < kUnits.size(); ++unit) {
      chain.unit(unit).in_backward = [&] { num_sent.push_back(mesh.bytes_sent()); };
    }
    for (int step = 0; step < 2; ++step) {
      num_sent.clear();
      engine.begin_step();
      chain(at::ones({2}), {}).sum().backward();
      engine.finish_step();
    }
    EXPECT_EQ(reduced(engine), (std::vector<std::string>{"u0", "u2", "u1"}));
    ASSERT_EQ(num_sent.size(), 3U);
    EXPECT_LT(num_sent[0], num_sent[1]) << "u0 is reduced before backward enters u2";
    EXPECT_LT(num_sent[1], num_sent[2]);
  });
}

TEST(OrderOfReductions, IsTheOrderOfBackwardInModels) {
  for (const Architecture& kind : {Architecture::gpt2(), Architecture::llama()}) {
    const Problem problem(kind);
    on_mesh({{"dp", 2}}, [&](const Mesh& mesh) {
      Model model(problem.config);
      Ddp engine(model, mesh);
      engine.begin_step();
      const Problem::Batch part = problem.part(problem.batch(), mesh.rank(), 2, 0, 1);
      model.run({part.ids, part.labels}, part.context)[0].backward();
      engine.finish_step();
      std::vector<std::string> want{"head", "blocks.1", "blocks.0", "embedding"};
      const std::vector<std::string> got = reduced(engine);
      std::erase_if(want, [&](const std::string& name) { return std::ranges::find(got, name) == got.end(); });
      EXPECT_GE(want.size(), 3U);
      EXPECT_TRUE(std::equal(want.begin(), want.end(), got.begin())) << fmt::format("{}", fmt::join(got, " "));
    });
  }
}

/// Buckets that hold everything send at the end, but for the first.
TEST(FirstBucket, StartsBeforeBackwardEnds) {
  for (const bool is_small : {true, false}) {
    on_mesh({{"dp", 2}}, [&](const Mesh& mesh) {
      Chain chain({{{"a", {8}}}, {{"b", {8}}}, {{"c", {8}}}});
      Ddp engine(chain, mesh, {.first_bucket_bytes = is_small ? 1 : int64_t{1} << 20});
      int64_t sent = 0;
      chain.unit(0).in_backward = [&] { sent = mesh.bytes_sent(); };
      int64_t before = 0;
      for (int step = 0; step < 2; ++step) {
        before = mesh.bytes_sent();
        engine.begin_step();
        chain(at::ones({2}), {}).sum().backward();
        engine.finish_step();
      }
      const int64_t one = wire_bytes(Verb::all_reduce, mesh.rank(), 2, FlatLayout::kAlignment * 4, 0, 0);
      EXPECT_EQ(sent - before, is_small ? one : 0);
      EXPECT_EQ(mesh.bytes_sent() - before, 3 * one);
    });
  }
}

TEST(FirstBucket, IsNotEmpty) {
  on_mesh({{"dp", 1}}, [&](const Mesh& mesh) {
    Chain chain(kUnits);
    EXPECT_THAT(message_of<UsageError>([&] { Ddp(chain, mesh, {.first_bucket_bytes = 0}); }),
                HasSubstr("first_bucket_bytes: 0 bytes cannot hold a gradient"));
  });
}

}  // namespace
}  // namespace caravan::testing::dynamic_test
