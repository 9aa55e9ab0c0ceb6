#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/comm/record.h"
#include "caravan/nn/model.h"
#include "caravan/parallel/ddp.h"
#include "caravan/train/step.h"

namespace caravan::testing {
namespace {

constexpr int kWorld = 1024;
constexpr int kMicroBatches = 2;

/// Two steps on rank `rank` of 1,024, with meta tensors.
void step_of(int rank, const ModelConfig& config, at::ScalarType compute, bool adamw) {
  const Mesh mesh = Mesh::create(make_record_world(rank, kWorld), {{"dp", kWorld}});
  Model model(config);
  Engine engine(model, mesh, ddp(model, mesh, {.compute_dtype = compute}), {.device = at::kMeta});
  std::unique_ptr<Optimizer> optimizer;
  if (adamw) {
    optimizer = std::make_unique<AdamW>(engine.state());
  } else {
    optimizer = std::make_unique<Sgd>(engine.state(), SgdOptions{.momentum = 0.9, .weight_decay = 0.1});
  }
  const int64_t flat_bytes = engine.state().layout.count() * 4;
  EXPECT_GE(flat_bytes, config.num_parameters() * 4);
  EXPECT_LT(flat_bytes, config.num_parameters() * 4 + 1'000'000);                  // alignment
  const int64_t agreement = wire_bytes(Verb::all_gather, rank, kWorld, 16, 0, 0);  // of one digest
  EXPECT_EQ(mesh.bytes_sent(), agreement) << "every rank makes the same starting values";

  TrainStep step(engine, *optimizer, {.num_micro_batches = kMicroBatches, .clip_norm = 1});
  EXPECT_FALSE(engine.table(kMicroBatches).empty());
  EXPECT_EQ(mesh.bytes_sent(), 2 * agreement) << "the ranks have compared their schedules";
  const at::Tensor ids = at::empty({2 * kMicroBatches, config.context}, at::TensorOptions(at::kLong).device(at::kMeta));
  const TrainBatch batch{.ids = ids,
                         .labels = at::empty_like(ids),
                         .first_row = rank * 2 * kMicroBatches,
                         .global_rows = int64_t{kWorld} * 2 * kMicroBatches,
                         .num_targets = int64_t{kWorld} * 2 * kMicroBatches * config.context};
  const auto& buckets = engine.state().layout.buckets();
  const Traffic& traffic = mesh["dp"].comm().traffic();
  for (int64_t i = 0; i < 2; ++i) {
    const int64_t before = mesh.bytes_sent();
    const int64_t reduced_before = traffic.total_bytes();
    const int64_t calls_before = traffic.calls[static_cast<size_t>(Verb::all_reduce)];
    step.run(batch, i, 1e-3);
    const int64_t reduced = traffic.total_bytes() - reduced_before;
    const int64_t calls = traffic.calls[static_cast<size_t>(Verb::all_reduce)] - calls_before;
    int64_t want = wire_bytes(Verb::all_reduce, rank, kWorld, 16, 0, 0);  // loss and stop request
    want += wire_bytes(Verb::all_reduce, rank, kWorld, 560, 0, 0);        // gradient norm
    EXPECT_EQ(mesh.bytes_sent() - before, want + reduced);
    // A ring sends 2 (n - 1) / n of the gradients, each call rounded up to a chunk for each rank.
    const double ring = 2.0 * (kWorld - 1) / kWorld * static_cast<double>(flat_bytes);
    EXPECT_GE(static_cast<double>(reduced), ring - 1);
    EXPECT_LE(static_cast<double>(reduced), ring + static_cast<double>(calls) * 2 * kWorld * 4);
    EXPECT_GT(calls, 3);
    EXPECT_LE(calls, static_cast<int64_t>(buckets.size()));
  }
  EXPECT_EQ(optimizer->num_steps(), 2);
}

TEST(DryRun, AStepOfGpt2SmallOnAThousandRanks) {
  const ModelConfig config{
      .layers = 12, .width = 768, .heads = 12, .context = 1024, .vocabulary = 50257, .dropout = 0.1};
  EXPECT_EQ(config.num_parameters(), 124'439'808);
  for (const int rank : {0, 1, 511, 1023}) step_of(rank, config, at::kFloat, true);
  step_of(7, config, at::kBFloat16, false);
}

TEST(DryRun, AStepOfALlamaOnAThousandRanks) {
  const ModelConfig config{.kind = ModelKind::llama,
                           .layers = 12,
                           .width = 768,
                           .heads = 12,
                           .kv_heads = 4,
                           .context = 2048,
                           .vocabulary = 32'000,
                           .tie_embeddings = false,
                           .dropout = 0.1};
  step_of(1023, config, at::kFloat, true);
  step_of(512, config, at::kBFloat16, true);
}

}  // namespace
}  // namespace caravan::testing
