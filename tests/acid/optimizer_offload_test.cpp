#include "tests/acid/techniques/optimizer_offload.h"

#include <gtest/gtest.h>

#include "caravan/base/memory/memory_counter.h"
#include "caravan/models/model.h"
#include "caravan/step/train_step.h"
#include "tests/acid/techniques/shard_everything.h"
#include "tests/data/support.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing::optimizer_offload_test {
namespace {

constexpr int64_t kRows = 4, kLength = 8, kVocabulary = 61;
constexpr int64_t kBufferElems = 96;

using Arrange = std::function<void(Strategy&, const Mesh&)>;
using Make = std::function<std::unique_ptr<Optimizer>(FlatState&, int rank)>;
/// Called after each step.
using After = std::function<void(int64_t step, std::unique_ptr<Optimizer>&, FlatState&, int rank)>;

TrainBatch batch_of(const Engine& engine, int64_t step) {
  const at::Tensor all = ((at::arange(kRows * (kLength + 1)) + step) * 131).remainder(kVocabulary).view({kRows, -1});
  return piece_of_rank(engine, {.ids = all.narrow(1, 0, kLength),
                                .labels = all.narrow(1, 1, kLength),
                                .global_rows = kRows,
                                .num_targets = kRows * kLength});
}

/// What a rank has after 5 clipped steps.
struct Found {
  at::Tensor values;
  std::vector<std::pair<std::string, at::Tensor>> moments;
  int64_t held_bytes = 0;  ///< by the optimizer
  int64_t peak_bytes = 0;  ///< of an update, above what was there
};

std::vector<Found> train(int num_ranks, const Arrange& arrange, const Make& make, const After& after = {}) {
  std::vector<Found> ranks(static_cast<size_t>(num_ranks));
  on_mesh({{"dp", num_ranks}}, [&](const Mesh& mesh) {
    Model model({.layers = 2, .width = 16, .heads = 2, .context = kLength, .vocabulary = kVocabulary});
    Strategy strategy = whole_model(model, mesh);
    arrange(strategy, mesh);
    Engine engine(model, mesh, strategy, {.seed = 7});
    MemoryCounter& memory = MemoryCounter::current();
    Found& found = ranks[static_cast<size_t>(mesh.rank())];
    const int64_t before = memory.live_bytes();
    std::unique_ptr<Optimizer> optimizer = make(engine.state(), mesh.rank());
    found.held_bytes = memory.live_bytes() - before;
    for (int64_t i = 0; i < 5; ++i) {
      TrainStep step(engine, *optimizer, {.seed = 3, .num_micro_batches = 2, .clip_norm = 0.5});
      int64_t live = 0;
      step.run(batch_of(engine, i), i, 0.02, false, [&](const StepResult&) {
        live = memory.live_bytes();
        memory.reset_peak();
      });
      found.peak_bytes = memory.peak_bytes() - live;
      if (after) after(i, optimizer, engine.state(), mesh.rank());
    }
    found.values = engine.state().values.to_tensor();
    for (const auto& [name, moment] : optimizer->state()) found.moments.emplace_back(name, moment.clone());
    mesh.world().barrier();
  });
  return ranks;
}

std::unique_ptr<Optimizer> in_memory(FlatState& state, int /*rank*/) {
  return std::make_unique<AdamW>(state, AdamWOptions{.weight_decay = 0.3});
}

void expect_same(const std::vector<Found>& got, const std::vector<Found>& want) {
  for (size_t rank = 0; rank < want.size(); ++rank) {
    EXPECT_TRUE(got[rank].values.equal(want[rank].values)) << "rank " << rank;
    ASSERT_EQ(got[rank].moments.size(), 2U);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(got[rank].moments[i].first, want[rank].moments[i].first);
      EXPECT_TRUE(got[rank].moments[i].second.equal(want[rank].moments[i].second)) << "rank " << rank;
      EXPECT_GT(want[rank].moments[i].second.abs().max().item<float>(), 0);
    }
  }
}

class OptimizerOffload : public ::testing::TestWithParam<std::pair<int, bool>> {
 protected:
  void SetUp() override {
    const bool is_sharded = GetParam().second;
    arrange = [=](Strategy& strategy, const Mesh& mesh) {
      if (is_sharded) return shard_everything(strategy, mesh, "dp");
      add_data_axis(strategy, mesh, "dp");
    };
    in_file = [this](FlatState& state, int rank) {
      const std::string name = "moments_" + std::to_string(num_files++) + "_" + std::to_string(rank);
      return std::make_unique<OffloadedAdamW>(state, AdamWOptions{.weight_decay = 0.3}, folder / name, kBufferElems);
    };
  }
  int num_ranks = GetParam().first;
  Arrange arrange;
  Make in_file;
  std::atomic<int> num_files = 0;
  TemporaryFolder folder;
};

TEST_P(OptimizerOffload, HasTheBitsOfAdamW) {
  const std::vector<Found> want = train(num_ranks, arrange, in_memory);
  const std::vector<Found> got = train(num_ranks, arrange, in_file);
  expect_same(got, want);
  for (int rank = 0; rank < num_ranks; ++rank) {
    const int64_t moments = 2 * want[static_cast<size_t>(rank)].moments[0].second.numel() * 4;
    EXPECT_GE(want[static_cast<size_t>(rank)].held_bytes, moments);
    // The blocks of the caching allocator are rounded up to 64 bytes; the step number is one.
    const int64_t buffer = 2 * kBufferElems * 4;
    EXPECT_LE(got[static_cast<size_t>(rank)].held_bytes, buffer + 64);
    EXPECT_LE(got[static_cast<size_t>(rank)].peak_bytes, 256);
    EXPECT_GT(moments, 20 * buffer);
  }
}

/// As when loading a checkpoint: the moments of an in-memory optimizer go into the file of a new one through its
/// state().
TEST_P(OptimizerOffload, TakesMomentsThroughItsState) {
  const std::vector<Found> want = train(num_ranks, arrange, in_memory);
  const auto exchange = [&](int64_t step, std::unique_ptr<Optimizer>& optimizer, FlatState& state, int rank) {
    if (step != 2) return;
    std::unique_ptr<Optimizer> next = in_file(state, rank);
    const auto from = optimizer->state();
    const auto to = next->state();
    for (size_t i = 0; i < from.size(); ++i) to[i].second.copy_(from[i].second);
    next->set_num_steps(optimizer->num_steps());
    optimizer = std::move(next);
  };
  expect_same(train(num_ranks, arrange, in_memory, exchange), want);
}

INSTANTIATE_TEST_SUITE_P(Ranks, OptimizerOffload,
                         ::testing::Values(std::pair(1, false), std::pair(2, false), std::pair(2, true)),
                         [](const auto& info) {
                           return (info.param.second ? "sharded_" : "ddp_") + std::to_string(info.param.first);
                         });

}  // namespace
}  // namespace caravan::testing::optimizer_offload_test
