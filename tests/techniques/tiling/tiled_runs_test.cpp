/// Runs in tiles: dumps, checkpoints and resumed runs are those of whole layers.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/formats/huggingface/load_model.h"
#include "caravan/train/folder/run_state.h"
#include "tests/needs.h"
#include "tests/train/tiny_run.h"

namespace caravan::testing::tiled_runs_test {
namespace {

namespace fs = std::filesystem;
using Keys = std::vector<std::string>;

/// Steps that amplify no rounding error.
const Keys kSgd{"optimizer.kind=sgd", "optimizer.momentum=0.9", "optimizer.lr=0.1"};

Keys operator+(Keys a, const Keys& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Keys tiles(int64_t count) { return {"tiling.tiles=" + std::to_string(count)}; }

/// Parameters sharded over so many ranks, which do not share memory.
Keys sharded(int ranks) {
  return {"mesh.dp=" + std::to_string(ranks), "data_parallel.technique=zero3", "data_parallel.share=off"};
}

class TiledRuns : public ::testing::TestWithParam<Architecture> {
 protected:
  void SetUp() override { needs({"zero3"}); }
  TrainOptions options(const std::string& dir, const Keys& keys) const {
    return {.recipe = runs_.recipe(GetParam(), dir, keys), .folders = runs_.folders()};
  }
  fs::path dump(const std::string& dir, int ranks, const Keys& keys) const {
    TrainOptions dumping = options(dir, keys + Keys{"train.steps=2", micro_batch(ranks, 2)});
    dumping.dump_dir = runs_ / ("dump_" + dir);
    dumping.dump_steps = {0, 1};
    train_on(ranks, dumping);
    return dumping.dump_dir;
  }

  const TinyRuns runs_;
};

INSTANTIATE_TEST_SUITE_P(Models, TiledRuns, ::testing::Values(Architecture::gpt2(), Architecture::llama()),
                         [](const auto& info) { return info.param.name; });

/// Initial values are equal; gradients within the order of sums.
TEST_P(TiledRuns, HaveTheGradientsOfWholeLayers) {
  const fs::path want = dump("whole", 1, kSgd);
  for (const int ranks : {1, 2, 3}) {
    for (const int64_t count : {2, 5}) {
      const std::string dir = std::to_string(ranks) + "x" + std::to_string(count);
      SCOPED_TRACE(dir);
      const fs::path got = dump(dir, ranks, kSgd + tiles(count) + sharded(ranks));
      EXPECT_EQ(first_difference(tensors_of(got / "step_0/parameters.safetensors"),
                                 tensors_of(want / "step_0/parameters.safetensors")),
                "");
      for (const char* step : {"step_0", "step_1"}) {
        const auto [apart, worst] = distance(tensors_of(got / step / "gradients.safetensors"),
                                             tensors_of(want / step / "gradients.safetensors"));
        EXPECT_LE(apart, 1e-5) << worst;
      }
    }
  }
}

/// The state is read and written again without a step: it does not depend on tiles, bit for bit.
TEST_P(TiledRuns, LoadTheCheckpointsOfOtherTiles) {
  const Keys two{"train.steps=2"};
  struct Run {
    int64_t tiles;
    int ranks;
  };
  size_t num = 0;
  for (const Run writer : {Run{1, 2}, Run{3, 2}, Run{4, 1}}) {
    const std::string first = "first" + std::to_string(++num);
    train_on(writer.ranks, options(first, two + tiles(writer.tiles) + sharded(writer.ranks)));
    const auto want = checkpoint_tensors(runs_ / first);
    EXPECT_TRUE(want.contains("optimizer.exp_avg.blocks.0.mlp.up.weight"));
    EXPECT_EQ(want.at("blocks.0.mlp.down.weight").sizes(),
              want.at("optimizer.exp_avg.blocks.0.mlp.down.weight").sizes());
    const CheckpointInfo info = CheckpointReader(find_checkpoint(runs_ / first)).info();
    const RunOrigin origin{
        .train_hash = info.train_hash, .validation_hash = info.validation_hash, .numerics = info.numerics};
    for (const Run reader : {Run{1, 1}, Run{1, 3}, Run{2, 2}, Run{5, 3}}) {
      const std::string again = first + "again" + std::to_string(++num);
      const Recipe recipe = runs_.recipe(GetParam(), again, two + tiles(reader.tiles) + sharded(reader.ranks));
      const Dataset data = open_dataset(recipe.data, runs_.folders());
      const auto load_and_save = [&](const std::shared_ptr<Communicator>& world) {
        const Mesh mesh = Mesh::create(world, {{"dp", reader.ranks}});
        RunState state(recipe, data.tokenizer, mesh, origin);
        const TrainWindows windows = data.train_windows(recipe.model.context, recipe.train.seed);
        state.load(find_checkpoint(runs_ / first), windows);
        state.save(runs_ / again, 1, windows);
      };
      run_thread_ranks(reader.ranks, load_and_save, {.timeout = std::chrono::seconds(20)});
      EXPECT_EQ(first_difference(checkpoint_tensors(runs_ / again), want), "") << again;
    }
  }
}

/// As on another number of ranks: within the order of sums.
TEST_P(TiledRuns, ResumeWithOtherTiles) {
  const Keys twelve = kSgd + Keys{"train.steps=12"};
  train_on(1, options("whole", twelve));
  const auto want = checkpoint_tensors(runs_ / "whole");
  size_t num = 0;
  for (const auto& [before, after] : std::vector<std::pair<int64_t, int64_t>>{{1, 3}, {3, 1}, {4, 2}}) {
    const std::string dir = "resumed" + std::to_string(++num);
    TrainOptions first = options(dir, twelve + tiles(before) + sharded(2));
    first.stop_after = 6;
    train_on(2, first);
    TrainOptions second = options(dir, twelve + tiles(after) + sharded(2));
    second.resume = true;
    train_on(2, second);
    const auto [apart, worst] = distance(checkpoint_tensors(runs_ / dir), want);
    EXPECT_LE(apart, 1e-5) << worst << " of " << dir;
  }
}

/// In the same tiles: bit for bit.
TEST_P(TiledRuns, ResumeBitwise) {
  const Keys keys = Keys{"train.steps=8"} + tiles(3) + sharded(2);
  train_on(2, options("whole", keys));
  TrainOptions first = options("parts", keys);
  first.stop_after = 4;
  train_on(2, first);
  TrainOptions second = options("parts", keys);
  second.resume = true;
  train_on(2, second);
  EXPECT_EQ(first_difference(checkpoint_tensors(runs_ / "parts"), checkpoint_tensors(runs_ / "whole")), "");
}

/// What exports and generates reads the checkpoint as any other.
TEST_P(TiledRuns, AreReadAsModelsOfWholeLayers) {
  train_on(2, options("run", Keys{"train.steps=1"} + tiles(3) + sharded(2)));
  const auto saved = checkpoint_tensors(runs_ / "run");
  run_thread_ranks(1, [&](const std::shared_ptr<Communicator>& world) {
    const LoadedModel loaded = load_model(runs_ / "run", Mesh::create(world, {{"dp", 1}}));
    for (const Parameter* parameter : loaded.model->parameters()) {
      EXPECT_TRUE(parameter->sharded().equal(saved.at(parameter->name()))) << parameter->name();
    }
  });
}

}  // namespace
}  // namespace caravan::testing::tiled_runs_test
