/// PipeDream and PipeDream-2BW against a serial simulation, bit by bit: one process keeps all versions of the weights
/// and gives each stage of a step the version that it would have.

#include <gmock/gmock.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/models/model.h"
#include "caravan/optim/optimizer.h"
#include "caravan/step/train_step.h"
#include "caravan/techniques/data/ddp.h"
#include "caravan/techniques/data/zero.h"
#include "caravan/techniques/pipeline/pipeline.h"
#include "tests/cost/formulas/memory.h"
#include "tests/redistribute/denote.h"
#include "tests/techniques/together/technique.h"

namespace caravan::testing::pipedream_test {
namespace {

constexpr int64_t kRows = 2, kLength = 8;  // of a micro-batch of one rank

struct Window {
  std::string schedule;
  int stages;
  int micro_batches = 1;  ///< of a step
  int steps = 8;
  int dp = 1;
  bool adamw = false;
  at::ScalarType dtype = at::kDouble;
  bool recompute = false;
  int num_micro_batches() const { return micro_batches * steps; }
};

ModelConfig config_of(const Window& run) {
  return {.arch = Architecture::llama(),
          .layers = run.stages,
          .width = 16,
          .heads = 4,
          .context = kLength,
          .vocabulary = 23,
          .tie_embeddings = false,
          .dropout = 0.1};
}

std::unique_ptr<Optimizer> optimizer_of(const Window& run, FlatState& state) {
  if (run.adamw) return std::make_unique<AdamW>(state, AdamWOptions{.weight_decay = 0.1});
  return std::make_unique<Sgd>(state, SgdOptions{.momentum = 0.9, .weight_decay = 0.01});
}

double rate_of(int64_t step) { return 0.05 / static_cast<double>(step + 1); }

/// Micro-batch `index` of all steps, of data-parallel rank `part`.
MicroBatch micro_batch(const Window& run, int index, int part) {
  const int64_t step = index / run.micro_batches;
  const int64_t parts = run.dp * run.micro_batches;
  const int64_t slice = part * run.micro_batches + index % run.micro_batches;
  const at::Tensor tokens = ((at::arange(kRows * (kLength + 1)) + 100 * slice + 1000 * step) * 131 + 7)
                                .remainder(23)
                                .view({kRows, kLength + 1});
  TrainBatch batch{.ids = tokens.narrow(1, 0, kLength).contiguous(),
                   .labels = tokens.narrow(1, 1, kLength).contiguous(),
                   .first_row = slice * kRows,
                   .global_rows = parts * kRows,
                   .num_targets = parts * kRows * kLength};
  return micro_batch_of(batch, 1, 0, /*seed=*/3, step);
}

using Values = std::map<std::string, at::Tensor>;

Values values_of(const Engine& engine) {
  const at::NoGradGuard no_grad;
  Values values;
  for (const Slot& slot : engine.state().layout.slots()) {
    const at::Tensor piece = engine.state().layout.view(engine.state().values, *slot.parameter);
    if (piece.numel() > 0) values[slot.parameter->name()] = piece.clone();
  }
  return values;
}

std::vector<int> stages_of(const Window& run) {
  std::vector<int> stages{0};
  for (int layer = 0; layer < run.stages; ++layer) stages.push_back(layer);
  stages.push_back(run.stages - 1);
  return stages;
}

/// What the ranks of the pipeline have after the window.
Values pipelined(const Window& run) {
  std::mutex mutex;
  Values all;
  on_mesh({{"pp", run.stages}, {"dp", run.dp}}, [&](const Mesh& given) {
    Mesh mesh = given;
    Model model(config_of(run));
    Strategy strategy = whole_model(model, mesh);
    add_pipeline(strategy, mesh,
                 {.choice = pipeline_of(run.schedule, 1, 0, run.micro_batches),
                  .stage_of_block = stages_of(run),
                  .recompute = run.recompute});
    add_ddp(strategy, mesh);
    Engine engine(model, mesh, strategy, {.seed = 7, .dtype = run.dtype});
    const auto optimizer = optimizer_of(run, engine.state());
    StageRunner runner(engine);
    int64_t most_kept = 0;
    const auto source = [&](int index) { return micro_batch(run, index, mesh["dp"].coord()); };
    runner.run_updates(run.num_micro_batches(), source, [&](int last) {
      most_kept = std::max(most_kept, engine.versions()->num_kept());
      optimizer->step(rate_of(last / run.micro_batches));
    });
    const bool is_2bw = run.schedule == "pipedream-2bw";
    const int64_t stage = mesh["pp"].coord();
    EXPECT_LE(most_kept, is_2bw ? 2 : run.stages - stage) << "versions of stage " << stage;
    const MemoryShape planned{
        .model = {.layers = run.stages}, .rows = run.micro_batches, .pipeline = pipeline_of(run.schedule, run.stages)};
    const int64_t buffers = shapes_of_ranks(planned)[static_cast<size_t>(stage)].num_versions;
    const auto element = static_cast<int64_t>(c10::elementSize(run.dtype));
    EXPECT_LE(engine.versions()->bytes(), buffers * engine.state().layout.count() * element);
    const std::lock_guard lock(mutex);
    for (const auto& [name, value] : values_of(engine)) all[name] = value;
  });
  return all;
}

/// One process: history[k] has the weights after k updates; step t computes with those that each stage would have.
Values simulated(const Window& run) {
  Values result;
  on_mesh({{"dp", 1}}, [&](const Mesh& mesh) {
    Model model(config_of(run));
    Engine engine(model, mesh, whole_model(model, mesh), {.seed = 7, .dtype = run.dtype});
    const auto optimizer = optimizer_of(run, engine.state());
    StageRunner runner(engine);
    std::map<std::string, int> stage_of;
    const std::vector<int> stages = stages_of(run);
    for (size_t block = 0; block < stages.size(); ++block) {
      for (const Parameter* parameter : model.blocks()[block]->parameters())
        stage_of[parameter->name()] = stages[block];
    }
    const auto load = [&](const std::function<const Values&(int stage)>& version_of) {
      const at::NoGradGuard no_grad;
      for (const Slot& slot : engine.state().layout.slots()) {
        const std::string& name = slot.parameter->name();
        engine.state()
            .layout.view(engine.state().values, *slot.parameter)
            .copy_(version_of(stage_of.at(name)).at(name));
      }
      engine.state().bump_version();
    };
    std::vector<Values> history{values_of(engine)};
    for (int step = 0; step < run.steps; ++step) {
      const auto delay = [&](int stage) { return run.schedule == "pipedream" ? run.stages - 1 - stage : 1; };
      load([&](int stage) -> const Values& { return history[static_cast<size_t>(std::max(0, step - delay(stage)))]; });
      // Data-parallel ranks add up their micro-batches first.
      runner.run_step(run.micro_batches * run.dp, [&](int i) {
        return micro_batch(run, step * run.micro_batches + i % run.micro_batches, i / run.micro_batches);
      });
      load([&](int) -> const Values& { return history.back(); });
      optimizer->step(rate_of(step));
      history.push_back(values_of(engine));
    }
    result = history.back();
  });
  return result;
}

void expect_equal(const Window& run) {
  SCOPED_TRACE(::testing::Message() << run.schedule << ", " << run.stages << " stages, " << run.steps << " steps of "
                                    << run.micro_batches << ", dp " << run.dp << (run.recompute ? ", recompute" : ""));
  const Values got = pipelined(run);
  const Values want = simulated(run);
  EXPECT_EQ(got.size(), want.size());
  for (const auto& [name, value] : want) {
    // An all-reduce rounds the sums of two ranks; one process adds their products up.
    EXPECT_TRUE(run.dp == 1 ? got.at(name).equal(value) : is_close(got.at(name), value, 1e-12)) << name;
  }
}

TEST(PipeDream, MatchesItsSerialSimulation) {
  for (const int stages : {2, 3, 4}) {
    for (const int steps : {1, 3, 8}) {
      expect_equal({.schedule = "pipedream", .stages = stages, .steps = steps});
      expect_equal({.schedule = "pipedream", .stages = stages, .steps = steps, .adamw = true, .dtype = at::kFloat});
    }
  }
  expect_equal({.schedule = "pipedream", .stages = 2, .dp = 2});
  expect_equal({.schedule = "pipedream", .stages = 3, .recompute = true});
}

TEST(PipeDream2BW, MatchesItsSerialSimulation) {
  for (const int stages : {2, 3, 4}) {
    for (const int steps : {1, 3, 6}) {
      expect_equal({.schedule = "pipedream-2bw", .stages = stages, .micro_batches = stages, .steps = steps});
      expect_equal({.schedule = "pipedream-2bw",
                    .stages = stages,
                    .micro_batches = stages + 1,
                    .steps = steps,
                    .adamw = true,
                    .dtype = at::kFloat});
    }
  }
}

/// A pipeline with a flush has other weights after the second step: the test can fail.
TEST(PipeDream, DiffersFromAStepWithAFlush) {
  const Values got = pipelined({.schedule = "pipedream", .stages = 2, .steps = 3});
  const Values other = simulated({.schedule = "pipedream", .stages = 1, .steps = 3});
  EXPECT_FALSE(got.at("embedding.token.weight").equal(other.at("embedding.token.weight")));
}

/// The unsharded parameters have the same hash in the backward of a micro-batch as in its forward, and the number of
/// updates before is what the paper says: step t of stage s has max(0, t - (p-1-s)).
TEST(PipeDream, BackwardUsesTheWeightsOfItsForward) {
  const Window run{.schedule = "pipedream", .stages = 3, .steps = 6};
  on_mesh({{"pp", run.stages}, {"dp", 1}}, [&](const Mesh& given) {
    Mesh mesh = given;
    Model model(config_of(run));
    Strategy strategy = whole_model(model, mesh);
    add_pipeline(strategy, mesh, {.choice = pipeline_of(run.schedule), .stage_of_block = stages_of(run)});
    add_ddp(strategy, mesh);
    Engine engine(model, mesh, strategy, {.seed = 7, .dtype = run.dtype});
    const auto optimizer = optimizer_of(run, engine.state());
    const int stage = mesh["pp"].coord();
    std::map<int, std::pair<int64_t, uint64_t>> in_forward;
    int num_backwards = 0;
    const Hook hook = model.blocks()[static_cast<size_t>(stage) + 1]->add_hook(
        [&](Module&, Tensors inputs, const ForwardContext& context, const Next& next) {
          Tensors outputs = next(std::move(inputs), context);
          const int m = context.micro_batch;
          in_forward[m] = {engine.versions()->number(), engine.versions()->hash()};
          EXPECT_EQ(in_forward[m].first, std::max(0, m - (run.stages - 1 - stage)));
          outputs.front().register_hook([&, m](const at::Tensor&) {
            ++num_backwards;
            EXPECT_EQ(engine.versions()->number(), in_forward[m].first);
            EXPECT_EQ(engine.versions()->hash(), in_forward[m].second);
          });
          return outputs;
        });
    StageRunner runner(engine);
    runner.run_updates(
        run.steps, [&](int index) { return micro_batch(run, index, 0); },
        [&](int last) { optimizer->step(rate_of(last)); });
    EXPECT_EQ(num_backwards, run.steps);
  });
}

/// Versions are of whole weights: without one, updates between passes would be left out in silence.
TEST(PipeDream, RefusesGatheredParameters) {
  const Window run{.schedule = "pipedream", .stages = 2};
  for (const int stage : {1, 2, 3}) {
    on_mesh({{"pp", run.stages}, {"dp", 2}}, [&](const Mesh& given) {
      Mesh mesh = given;
      Model model(config_of(run));
      Strategy strategy = whole_model(model, mesh);
      add_pipeline(strategy, mesh, {.choice = pipeline_of(run.schedule), .stage_of_block = stages_of(run)});
      if (stage < 3) {
        add_zero(strategy, mesh, {.stage = stage, .share = Share::off});
      } else {
        add_fsdp(strategy, mesh, {.share = Share::off});
      }
      EXPECT_EQ(strategy.unsharded_memory, UnshardedMemory::stashed);
      try {
        const Engine engine(model, mesh, strategy, {.seed = 7});
        ADD_FAILURE() << strategy.name;
      } catch (const UsageError& error) {
        EXPECT_THAT(error.what(), ::testing::HasSubstr("is gathered, but stages that step on their own"));
      }
    });
  }
}

}  // namespace
}  // namespace caravan::testing::pipedream_test
