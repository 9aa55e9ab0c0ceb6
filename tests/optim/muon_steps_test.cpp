/// Muon over all layouts, against its formula in fp64 on whole matrices.

#include <gmock/gmock.h>
#include <map>
#include <mutex>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/record.h"
#include "caravan/optim/matrix_plan.h"
#include "caravan/optim/muon.h"
#include "caravan/optim/newton_schulz.h"
#include "tests/optim/matrices.h"

namespace caravan::testing::muon_steps_test {
namespace {

using namespace matrices;
using ::testing::HasSubstr;

constexpr double kLr = 0.1;
constexpr int kSteps = 3;

/// U S' V^T of a matrix by its own products, in fp64.
at::Tensor orthogonal(const at::Tensor& matrix, int steps = 5) {
  at::Tensor x = matrix / matrix.norm();
  for (int step = 0; step < steps; ++step) {
    const at::Tensor xxt = at::matmul(x, x.t());
    x = 3.4445 * x - 4.7750 * at::matmul(xxt, x) + 2.0315 * at::matmul(xxt, at::matmul(xxt, x));
  }
  return x;
}

/// One process in fp64, parameter by parameter.
struct Reference {
  MuonOptions options{};
  Tensors values{}, first{}, second{};

  void step(const Parameter& parameter, const at::Tensor& gradient, int number, double scale) {
    const std::string& name = parameter.name();
    at::Tensor& w = values.at(name);
    const at::Tensor g = gradient.to(at::kDouble) * scale;
    if (!first.contains(name)) first[name] = at::zeros_like(w), second[name] = at::zeros_like(w);
    at::Tensor &m = first[name], &v = second[name];
    const double decay = parameter.spec().decays ? 1 - kLr * options.adamw.weight_decay : 1;
    if (w.dim() == 2 && parameter.spec().matrices > 0) {
      m = options.momentum * m + g;
      std::vector<at::Tensor> updates;
      for (const at::Tensor& one : (g + options.momentum * m).chunk(parameter.spec().matrices)) {
        const double longer = static_cast<double>(std::max(one.size(0), one.size(1)));
        updates.push_back(0.2 * std::sqrt(longer) * orthogonal(one));
      }
      w = decay * w - kLr * at::cat(updates);
      return;
    }
    const auto& [beta1, beta2, epsilon, weight_decay] = options.adamw;
    m = beta1 * m + (1 - beta1) * g;
    v = beta2 * v + (1 - beta2) * g * g;
    const at::Tensor mean = m / (1 - std::pow(beta1, number)), square = v / (1 - std::pow(beta2, number));
    w = decay * w - kLr * mean / (square.sqrt() + epsilon);
  }
};

/// Trains for some steps on each rank, and compares the whole parameters with the reference.
void expect_reference(Engine& engine, double tolerance = 1e-5, double scale = 0.7) {
  const MuonOptions options{.momentum = 0.9, .adamw = {.beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.2}};
  Reference reference{.options = options, .values = whole_values(engine)};
  Muon muon(engine.state(), options);
  for (int step = 0; step < kSteps; ++step) {
    set_gradients(engine, step);
    const at::Tensor gradients = engine.state().gradients.to_tensor();
    muon.step(kLr, scale);
    EXPECT_TRUE(at::equal(engine.state().gradients.to_tensor(), gradients)) << "gradients are read, never written";
    for (const Slot& slot : engine.state().layout.slots()) {
      const at::Tensor gradient = gradient_of(*slot.parameter, step).to(engine.state().gradients.scalar_type());
      if (slot.parameter->requires_grad()) reference.step(*slot.parameter, gradient, step + 1, scale);
    }
  }
  for (const auto& [name, value] : whole_values(engine)) {
    EXPECT_TRUE(is_close(value, reference.values.at(name), tolerance))
        << name << " " << engine.mesh().where() << ": "
        << (value - reference.values.at(name)).abs().max().item<double>();
  }
}

TEST(NewtonSchulz, MatchesItsFormulaForAllShapes) {
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{5, 7}, {33, 3}, {3, 33}, {1, 9}, {9, 1}, {1, 1}, {16, 16}, {40, 24}}) {
    for (const int64_t steps : {1, 4, 5}) {
      const at::Tensor given = random_tensor(shape, 3) * 100;
      at::Tensor x = given.to(at::kFloat).contiguous(), exact = given.clone();
      newton_schulz(x, steps);
      newton_schulz(exact, steps);
      const at::Tensor want = orthogonal(given, static_cast<int>(steps));
      EXPECT_TRUE(is_close(exact, want, 1e-12)) << shape << steps;
      EXPECT_TRUE(is_close(x.to(at::kDouble), want, 1e-5)) << shape << steps;
    }
  }
  const at::Tensor zeros = at::zeros({4, 6});
  newton_schulz(zeros, 5);
  EXPECT_EQ(zeros.abs().max().item<float>(), 0);
}

TEST(NewtonSchulz, BringsSingularValuesNearOne) {
  at::Tensor x = random_tensor({24, 40}, 8).to(at::kFloat).contiguous();
  newton_schulz(x, 5);
  const at::Tensor values = at::linalg_svdvals(x);
  EXPECT_GT(values.min().item<float>(), 0.5);
  EXPECT_LT(values.max().item<float>(), 1.3);
}

TEST(MuonSteps, MatchTheReferenceForOddShapesAndMoreRanksThanRows) {
  for (const auto& [name, arrange] : data_parallel()) {
    for (const int ranks : {1, 2, 3, 4}) {
      SCOPED_TRACE(name + " on " + std::to_string(ranks));
      on_mesh({{"dp", ranks}}, [&, &of = arrange](const Mesh& mesh) {
        Chain model({odd_shapes(), {{"fixed", {4, 4}}, {"w", {8, 6}}}});
        model.unit(1).at("fixed").set_requires_grad(false);
        Engine engine(model, mesh, of(model, mesh), {.seed = 4});
        expect_reference(engine);
      });
    }
  }
}

/// A matrix smaller than the number of ranks, alone: most ranks hold nothing of it, and own nothing.
TEST(MuonSteps, MatchTheReferenceForOneSmallMatrix) {
  for (const auto& [name, arrange] : data_parallel()) {
    SCOPED_TRACE(name);
    on_mesh({{"dp", 4}}, [&, &of = arrange](const Mesh& mesh) {
      Parameters model{{"w", {2, 5}}};
      Engine engine(model, mesh, of(model, mesh), {.seed = 4});
      expect_reference(engine);
    });
  }
}

/// In bf16 gradients are kept rounded, and copies of the values are written with them.
TEST(MuonSteps, ReadRoundedGradientsAndWriteCopies) {
  for (const auto& [name, arrange] : data_parallel()) {
    SCOPED_TRACE(name);
    on_mesh({{"dp", 2}}, [&, &of = arrange](const Mesh& mesh) {
      Chain model({odd_shapes()});
      Strategy strategy = of(model, mesh);
      strategy.compute_dtype = strategy.gradient_dtype = at::kBFloat16;
      Engine engine(model, mesh, strategy, {.seed = 4});
      expect_reference(engine);
      const FlatState& state = engine.state();
      for (const Slot& slot : state.layout.slots()) {
        if (!state.copies.has(slot.sharded_offset) || slot.sharded_count() == 0) continue;
        const at::Tensor copy = state.layout.view(state.copies, *slot.parameter);
        EXPECT_TRUE(at::equal(copy, slot.parameter->sharded().detach().to(copy.scalar_type())));
      }
      EXPECT_TRUE(!state.copies.defined() || state.has_copied(/*is_trained=*/true));
    });
  }
}

/// Fused projections, blocks of rows that tensor-parallel ranks cut apart, experts, stages.
TEST(MuonSteps, MatchTheReferenceForLayersSplitOverRanks) {
  for (const Layers& of : layouts()) {
    for (const Architecture& kind : {Architecture::gpt2(), Architecture::llama()}) {
      SCOPED_TRACE(of.name + " of " + kind.name);
      with_layers(of, config_of(of, kind), [](Engine& engine) { expect_reference(engine); });
    }
  }
}

/// Embeddings, output weights and norms are no matrices; each expert is one.
TEST(MuonSteps, TellMatricesFromTables) {
  with_layers({"experts", {{"dp", 1}}, {}, 4}, config_of({.name = "", .axes = {}, .experts = 4}, Architecture::llama()),
              [](Engine& engine) {
                std::vector<std::string> matrices;
                const MatrixRanks ranks(engine.mesh(), {});
                const MatrixPlan plan(engine.state().layout, ranks);
                std::map<std::string, int> count;
                for (const WholeMatrix& matrix : plan.matrices())
                  ++count[engine.state().layout.slots()[matrix.slot].parameter->name()];
                for (const auto& [name, number] : count) {
                  EXPECT_EQ(number, name.find(".gate") != name.npos || name.find(".up") != name.npos ||
                                            name.find(".down") != name.npos
                                        ? 4
                                        : 1)
                      << name;
                  EXPECT_EQ(name.find("embed"), name.npos) << name;
                  EXPECT_EQ(name.find("head"), name.npos) << name;
                }
                EXPECT_GT(count.size(), 10U);
              });
}

/// The next largest goes to the rank with the least work; ranks are never more than one matrix apart.
TEST(MatrixPlan, BalancesTheWork) {
  for (const char* technique : {"ddp", "zero3"}) {
    on_mesh({{"dp", 3}}, [&](const Mesh& mesh) {
      Chain model(
          {{{"a", {64, 64}}, {"b", {64, 32}}, {"c", {32, 32}}, {"d", {48, 16}}, {"e", {96, 8}}, {"f", {64, 64}}},
           {{"g", {64, 64}}, {"h", {64, 32}}, {"i", {32, 32}}, {"j", {48, 16}}, {"k", {96, 8}}, {"l", {64, 64}}}});
      Engine engine(model, mesh, data_parallel().at(technique)(model, mesh), {.seed = 4});
      const MatrixRanks ranks(mesh, {});
      const MatrixPlan plan(engine.state().layout, ranks);
      std::map<int, double> work;
      std::vector<size_t> seen;
      for (const WholeMatrix& matrix : plan.matrices())
        work[matrix.owner] += newton_schulz_flops(matrix.rows, matrix.columns);
      for (const MatrixPlan::Round& round : plan.rounds()) {
        std::map<int, int64_t> held;
        for (const size_t i : round.matrices) {
          seen.push_back(i);
          held[plan.matrices()[i].owner] += plan.matrices()[i].count();
        }
        for (const auto& [owner, count] : held) EXPECT_LE(count, plan.largest());
      }
      std::ranges::sort(seen);
      EXPECT_EQ(seen.size(), 12U);
      EXPECT_EQ(std::ranges::adjacent_find(seen), seen.end());
      ASSERT_EQ(work.size(), 3U);
      if (std::string(technique) == "ddp") {
        EXPECT_LE(work[0], work[2] + newton_schulz_flops(64, 64));
        EXPECT_LE(work[2], work[0] + newton_schulz_flops(64, 64));
      }
    });
  }
}

/// A rehearsal on meta tensors sends the same bytes and needs the same memory; a rank never has more than one whole
/// matrix beside what Newton-Schulz needs for it, or sends and receives one.
TEST(MuonSteps, SendAndHoldWhatARehearsalSays) {
  for (const Layers& of : layouts()) {
    SCOPED_TRACE(of.name);
    ModelConfig config = config_of(of, Architecture::llama());
    config.width = 64;
    std::map<int, Measured> real;
    std::mutex mutex;
    int64_t largest = 0;
    with_layers(of, config, [&](Engine& engine) {
      const MatrixPlan plan(engine.state().layout, MatrixRanks(engine.mesh(), {engine.strategy().pipeline_axis}));
      Muon muon(engine.state());
      const Measured own = measured(muon, engine.mesh(), kLr);
      const std::lock_guard lock(mutex);
      real[engine.mesh().rank()] = own;
      largest = std::max(largest, plan.largest());
    });
    int ranks = 1;
    for (const auto& [name, size] : of.axes) ranks *= size;
    for (int rank = 0; rank < ranks; ++rank) {
      Mesh mesh = Mesh::create(make_record_world(rank, ranks), of.axes);
      Model model(config);
      StrategyChoice choice = of.choice;
      choice.sequences = 4;
      Engine engine(model, mesh, make_strategy(choice, model, mesh), {.seed = 5, .device = at::kMeta});
      Muon muon(engine.state());
      const Measured meta = measured(muon, engine.mesh(), kLr);
      EXPECT_EQ(real.at(rank).sent, meta.sent) << rank;
      EXPECT_EQ(real.at(rank).peak, meta.peak) << rank;
      EXPECT_EQ(real.at(rank).held, 0) << rank;
      EXPECT_EQ(meta.sent > 0, ranks > 1 && of.name != "replicas" && of.name != "pp") << rank;
      // A matrix, another one, and two of its smaller side.
      constexpr int64_t kSmall = 1024;
      EXPECT_LE(meta.peak, 4 * 4 * largest + kSmall) << rank;
    }
  }
}

/// Each rank sends its matrices to the others: n-1 times.
TEST(MuonSteps, OfCopiesSendEachMatrixOnceToEachRank) {
  on_mesh({{"dp", 3}}, [&](const Mesh& mesh) {
    Chain model({{{"a", {6, 8}}, {"b", {4, 8}}, {"c", {4, 4}}, {"bias", {9}, false}}});
    Engine engine(model, mesh, ddp(model, mesh, {}), {.seed = 4});
    Muon muon(engine.state());
    const Measured own = measured(muon, mesh, kLr);
    at::Tensor sum = at::full({1}, own.sent, at::kLong);
    all_reduce_async(mesh.world(), sum, sum, ReduceOp::sum, "sent").wait();
    EXPECT_EQ(sum.item<int64_t>(), 2 * 4 * (48 + 32 + 16));
  });
}

/// A checkpoint of one layout continues on any other as the run that was not interrupted.
TEST(MuonSteps, ContinueOnAnotherLayout) {
  const auto steps = [](Engine& engine, Muon& muon, int begin, int end) {
    for (int step = begin; step < end; ++step) {
      set_gradients(engine, step);
      muon.step(kLr);
    }
  };
  const Layers one{"one", {{"dp", 1}}, {}, 4};
  const ModelConfig config = config_of(one, Architecture::llama());
  Tensors want;
  with_layers(one, config, [&](Engine& engine) {
    Muon muon(engine.state());
    steps(engine, muon, 0, 4);
    want = whole_values(engine);
  });
  const std::vector<Layers> others{
      {"zero3", {{"dp", 3}}, {.data_parallel = shards("zero3")}, 4},
      {"ddp", {{"dp", 2}}, {}, 4},
      {"zero1 x tp", {{"dp", 2}, {"tp", 2}}, {.data_parallel = shards("zero1"), .tensor_parallel = tensor_of(2)}, 4},
      {"pp", {{"dp", 1}, {"pp", 2}}, {.pipeline = pipeline_of("1f1b", 2)}, 4}};
  for (const Layers& before : others) {
    const TemporaryFolder folder;
    with_layers(before, config, [&](Engine& engine) {
      Muon muon(engine.state());
      steps(engine, muon, 0, 2);
      save(engine, muon, folder.path());
    });
    for (const Layers& after : others) {
      SCOPED_TRACE(before.name + ", then " + after.name);
      with_layers(after, config, [&](Engine& engine) {
        Muon muon(engine.state());
        load(engine, muon, folder.path());
        steps(engine, muon, 2, 4);
        for (const auto& [name, value] : whole_values(engine))
          EXPECT_TRUE(is_close(value, want.at(name), 1e-5)) << name;
      });
    }
  }
}

/// One moment of matrices, two of the rest; a checkpoint has no others.
TEST(MuonSteps, KeepOneMomentOfMatrices) {
  on_mesh({{"dp", 1}}, [&](const Mesh& mesh) {
    Parameters model{{"w", {32, 32}}, {"bias", {64}, false}};
    Engine engine(model, mesh, whole_model(model, mesh), {.seed = 4});
    Muon muon(engine.state());
    std::vector<std::string> names;
    muon.walk([&](const StatePiece& piece) { names.push_back(piece.name); });
    EXPECT_THAT(names, ::testing::UnorderedElementsAre("optimizer.momentum.w", "optimizer.exp_avg.bias",
                                                       "optimizer.exp_avg_sq.bias"));
    TrainingState state;
    state.add(muon);
    EXPECT_EQ(state.bytes().at(StatePiece::Kind::moment), 4 * (32 * 32 + 2 * 64));
  });
}

TEST(MuonSteps, RefuseWhatTheyCannotDo) {
  Parameters model{{"w", {4, 4}}};
  const Mesh mesh = Mesh::create(make_record_world(0, 1), {});
  Engine engine(model, mesh, whole_model(model, mesh), {.seed = 4});
  EXPECT_THAT(message_of<UsageError>([&] { Muon(engine.state(), {.momentum = 1}); }),
              HasSubstr("momentum: 1 is outside [0, 1)"));
  EXPECT_THAT(message_of<UsageError>([&] { Muon(engine.state(), {.newton_schulz_steps = 0}); }),
              HasSubstr("newton_schulz_steps: 0 is outside"));
  EXPECT_THAT(message_of<UsageError>([&] { Muon(engine.state(), {.adamw = {.beta1 = 1}}); }), HasSubstr("beta1"));
  Muon muon(engine.state());
  EXPECT_THAT(message_of<UsageError>([&] { muon.step(engine.state().layout.buckets().front(), 1, kLr); }),
              HasSubstr("needs whole matrices"));
}

}  // namespace
}  // namespace caravan::testing::muon_steps_test
