/// Adafactor over all layouts, against its formula in fp64 on whole parameters.

#include <gmock/gmock.h>
#include <map>
#include <memory>
#include <mutex>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/record.h"
#include "caravan/comm/tensor.h"
#include "caravan/optim/adafactor.h"
#include "caravan/optim/make_optimizer.h"
#include "tests/optim/matrices.h"

namespace caravan::testing::adafactor_steps_test {
namespace {

using namespace matrices;
using ::testing::HasSubstr;

constexpr double kLr = 0.1;
constexpr int kSteps = 3;
constexpr double kScale = 0.7;

double rms(const at::Tensor& x) { return std::sqrt(x.square().mean().item<double>()); }

/// The first row of several is zero, as that of a token that no batch has.
at::Tensor sparse_gradient_of(const Parameter& parameter, int step) {
  const at::Tensor gradient = gradient_of(parameter, step);
  if (gradient.dim() == 2 && gradient.size(0) > 1) gradient[0].zero_();
  return gradient;
}

/// One process in fp64, parameter by parameter: Adafactor of Hugging Face's transformers, as tests/manual/
/// check_adafactor.py compares it.
struct Reference {
  AdafactorOptions options{};
  Tensors values{}, rows{}, columns{}, squares{}, updates{};

  void step(const Parameter& parameter, const at::Tensor& gradient, int number) {
    const std::string& name = parameter.name();
    at::Tensor& w = values.at(name);
    const at::Tensor g = gradient.to(at::kDouble) * kScale;
    const double beta = 1 - std::pow(number, -options.decay_exponent);
    at::Tensor u;
    if (w.dim() == 2) {
      const int64_t count = std::max<int64_t>(parameter.spec().matrices, 1);
      const at::Tensor each = g.view({count, -1, g.size(1)}), square = each.square() + options.epsilon1;
      if (number == 1) rows[name] = at::zeros_like(square.mean(-1)), columns[name] = at::zeros_like(square.mean(-2));
      at::Tensor &row = rows[name], &column = columns[name];
      row = beta * row + (1 - beta) * square.mean(-1);
      column = beta * column + (1 - beta) * square.mean(-2);
      const at::Tensor unit = row.mean(-1, /*keepdim=*/true);
      u = (each * (row / unit).rsqrt().unsqueeze(-1) * column.rsqrt().unsqueeze(-2)).view(g.sizes());
    } else {
      if (number == 1) squares[name] = at::zeros_like(w);
      squares[name] = beta * squares[name] + (1 - beta) * (g.square() + options.epsilon1);
      u = g * squares[name].rsqrt();
    }
    u = u / std::max(1.0, rms(u) / options.clip_threshold);
    const double lr = options.scale_by_parameter ? kLr * std::max(1e-3, rms(w)) : kLr;
    u = u * lr;
    if (options.momentum > 0) {
      if (number == 1) updates[name] = at::zeros_like(w);
      u = updates[name] = options.momentum * updates[name] + (1 - options.momentum) * u;
    }
    w = (parameter.spec().decays ? 1 - lr * options.weight_decay : 1) * w - u;
  }
};

constexpr AdafactorOptions kOptions{.weight_decay = 0.2};

/// Trains for some steps on each rank, and compares the whole parameters with the reference.
void expect_reference(Engine& engine, const AdafactorOptions& options = kOptions) {
  Reference reference{.options = options, .values = whole_values(engine)};
  Adafactor adafactor(engine.state(), options);
  for (int step = 0; step < kSteps; ++step) {
    set_gradients(engine, step, sparse_gradient_of);
    const at::Tensor gradients = engine.state().gradients.to_tensor();
    adafactor.step(kLr, kScale);
    EXPECT_TRUE(at::equal(engine.state().gradients.to_tensor(), gradients)) << "gradients are read, never written";
    for (const Slot& slot : engine.state().layout.slots()) {
      const at::Tensor gradient = sparse_gradient_of(*slot.parameter, step).to(engine.state().gradients.scalar_type());
      if (slot.parameter->requires_grad()) reference.step(*slot.parameter, gradient, step + 1);
    }
  }
  for (const auto& [name, value] : whole_values(engine)) {
    EXPECT_TRUE(is_close(value, reference.values.at(name), 1e-5))
        << name << " " << engine.mesh().where() << ": "
        << (value - reference.values.at(name)).abs().max().item<double>();
  }
}

/// Options that all change a result.
std::vector<AdafactorOptions> variants() {
  return {kOptions,
          {.weight_decay = 0},
          {.decay_exponent = 0.5},
          {.epsilon1 = 1e-2, .clip_threshold = 0.5},
          {.clip_threshold = 0.5},
          {.clip_threshold = 100, .momentum = 0.9},
          {.momentum = 0.5, .weight_decay = 0.2, .scale_by_parameter = true}};
}

TEST(AdafactorSteps, MatchTheReferenceForOddShapesAndMoreRanksThanRows) {
  for (const auto& [name, arrange] : data_parallel()) {
    for (const int ranks : {1, 2, 3, 4}) {
      SCOPED_TRACE(name + " on " + std::to_string(ranks));
      on_mesh({{"dp", ranks}}, [&, &of = arrange](const Mesh& mesh) {
        for (const AdafactorOptions& options : variants()) {
          Chain model({odd_shapes(), {{"fixed", {4, 4}}, {"w", {8, 6}}}});
          model.unit(1).at("fixed").set_requires_grad(false);
          Engine engine(model, mesh, of(model, mesh), {.seed = 4});
          expect_reference(engine, options);
        }
      });
    }
  }
}

/// A matrix smaller than the number of ranks, alone: most ranks hold nothing of it.
TEST(AdafactorSteps, MatchTheReferenceForOneSmallMatrix) {
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
TEST(AdafactorSteps, ReadRoundedGradientsAndWriteCopies) {
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

/// Fused projections, blocks of rows that tensor-parallel ranks cut apart, experts, tables, stages.
TEST(AdafactorSteps, MatchTheReferenceForLayersSplitOverRanks) {
  for (const Layers& of : layouts()) {
    for (const Architecture& kind : {Architecture::gpt2(), Architecture::llama()}) {
      SCOPED_TRACE(of.name + " of " + kind.name);
      ModelConfig config = config_of(of, kind);
      config.vocabulary = 25;  // no multiple of the ranks that cut it
      with_layers(of, config, [](Engine& engine) { expect_reference(engine); });
    }
  }
}

/// An all-reduce of the sums of rows and columns, and one of a number for each parameter.
TEST(AdafactorSteps, SendTheSumsOfRowsAndColumns) {
  for (const auto& [name, arrange] : data_parallel()) {
    SCOPED_TRACE(name);
    on_mesh({{"dp", 3}}, [&, &of = arrange](const Mesh& mesh) {
      Chain model({{{"a", {6, 8}}, {"b", {4, 8}}, {"c", {4, 4}}, {"bias", {9}, false}}});
      Engine engine(model, mesh, of(model, mesh), {.seed = 4});
      Adafactor adafactor(engine.state());
      const Measured own = measured(adafactor, mesh, kLr);
      const int64_t before = mesh.bytes_sent();
      for (const int64_t count : {6 + 8 + 4 + 8 + 4 + 4, 4}) {
        const at::Tensor numbers = at::zeros({count});
        all_reduce_async(mesh.world(), numbers, numbers, ReduceOp::sum, "numbers").wait();
      }
      EXPECT_EQ(own.sent, mesh.bytes_sent() - before);
    });
  }
}

/// A rehearsal on meta tensors sends the same bytes and needs the same memory: vectors, not matrices.
TEST(AdafactorSteps, SendAndHoldWhatARehearsalSays) {
  for (const Layers& of : layouts()) {
    SCOPED_TRACE(of.name);
    ModelConfig config = config_of(of, Architecture::llama());
    config.width = 48;
    std::map<int, Measured> real;
    std::mutex mutex;
    with_layers(of, config, [&](Engine& engine) {
      Adafactor adafactor(engine.state());
      const Measured own = measured(adafactor, engine.mesh(), kLr);
      const std::lock_guard lock(mutex);
      real[engine.mesh().rank()] = own;
    });
    int ranks = 1;
    for (const auto& [name, size] : of.axes) ranks *= size;
    for (int rank = 0; rank < ranks; ++rank) {
      Mesh mesh = Mesh::create(make_record_world(rank, ranks), of.axes);
      Model model(config);
      StrategyChoice choice = of.choice;
      choice.sequences = 4;
      Engine engine(model, mesh, make_strategy(choice, model, mesh), {.seed = 5, .device = at::kMeta});
      Adafactor adafactor(engine.state());
      const Measured meta = measured(adafactor, engine.mesh(), kLr);
      EXPECT_EQ(real.at(rank).sent, meta.sent) << rank;
      EXPECT_EQ(real.at(rank).peak, meta.peak) << rank;
      EXPECT_EQ(real.at(rank).held, 0) << rank;
      EXPECT_EQ(meta.sent > 0, ranks > 1 && of.name != "pp") << rank;
      TrainingState state;
      state.add(adafactor);
      EXPECT_LE(meta.peak, state.bytes().at(StatePiece::Kind::moment) + 1024) << rank;
    }
  }
}

/// A checkpoint of one layout continues on any other as the run that was not interrupted.
TEST(AdafactorSteps, ContinueOnAnotherLayout) {
  const AdafactorOptions options{.momentum = 0.5};
  const auto steps = [](Engine& engine, Adafactor& adafactor, int begin, int end) {
    for (int step = begin; step < end; ++step) {
      set_gradients(engine, step);
      adafactor.step(kLr);
    }
  };
  const Layers one{"one", {{"dp", 1}}, {}, 4};
  const ModelConfig config = config_of(one, Architecture::llama());
  Tensors want;
  with_layers(one, config, [&](Engine& engine) {
    Adafactor adafactor(engine.state(), options);
    steps(engine, adafactor, 0, 4);
    want = whole_values(engine);
  });
  const std::vector<Layers> others{
      {"zero3", {{"dp", 3}}, {.data_parallel = shards("zero3")}, 4},
      {"ddp", {{"dp", 2}}, {}, 4},
      {"diloco", {{"dp", 2}}, {.data_parallel = technique_of("diloco")}, 4},
      {"zero1 x tp", {{"dp", 2}, {"tp", 2}}, {.data_parallel = shards("zero1"), .tensor_parallel = tensor_of(2)}, 4},
      {"pp", {{"dp", 1}, {"pp", 2}}, {.pipeline = pipeline_of("1f1b", 2)}, 4},
      {"pp x zero3",
       {{"dp", 2}, {"pp", 2}},
       {.data_parallel = shards("zero3"), .pipeline = pipeline_of("1f1b", 2)},
       4}};
  for (const Layers& before : others) {
    const TemporaryFolder folder;
    with_layers(before, config, [&](Engine& engine) {
      Adafactor adafactor(engine.state(), options);
      steps(engine, adafactor, 0, 2);
      save(engine, adafactor, folder.path());
    });
    const CheckpointReader reader(folder.path() / "step_000002");
    const auto& tensors = reader.manifest().tensors;
    std::vector<int64_t> router{4}, experts{4, tensors.at("blocks.0.mlp.experts.down").shape[0] / 4};
    if (before.name == "diloco") router.insert(router.begin(), 2), experts.insert(experts.begin(), 2);
    EXPECT_EQ(tensors.at("optimizer.exp_avg_sq_row.blocks.0.mlp.router.weight").shape, router) << before.name;
    EXPECT_EQ(tensors.at("optimizer.exp_avg_sq_row.blocks.0.mlp.experts.down").shape, experts) << before.name;
    for (const Layers& after : others) {
      SCOPED_TRACE(before.name + ", then " + after.name);
      with_layers(after, config, [&](Engine& engine) {
        Adafactor adafactor(engine.state(), options);
        load(engine, adafactor, folder.path());
        steps(engine, adafactor, 2, 4);
        for (const auto& [name, value] : whole_values(engine))
          EXPECT_TRUE(is_close(value, want.at(name), 1e-5)) << name;
      });
    }
  }
}

/// Keys of a recipe are the options.
TEST(AdafactorSteps, AreThoseOfTheKeys) {
  needs({"adafactor"});
  const auto values_of = [](const std::function<std::unique_ptr<Optimizer>(FlatState&)>& make) {
    Parameters model{{"w", {9, 7}}, {"v", {33}}};
    const Mesh mesh = Mesh::create(make_record_world(0, 1), {});
    Engine engine(model, mesh, whole_model(model, mesh), {.seed = 4});
    const std::unique_ptr<Optimizer> optimizer = make(engine.state());
    for (int step = 0; step < kSteps; ++step) {
      set_gradients(engine, step);
      optimizer->step(kLr);
    }
    return engine.state().values.to_tensor().clone();
  };
  std::vector<at::Tensor> seen;
  for (const AdafactorOptions& options : variants()) {
    const Setting setting("optimizer", "adafactor",
                          {{"decay_exponent", options.decay_exponent},
                           {"epsilon1", options.epsilon1},
                           {"clip_threshold", options.clip_threshold},
                           {"update_momentum", options.momentum},
                           {"weight_decay", options.weight_decay},
                           {"scale_by_parameter", options.scale_by_parameter}});
    seen.push_back(values_of([&](FlatState& state) { return make_optimizer(setting, state); }));
    const at::Tensor want = values_of([&](FlatState& state) { return std::make_unique<Adafactor>(state, options); });
    EXPECT_TRUE(at::equal(seen.back(), want)) << seen.size();
    for (size_t i = 0; i + 1 < seen.size(); ++i) EXPECT_FALSE(at::equal(seen[i], want)) << i;
  }
}

/// The bits of a step do not depend on the number of threads.
TEST(AdafactorSteps, HaveTheSameBitsOnAnyNumberOfThreads) {
  const auto values_on = [](int threads) {
    at::Tensor values;
    on_mesh({{"dp", 1}}, [&](const Mesh& mesh) {
      at::set_num_threads(threads);
      Parameters model{{"w", {300, 517}}, {"v", {100'001}}};
      Engine engine(model, mesh, whole_model(model, mesh), {.seed = 4});
      Adafactor adafactor(engine.state(), {.scale_by_parameter = true});
      for (int step = 0; step < 2; ++step) {
        set_gradients(engine, step);
        adafactor.step(kLr);
      }
      values = engine.state().values.to_tensor().clone();
      at::set_num_threads(1);
    });
    return values;
  };
  const at::Tensor want = values_on(1);
  for (const int threads : {2, 3, 5}) EXPECT_TRUE(at::equal(values_on(threads), want)) << threads;
}

/// Two vectors of a matrix, a moment for each element of the rest.
TEST(AdafactorSteps, KeepRowsAndColumnsOfMatrices) {
  on_mesh({{"dp", 1}}, [&](const Mesh& mesh) {
    Parameters model{{"w", {32, 64}}, {"bias", {64}, false}};
    Engine engine(model, mesh, whole_model(model, mesh), {.seed = 4});
    const auto names_of = [](Adafactor& adafactor) {
      std::vector<std::string> names;
      adafactor.walk([&](const StatePiece& piece) { names.push_back(piece.name); });
      return names;
    };
    const std::vector<std::string> least{"optimizer.exp_avg_sq.bias", "optimizer.exp_avg_sq_row.w",
                                         "optimizer.exp_avg_sq_col.w"};
    Adafactor adafactor(engine.state());
    EXPECT_THAT(names_of(adafactor), ::testing::UnorderedElementsAreArray(least));
    TrainingState state;
    state.add(adafactor);
    EXPECT_EQ(state.bytes().at(StatePiece::Kind::moment), 4 * (32 + 64 + 64));
    Adafactor with_momentum(engine.state(), {.momentum = 0.9});
    std::vector<std::string> more = least;
    more.insert(more.end(), {"optimizer.exp_avg.w", "optimizer.exp_avg.bias"});
    EXPECT_THAT(names_of(with_momentum), ::testing::UnorderedElementsAreArray(more));
  });
}

TEST(AdafactorSteps, RefuseWhatTheyCannotDo) {
  Parameters model{{"w", {4, 4}}};
  const Mesh mesh = Mesh::create(make_record_world(0, 1), {});
  Engine engine(model, mesh, whole_model(model, mesh), {.seed = 4});
  const auto refused = [&](const AdafactorOptions& options) {
    return message_of<UsageError>([&] { Adafactor(engine.state(), options); });
  };
  EXPECT_THAT(refused({.decay_exponent = 1.5}), HasSubstr("decay_exponent: 1.5 is outside [0, 1]"));
  EXPECT_THAT(refused({.epsilon1 = 0}), HasSubstr("epsilon1: 0 is outside"));
  EXPECT_THAT(refused({.clip_threshold = 0}), HasSubstr("clip_threshold: 0 is outside"));
  EXPECT_THAT(refused({.momentum = 1}), HasSubstr("momentum: 1 is outside [0, 1)"));
  EXPECT_THAT(refused({.weight_decay = -1}), HasSubstr("weight_decay"));
  Adafactor adafactor(engine.state());
  EXPECT_THAT(message_of<UsageError>([&] { adafactor.step(engine.state().layout.buckets().front(), 1, kLr); }),
              HasSubstr("needs sums over whole rows and columns"));
}

}  // namespace
}  // namespace caravan::testing::adafactor_steps_test
