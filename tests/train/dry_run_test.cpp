#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/comm/record.h"
#include "caravan/nn/model.h"
#include "caravan/train/step.h"

namespace caravan::testing {
namespace {

constexpr int kWorld = 1024;
constexpr int kMicroBatches = 2;

/// A step of GPT-2 small on rank `rank` of 1,024, with meta tensors.
void step_of(int rank, const ModelConfig& config, at::ScalarType compute, bool adamw) {
  const Mesh mesh = Mesh::create(make_record_world(rank, kWorld), {{"dp", kWorld}});
  Model model(config);
  model.materialise(mesh, {}, {.device = at::kMeta});
  Ddp ddp(model, mesh["dp"], {.compute_dtype = compute});
  std::unique_ptr<Optimizer> optimizer;
  if (adamw) {
    optimizer = std::make_unique<AdamW>(ddp.state());
  } else {
    optimizer = std::make_unique<Sgd>(ddp.state(), SgdOptions{.momentum = 0.9, .weight_decay = 0.1});
  }
  const int64_t flat_bytes = ddp.state().values.numel() * 4;
  EXPECT_GE(flat_bytes, config.num_parameters() * 4);
  EXPECT_LT(flat_bytes, config.num_parameters() * 4 + 1'000'000);                      // alignment
  EXPECT_EQ(mesh.bytes_sent(), wire_bytes(Verb::all_gather, rank, kWorld, 16, 0, 0) +  // digest of names and shapes
                                   wire_bytes(Verb::broadcast, rank, kWorld, flat_bytes, 0, 0));

  TrainStep step(model, ddp, *optimizer, mesh, {.num_micro_batches = kMicroBatches, .clip_norm = 1});
  const at::Tensor ids = at::empty({2 * kMicroBatches, config.context}, at::TensorOptions(at::kLong).device(at::kMeta));
  const TrainBatch batch{.ids = ids,
                         .labels = at::empty_like(ids),
                         .first_row = rank * 2 * kMicroBatches,
                         .global_rows = int64_t{kWorld} * 2 * kMicroBatches,
                         .num_targets = int64_t{kWorld} * 2 * kMicroBatches * config.context};
  for (int64_t i = 0; i < 2; ++i) {
    const int64_t before = mesh.bytes_sent();
    step.run(batch, i, 1e-3);
    int64_t want = wire_bytes(Verb::all_reduce, rank, kWorld, 16, 0, 0);  // loss and stop request
    want += wire_bytes(Verb::all_reduce, rank, kWorld, 8, 0, 0);          // gradient norm
    int64_t gradients = 0;
    for (const Bucket& bucket : ddp.buckets()) {
      want += wire_bytes(Verb::all_reduce, rank, kWorld, bucket.count * 4, 0, 0);
      gradients += bucket.count * 4;
    }
    EXPECT_EQ(mesh.bytes_sent() - before, want);
    EXPECT_EQ(gradients, flat_bytes);
  }
  EXPECT_GT(ddp.buckets().size(), 3U);
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
