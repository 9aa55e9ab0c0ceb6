/// Engine's own: the order of events and what is performed between them, with a chain of fake units. That its gradients
/// are right under every layout is payment_test.cpp's.

#include "caravan/engine/engine.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "caravan/base/error.h"
#include "caravan/comm/record.h"
#include "caravan/engine/stages/stage_runner.h"
#include "caravan/optim/optimizer.h"
#include "caravan/redistribute/redistribute.h"
#include "tests/engine/parameters.h"

namespace caravan::testing::engine_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using LayOut = std::function<void(Strategy& strategy, Mesh& mesh)>;

void data(Strategy& strategy, Mesh& mesh) { add_data_axis(strategy, mesh, "dp"); }
void rows(Strategy& strategy, Mesh& mesh) {
  add_data_axis(strategy, mesh, "dp");
  shard_at_rows(strategy, mesh, "dp");
}

std::vector<std::vector<Parameters::Spec>> three_units() {
  return {{{"w", {5, 2}}, {"b", {3}, false}}, {{"w", {1, 4}}, {"v", {2, 3}}}, {{"w", {7}}}};
}

/// A chain, in fp64 unless told otherwise, under a strategy, and a step of it: micro-batch m of rank r has the input r
/// + m + 1.
struct Fake {
  Fake(const Mesh& given, const LayOut& lay_out, const std::function<void(Strategy&)>& change = {},
       const std::function<void(Chain&)>& prepare = {}, at::ScalarType dtype = at::kDouble)
      : mesh(given), type(dtype) {
    if (prepare) prepare(model);
    Strategy strategy = whole_model(model, mesh);
    strategy.name = "test";
    strategy.bucket_bytes = 1;
    lay_out(strategy, mesh);
    if (change) change(strategy);
    engine = std::make_unique<Engine>(model, mesh, std::move(strategy), Engine::Options{.seed = 3, .dtype = dtype});
  }

  at::Tensor forward(int micro_batch, const ForwardContext& context = {}) {
    const at::Tensor x = at::full({}, mesh.rank() + micro_batch + 1.0, type);
    return model.run({x}, context)[0];
  }
  void step(int num_micro_batches = 1) {
    engine->begin_step(num_micro_batches);
    for (int m = 0; m < num_micro_batches; ++m) forward(m).backward();
    engine->finish_step();
  }
  int64_t calls(Verb verb) const { return mesh["dp"].comm().traffic().calls[static_cast<size_t>(verb)]; }
  std::string schedule(int num_micro_batches = 1) {
    const Schedule* recorded = engine->recorded(num_micro_batches);
    return to_string(recorded == nullptr ? engine->table(num_micro_batches) : *recorded);
  }

  Mesh mesh;
  at::ScalarType type;
  Chain model{three_units()};
  std::unique_ptr<Engine> engine;
};

void on_ranks(int n, const std::function<void(const Mesh&)>& body) { on_mesh({{"dp", n}}, body); }

// ---- gradients ----

/// Values at the start, and the gradients of each of three steps of SGD, of all ranks' inputs on one.
std::vector<std::map<std::string, at::Tensor>> one_process(int ranks, int num_micro_batches) {
  std::vector<std::map<std::string, at::Tensor>> steps;
  on_mesh({{"dp", 1}}, [&](const Mesh& mesh) {
    Fake fake(mesh, data);
    for (int step = 0; step < 3; ++step) {
      fake.engine->begin_step(ranks * num_micro_batches);
      for (int rank = 0; rank < ranks; ++rank) {
        for (int m = 0; m < num_micro_batches; ++m) fake.forward(rank + m).backward();
      }
      fake.engine->finish_step();
      std::map<std::string, at::Tensor> gradients;
      for (const Parameter* parameter : fake.model.parameters()) {
        gradients[parameter->name()] = parameter->sharded().grad().clone();
      }
      steps.push_back(gradients);
      Sgd(fake.engine->state()).step(1e-3);
    }
  });
  return steps;
}

/// The first step is recorded, the others follow the record: both are correct, on any ranks and for any sharding.
TEST(Engine, GradientsMatchOneProcessInEveryStep) {
  for (const int n : {1, 2, 3, 4}) {
    for (const int num_micro_batches : {1, 3}) {
      const auto want = one_process(n, num_micro_batches);
      for (const auto& [name, lay_out] : std::map<std::string, LayOut>{{"data", data}, {"rows", rows}}) {
        on_ranks(n, [&, name = name, lay_out = lay_out](const Mesh& mesh) {
          Fake fake(mesh, lay_out);
          for (size_t step = 0; step < want.size(); ++step) {
            fake.step(num_micro_batches);
            for (const Parameter* parameter : fake.model.parameters()) {
              const at::Tensor piece = piece_of(want[step].at(parameter->name()), parameter->sharded_layout(), mesh);
              EXPECT_TRUE(is_close(parameter->sharded().grad(), piece))
                  << name << ", " << parameter->name() << ", step " << step << ", " << mesh.where();
            }
            Sgd(fake.engine->state()).step(1e-3);
          }
        });
      }
    }
  }
}

/// What has memory already starts from coordinate 0's values, whole or in shards; frozen parameters and buffers too.
TEST(Engine, StartsFromTheValuesOfCoordinate0) {
  for (const LayOut& lay_out : {LayOut(data), LayOut(rows)}) {
    on_ranks(3, [&](const Mesh& mesh) {
      std::map<std::string, at::Tensor> first;
      {
        Chain model(three_units());
        model.materialise(mesh, {}, {.seed = 100});
        for (const Parameter* parameter : model.parameters()) first[parameter->name()] = parameter->sharded().detach();
      }
      const Fake fake(mesh, lay_out, {}, [&](Chain& model) {
        model.materialise(mesh, {}, {.seed = 100 + static_cast<uint64_t>(mesh.rank())});
        model.unit(1).at("v").set_requires_grad(false);
      });
      for (const Parameter* parameter : fake.model.parameters()) {
        const at::Tensor want = piece_of(first.at(parameter->name()), parameter->sharded_layout(), mesh);
        EXPECT_TRUE(same_bits(parameter->sharded().detach(), want)) << parameter->name();
      }
    });
  }
}

// ---- order ----

TEST(Engine, TheFirstStepIsRecordedAndLaterOnesReduceWhileBackwardRuns) {
  on_ranks(2, [](const Mesh& mesh) {
    Fake fake(mesh, data);
    std::vector<int64_t> during;  // reductions before the backward of u2, u1, u0
    for (size_t unit = 0; unit < 3; ++unit) {
      fake.model.unit(unit).in_backward = [&] { during.push_back(fake.calls(Verb::all_reduce)); };
    }
    for (int step = 0; step < 3; ++step) {
      during.clear();
      const int64_t before = fake.calls(Verb::all_reduce);
      fake.engine->begin_step();
      const at::Tensor loss = fake.forward(0);
      loss.backward();
      const int64_t after = fake.calls(Verb::all_reduce) - before;
      fake.engine->finish_step();
      for (int64_t& calls : during) calls -= before;
      // bucket_bytes is 1: a collective for each group. That of u0 has no event after it.
      EXPECT_THAT(during, step == 0 ? ElementsAre(0, 0, 0) : ElementsAre(0, 1, 2));
      EXPECT_EQ(after, step == 0 ? 0 : 2);
      EXPECT_EQ(fake.calls(Verb::all_reduce) - before, 3);
    }
    EXPECT_EQ(fake.schedule(), "F0.0 F1.0 F2.0 B2.0 R2.0 B1.0 R1.0 B0.0 R0.0 U");
  });
}

TEST(Engine, MicroBatchesAccumulateAndEachNumberOfThemHasItsSchedule) {
  on_ranks(2, [](const Mesh& mesh) {
    Fake fake(mesh, data);
    for (const int num_micro_batches : {2, 1, 2, 1}) {
      const int64_t before = fake.calls(Verb::all_reduce);
      fake.step(num_micro_batches);
      EXPECT_EQ(fake.calls(Verb::all_reduce) - before, 3);
    }
    EXPECT_EQ(fake.schedule(1), "F0.0 F1.0 F2.0 B2.0 R2.0 B1.0 R1.0 B0.0 R0.0 U");
    EXPECT_EQ(fake.schedule(2), "F0.0 F1.0 F2.0 B2.0 B1.0 B0.0 F0.1 F1.1 F2.1 B2.1 R2.1 B1.1 R1.1 B0.1 R0.1 U");
  });
}

TEST(Engine, GathersOneEventAhead) {
  on_ranks(2, [](const Mesh& mesh) {
    Fake fake(mesh, rows);
    fake.step();
    EXPECT_EQ(fake.schedule(), "G0 G1 F0.0 X0 G2 F1.0 X1 F2.0 G1 B2.0 R2.0 X2 G0 B1.0 R1.0 X1 B0.0 R0.0 X0 U");
    for (int step = 0; step < 2; ++step) {
      const int64_t gathers = fake.calls(Verb::all_gather);
      const int64_t reductions = fake.calls(Verb::reduce_scatter);
      fake.step();
      EXPECT_EQ(fake.calls(Verb::all_gather) - gathers, 5) << "u2 stays there between forward and backward";
      EXPECT_EQ(fake.calls(Verb::reduce_scatter) - reductions, 3);
    }
  });
}

TEST(Engine, AnEventOutOfOrderIsRefused) {
  on_ranks(1, [](const Mesh& mesh) {
    Fake fake(mesh, data);
    fake.step();
    fake.engine->begin_step();
    fake.model.order = {1, 0, 2};
    EXPECT_THAT(message_of<UsageError>([&] { fake.forward(0); }),
                AllOf(HasSubstr("F1.0 (unit 'u1'): comes out of order"), HasSubstr("expected F0.0")));
    fake.engine->begin_step();
    fake.model.order = {0, 1};
    const at::Tensor loss = fake.forward(0);
    EXPECT_THAT(message_of<UsageError>([&] { loss.backward(); }),
                AllOf(HasSubstr("B1.0 (unit 'u1'): comes out of order"), HasSubstr("expected F2.0")));
    fake.engine->begin_step();
    fake.model.order = {};
    fake.forward(0);
    EXPECT_THAT(message_of<UsageError>([&] { fake.engine->finish_step(); }), HasSubstr("was never reached"));
    fake.engine->begin_step();
    fake.forward(0).backward();
    EXPECT_THAT(message_of<UsageError>([&] { fake.forward(1); }), HasSubstr("F0.1 (unit 'u0'): comes out of order"));
    fake.step();
    EXPECT_TRUE(fake.model.unit(0).at("w").sharded().grad().defined()) << "after errors steps go on";
  });
}

TEST(Engine, DifferentRecordedOrdersAreAnErrorOnAllRanks) {
  std::vector<std::string> messages(3);
  on_ranks(3, [&](const Mesh& mesh) {
    Fake fake(mesh, data, [](Strategy& strategy) { strategy.find_unused_parameters = true; });
    if (mesh.rank() == 1) fake.model.order = {1, 0, 2};
    messages[static_cast<size_t>(mesh.rank())] = message_of<UsageError>([&] { fake.step(); });
  });
  EXPECT_THAT(messages, Each(AllOf(HasSubstr("order of units in the step"), HasSubstr("on rank 1"))));
}

TEST(Engine, StepsAndGradientsHaveTheirPlace) {
  on_ranks(1, [](const Mesh& mesh) {
    Fake fake(mesh, data);
    EXPECT_THAT(message_of<UsageError>([&] { fake.engine->finish_step(); }), HasSubstr("no step has begun"));
    EXPECT_THAT(message_of<UsageError>([&] { fake.engine->begin_step(0); }), HasSubstr("0 micro-batches"));
    EXPECT_THAT(message_of<UsageError>([&] { fake.forward(0).backward(); }),
                HasSubstr("a gradient arrives outside of a step"));
    EXPECT_NO_THROW(fake.step());
  });
}

/// Else the first step would decide for all others what begin_step(3) means.
TEST(Engine, AsManyBackwardsAsAnnouncedAreRecorded) {
  on_ranks(1, [](const Mesh& mesh) {
    Fake fake(mesh, data);
    fake.engine->begin_step(3);
    for (int m = 0; m < 2; ++m) fake.forward(m).backward();
    EXPECT_THAT(message_of<UsageError>([&] { fake.engine->finish_step(); }), HasSubstr("3"));
  });
}

/// As attention over pieces of a sequence does: the ranks of cp exchange activations during backward, and owe gradients
/// to each other. Whatever order reductions complete in, all of them must call the collectives of cp in one order.
TEST(Engine, TheModelMayUseTheAxesOnWhichGradientsAreReduced) {
  for (const Axes& axes : std::vector<Axes>{{{"dp", 2}, {"cp", 2}}, {{"cp", 2}, {"dp", 2}}}) {
    for (int repetition = 0; repetition < 20; ++repetition) {
      on_mesh(axes, [&](const Mesh& mesh) {
        const auto over_both = [](Strategy& strategy, Mesh& on) {
          for (const char* axis : {"dp", "cp"}) add_data_axis(strategy, on, axis);
        };
        Fake fake(mesh, over_both);
        for (size_t unit = 0; unit < 3; ++unit) {
          fake.model.unit(unit).in_backward = [&] {
            const at::Tensor sum = redistribute(at::ones({32}), {{"cp", Partial{}}}, mesh["cp"], Invariant{});
            EXPECT_TRUE(at::equal(sum, at::full({32}, 2.0F))) << "an activation";
          };
        }
        for (int step = 0; step < 3; ++step) fake.step();
      });
    }
  }
}

// ---- parameters without gradient ----

TEST(Engine, AUnitThatIsNotRunIsNamedOrCountsAsZero) {
  on_ranks(2, [](const Mesh& mesh) {
    Fake strict(mesh, data);
    strict.model.order = {0, 2};
    EXPECT_THAT(message_of<UsageError>([&] { strict.step(); }),
                AllOf(HasSubstr("[test] u1."), HasSubstr("got no gradient in this step")));
    Fake tolerant(mesh, data, [](Strategy& strategy) { strategy.find_unused_parameters = true; });
    tolerant.model.order = {0, 2};
    for (int step = 0; step < 3; ++step) {
      tolerant.step();
      EXPECT_EQ(tolerant.model.unit(1).at("w").sharded().grad().abs().max().item<double>(), 0);
      EXPECT_GT(tolerant.model.unit(0).at("w").sharded().grad().abs().max().item<double>(), 0);
    }
  });
}

TEST(Engine, AGradientOfAnEarlierStepIsNotKeptForAnUnusedUnit) {
  on_ranks(2, [](const Mesh& mesh) {
    Fake fake(mesh, data, [](Strategy& strategy) { strategy.find_unused_parameters = true; });
    for (int round = 0; round < 2; ++round) {
      fake.model.order = {};
      fake.step(2);
      EXPECT_GT(fake.model.unit(1).at("w").sharded().grad().abs().max().item<double>(), 0);
      fake.model.order = {0, 2};
      fake.step(1);
      EXPECT_EQ(fake.model.unit(1).at("w").sharded().grad().abs().max().item<double>(), 0) << "round " << round;
    }
  });
}

TEST(Engine, AFrozenUnitIsPassedAndOneAtTheStartEndsBackward) {
  on_ranks(2, [](const Mesh& mesh) {
    for (const size_t frozen : {0, 1}) {
      for (const LayOut& lay_out : {LayOut(data), LayOut(rows)}) {
        Fake fake(mesh, lay_out, {}, [&](Chain& model) {
          for (Parameter* parameter : model.unit(frozen).parameters()) parameter->set_requires_grad(false);
        });
        const at::Tensor before = fake.model.unit(frozen).at("w").sharded().clone();
        for (int step = 0; step < 2; ++step) fake.step();
        const std::string schedule = fake.schedule();
        EXPECT_THAT(schedule, ::testing::Not(HasSubstr("R" + std::to_string(frozen))));
        EXPECT_EQ(schedule.find("B0.0") == std::string::npos, frozen == 0);
        EXPECT_FALSE(fake.model.unit(frozen).at("w").sharded().grad().defined());
        EXPECT_TRUE(fake.model.unit(2).at("w").sharded().grad().defined());
        Sgd(fake.engine->state()).step(1);
        EXPECT_TRUE(same_bits(fake.model.unit(frozen).at("w").sharded(), before));
      }
    }
  });
}

// ---- gathered groups ----

std::string refusal_to_read(const at::Tensor& leaf) {
  return message_of<std::exception>([&] { (void)leaf.sum(); });
}

TEST(Engine, AGatheredParameterExistsOnlyForItsUnitAndStaysTheSameTensor) {
  on_ranks(2, [](const Mesh& mesh) {
    Fake fake(mesh, rows);
    const at::Tensor leaf = fake.model.unit(1).at("v").unsharded();
    std::vector<at::Tensor> seen;
    const auto note = [&] { seen.push_back(leaf.detach().clone()); };
    fake.model.unit(1).in_forward = fake.model.unit(1).in_backward = note;
    std::string in_the_first;
    fake.model.unit(0).in_forward = [&] { in_the_first = refusal_to_read(fake.model.unit(2).at("w").unsharded()); };
    for (int step = 0; step < 3; ++step) {
      const std::string told = refusal_to_read(leaf);
      EXPECT_THAT(told, AllOf(HasSubstr("u1.v: is read while it is sharded"), HasSubstr("unit 'u1' is not running")));
      seen.clear();
      fake.step();
      EXPECT_THAT(in_the_first, HasSubstr("u2.w: is read while it is sharded: unit 'u2' is not running"));
      ASSERT_EQ(seen.size(), 2U) << "in forward and backward";
      EXPECT_TRUE(same_bits(seen[0], seen[1]));
      EXPECT_EQ(seen[0].sizes(), at::IntArrayRef({2, 3}));
      const Parameter& parameter = fake.model.unit(1).at("v");
      EXPECT_TRUE(same_bits(piece_of(seen[0], parameter.sharded_layout(), mesh), parameter.sharded().detach()));
      EXPECT_TRUE(parameter.unsharded().is_same(leaf));
      fake.engine->state().values.pieces().front().memory.mul_(0.5);  // the next step gathers the changed shards
    }
  });
}

TEST(Engine, EvaluationGathersAndFrees) {
  on_ranks(2, [](const Mesh& mesh) {
    Fake fake(mesh, rows);
    Fake whole(mesh, data);
    const ForwardContext evaluate{.phase = Phase::evaluate};
    const auto compare = [&](const char* when) {
      EXPECT_TRUE(is_close(fake.forward(0, evaluate), whole.forward(0, evaluate))) << when;
      EXPECT_THAT(refusal_to_read(fake.model.unit(2).at("w").unsharded()), HasSubstr("u2.w: is read")) << when;
    };
    compare("before the first step");
    for (int step = 0; step < 3; ++step) {
      fake.step();
      whole.step();
      for (const Fake* one : {&fake, &whole}) Sgd(one->engine->state()).step(1e-3);
      compare("between steps");
    }
  });
}

/// A validation batch between two micro-batches: it is not part of the step.
TEST(Engine, EvaluationWithinAStepDoesNotDisturbIt) {
  on_ranks(2, [](const Mesh& mesh) {
    Fake fake(mesh, rows);
    Fake other(mesh, rows);
    for (int step = 0; step < 3; ++step) {
      other.step(2);
      fake.engine->begin_step(2);
      for (int m = 0; m < 2; ++m) {
        fake.forward(5, {.phase = Phase::evaluate});
        const at::Tensor loss = fake.forward(m);
        fake.forward(7, {.phase = Phase::evaluate});
        loss.backward();
      }
      fake.engine->finish_step();
      EXPECT_TRUE(same_bits(fake.engine->state().gradients.to_tensor(), other.engine->state().gradients.to_tensor()))
          << step;
    }
  });
}

/// A forward that throws leaves units running and unsharded parameters gathered. The next step must see nothing of it.
TEST(Engine, AfterAForwardThatThrewTheNextStepIsCorrect) {
  on_ranks(2, [](const Mesh& mesh) {
    Fake fake(mesh, rows);
    Fake other(mesh, rows);
    for (int step = 0; step < 3; ++step) {
      fake.engine->begin_step();
      fake.model.unit(1).in_forward = [] { throw DataError({.op = "test", .fact = "bad data"}); };
      EXPECT_THROW(fake.forward(0), DataError);
      fake.model.unit(1).in_forward = {};
      for (const Fake* one : {&fake, &other}) one->engine->state().values.pieces().front().memory.mul_(0.5);
      fake.step();
      other.step();
      EXPECT_TRUE(same_bits(fake.engine->state().gradients.to_tensor(), other.engine->state().gradients.to_tensor()))
          << step;
      fake.forward(0, {.phase = Phase::evaluate});
      EXPECT_THAT(refusal_to_read(fake.model.unit(2).at("w").unsharded()), HasSubstr("u2.w: is read")) << step;
    }
  });
}

/// What a forward that threw has gathered is not read after an update.
TEST(Engine, AnEvaluationThatThrewLeavesNothingGathered) {
  on_ranks(2, [](const Mesh& mesh) {
    Fake fake(mesh, rows);
    fake.step();
    Parameter& parameter = fake.model.unit(0).at("w");
    at::Tensor seen;
    bool throws = true;
    fake.model.unit(0).in_forward = [&] {
      seen = parameter.unsharded().detach().clone();
      if (throws) throw std::runtime_error("a user's mistake");
    };
    const at::NoGradGuard no_grad;
    EXPECT_THROW(fake.forward(0, {.phase = Phase::evaluate}), std::runtime_error);
    const at::Tensor before = seen;
    throws = false;
    for (const auto& piece : fake.engine->state().values.pieces()) piece.memory.mul_(0.5);
    fake.forward(0, {.phase = Phase::evaluate});
    EXPECT_TRUE(same_bits(seen, before * 0.5));
  });
}

TEST(Engine, ATableThatWasRefusedStaysRefused) {
  on_ranks(1, [](const Mesh& mesh) {
    const Fake fake(mesh, data, [](Strategy& strategy) {
      strategy.passes = [](int micros) { return std::vector<PassOrder>{forward_only(micros), accumulate(micros)}; };
    });
    for (int i = 0; i < 2; ++i) EXPECT_THROW(fake.engine->table(1), UsageError);
  });
}

/// torch::load and Module::to give a module's tensors other memory.
TEST(Engine, AParameterWithOtherMemoryIsNamed) {
  for (const LayOut& lay_out : {LayOut(data), LayOut(rows)}) {
    on_ranks(2, [&](const Mesh& mesh) {
      const Fake fake(mesh, lay_out);
      at::Tensor leaf = fake.model.unit(1).at("v").unsharded();
      leaf.set_data(at::ones({2, 3}, at::kDouble));
      EXPECT_THAT(message_of<UsageError>([&] { fake.engine->begin_step(); }),
                  AllOf(HasSubstr("v: has been given other memory"), HasSubstr("before it is wrapped")));
    });
  }
}

TEST(Engine, DifferentNumbersOfBackwardsAreAnErrorOnAllRanks) {
  on_ranks(2, [](const Mesh& mesh) {
    Fake fake(mesh, data);
    fake.engine->begin_step(1 + mesh.rank());
    fake.forward(0).backward();
    EXPECT_THAT(message_of<UsageError>([&] { fake.engine->finish_step(); }),
                HasSubstr("micro-batches of begin_step: is 1 on rank 0 and 2 on rank 1"));
  });
}

TEST(Engine, DifferentOptionsAreAnErrorOnAllRanks) {
  on_ranks(2, [](const Mesh& mesh) {
    Chain model(three_units());
    const auto told = [&](const Engine::Options& options) {
      return message_of<UsageError>([&] {
        Strategy strategy = whole_model(model, mesh);
        add_data_axis(strategy, mesh, "dp");
        const Engine engine(model, mesh, strategy, options);
      });
    };
    EXPECT_THAT(told({.initialise = mesh.rank() == 0}), HasSubstr("initialise: is true on rank 0 and false on rank 1"));
    EXPECT_THAT(told({.dtype = mesh.rank() == 0 ? at::kFloat : at::kDouble}), HasSubstr("dtype: is Float on rank 0"));
  });
}

/// On a world where every collective is complete at once: otherwise it depends on the clock how many are in flight.
TEST(Engine, AllocatesNoMoreMemoryAfterTheThirdStep) {
  Fake fake(Mesh::create(make_record_world(1, 3), {{"dp", 3}}), rows);
  std::vector<int64_t> bytes;
  for (int step = 0; step < 6; ++step) {
    fake.step(2);
    bytes.push_back(fake.engine->bytes_per_rank());
  }
  EXPECT_GT(bytes[2], bytes[0]) << "leaves and sums beside values and gradients; the recorded step returns its own";
  EXPECT_THAT(std::vector<int64_t>(bytes.begin() + 3, bytes.end()), Each(bytes[2]));
}

/// The sharded parameters may be changed by an optimizer of the library, by torch's, or by loading a checkpoint. Not
/// all of these increment the tensor's version.
TEST(Engine, Bf16ParametersAreRoundedFromTheShardedOnes) {
  using Change = std::function<void(Engine&)>;
  const std::map<std::string, Change> changes{
      {"Sgd", [](Engine& engine) { Sgd(engine.state()).step(0.01); }},
      {"AdamW", [](Engine& engine) { AdamW(engine.state()).step(0.01); }},
      {"torch::optim::SGD", [](Engine& engine) { torch::optim::SGD(engine.parameters(), 0.01).step(); }},
      {"a copy", [](Engine& engine) {
         const at::NoGradGuard no_grad;
         for (at::Tensor& parameter : engine.parameters()) parameter.copy_(parameter + 1);
       }}};
  for (const auto& [who, change] : changes) {
    for (const LayOut& lay_out : {LayOut(data), LayOut(rows)}) {
      on_ranks(2, [&, who = who, change = change](const Mesh& mesh) {
        Fake fake(
            mesh, lay_out, [](Strategy& strategy) { strategy.compute_dtype = at::kBFloat16; }, {}, at::kFloat);
        const Parameter& parameter = fake.model.unit(1).at("v");
        at::Tensor seen;
        fake.model.unit(1).in_forward = [&] { seen = parameter.unsharded().detach().clone(); };
        const auto compare = [&] {
          const at::Tensor rounded = parameter.sharded().detach().to(at::kBFloat16);
          EXPECT_TRUE(same_bits(piece_of(seen, parameter.sharded_layout(), mesh), rounded)) << who;
        };
        for (int step = 0; step < 3; ++step) {
          fake.step();
          compare();
          EXPECT_EQ(parameter.sharded().scalar_type(), at::kFloat);
          EXPECT_EQ(parameter.sharded().grad().scalar_type(), at::kFloat);
          change(*fake.engine);
          fake.forward(0, {.phase = Phase::evaluate});
          compare();
        }
      });
    }
  }
}

// ---- work that waits ----

/// y = x w; the gradient of w is accumulated later.
class Later final : public Module {
 public:
  std::vector<std::string>* order = nullptr;

 protected:
  Tensors forward(Tensors inputs, const ForwardContext&) override {
    const at::Tensor x = inputs.at(0).detach();
    const at::Tensor w = weight_.compute().detach();
    const at::Tensor y = at::mul(inputs.at(0).requires_grad() ? inputs[0] : inputs[0].detach().requires_grad_(), w);
    y.register_hook([this, x](const at::Tensor& gradient) {
      if (order != nullptr) order->push_back("backward of " + name());
      weight_.accumulate_grad_later([this, x, gradient = gradient.detach()] {
        if (order != nullptr) order->push_back("weight of " + name());
        weight_.accumulate_grad(gradient * x);
      });
    });
    return {y};
  }

 private:
  Parameter& weight_ = register_parameter("w", {.shape = {}, .init = {Init::Kind::normal, 1}});
};

class LaterChain final : public Module {
 public:
  LaterChain() {
    for (const char* name : {"u0", "u1", "u2"}) units_.push_back(&register_module<Later>(name));
  }
  std::vector<Module*> blocks() override { return units_; }
  void note(std::vector<std::string>* order) {
    for (Module* unit : units_) static_cast<Later*>(unit)->order = order;
  }

 protected:
  Tensors forward(Tensors inputs, const ForwardContext& context) override {
    inputs.resize(1);
    for (Module* unit : units_) inputs = unit->run(std::move(inputs), context);
    return inputs;
  }

 private:
  std::vector<Module*> units_;
};

TEST(Engine, DeferredWorkRunsBeforeItsReduction) {
  on_ranks(2, [](const Mesh& mesh) {
    LaterChain model;
    Strategy strategy = whole_model(model, mesh);
    add_data_axis(strategy, mesh, "dp");
    Engine engine(model, mesh, strategy, {.seed = 5, .dtype = at::kDouble});
    std::vector<double> w;
    for (const Parameter* parameter : model.parameters()) w.push_back(parameter->sharded().item<double>());
    for (int step = 0; step < 3; ++step) {
      engine.begin_step();
      model.run({at::full({}, mesh.rank() + 1.0, at::kDouble)}, {})[0].backward();
      engine.finish_step();
      for (size_t i = 0; i < 3; ++i) {  // the inputs of both ranks add up to 3
        const double want = 3 * w[(i + 1) % 3] * w[(i + 2) % 3];
        EXPECT_NEAR(model.parameters()[i]->sharded().grad().item<double>() / want, 1, 1e-12) << i;
      }
    }
  });
}

/// A table with W events decides when weight gradients are computed: a pipeline fills its bubbles with them.
TEST(Engine, WeightEventsSayWhenDeferredWorkRuns) {
  on_ranks(1, [](const Mesh& mesh) {
    LaterChain model;
    Strategy strategy = whole_model(model, mesh);
    strategy.passes = [](int num_micro_batches) {
      PassOrder order;
      for (int m = 0; m < num_micro_batches; ++m) {
        order.push_back({Pass::Kind::forward, m, 0});
        order.push_back({Pass::Kind::backward, m, 0});
        if (m > 0) order.push_back({Pass::Kind::weight, m - 1, 0});
      }
      order.push_back({Pass::Kind::weight, num_micro_batches - 1, 0});
      return std::vector<PassOrder>{order};
    };
    Engine engine(model, mesh, strategy, {.seed = 5, .dtype = at::kDouble});
    std::vector<std::string> order;
    model.note(&order);
    StageRunner runner(engine);
    const auto source = [&](int m) { return MicroBatch{.ids = at::full({}, m + 1.0, at::kDouble)}; };
    EXPECT_GT(std::abs(runner.run_step(2, source)), 0);
    const std::vector<std::string> backward{"backward of u2", "backward of u1", "backward of u0"};
    const std::vector<std::string> weight{"weight of u2", "weight of u1", "weight of u0"};
    std::vector<std::string> want = backward;
    for (const auto* part : {&backward, &weight, &weight}) want.insert(want.end(), part->begin(), part->end());
    EXPECT_EQ(order, want);
    const double w1 = model.parameters()[1]->sharded().item<double>();
    const double w2 = model.parameters()[2]->sharded().item<double>();
    EXPECT_NEAR(model.parameters()[0]->sharded().grad().item<double>() / (3 * w1 * w2), 1, 1e-12);
  });
}

// ---- one owner ----

TEST(Engine, ASecondEngineIsRefusedAndTheFirstContinues) {
  on_ranks(2, [](const Mesh& mesh) {
    Fake fake(mesh, data);
    fake.step();
    const at::Tensor before = fake.engine->state().gradients.to_tensor();
    Strategy again = whole_model(fake.model, mesh);
    EXPECT_THAT(message_of<UsageError>([&] { Engine(fake.model, fake.mesh, again); }),
                HasSubstr("its gradient hook is taken"));
    fake.engine->state().values.pieces().front().memory.mul_(0.5);
    EXPECT_TRUE(is_close(fake.model.unit(2).at("w").unsharded(),
                         fake.engine->state().layout.view(fake.engine->state().values, fake.model.unit(2).at("w"))))
        << "its parameters are still in its memory";
    fake.engine->state().values.pieces().front().memory.mul_(2);
    fake.step();
    EXPECT_TRUE(is_close(fake.engine->state().gradients.to_tensor(), before));
  });
}

TEST(Engine, LeavesNothingBehind) {
  on_ranks(2, [](const Mesh& mesh) {
    Chain model(three_units());
    model.materialise(mesh, {}, {});
    for (int round = 0; round < 2; ++round) {
      Strategy strategy = whole_model(model, mesh);
      add_data_axis(strategy, mesh, "dp");
      Engine engine(model, mesh, strategy);
      engine.begin_step();
      model.run({at::ones({})}, {})[0].backward();
      engine.finish_step();
    }
    for (Parameter* parameter : model.parameters()) parameter->sharded().mutable_grad() = at::Tensor();
    model.run({at::ones({})}, {})[0].backward();  // the memory of the parameters outlives the engine
    EXPECT_TRUE(model.unit(0).at("w").sharded().grad().defined());
  });
}

}  // namespace
}  // namespace caravan::testing::engine_test
