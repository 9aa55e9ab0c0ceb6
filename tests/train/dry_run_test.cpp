#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/comm/record.h"
#include "caravan/models/model.h"
#include "caravan/schedule/stages.h"
#include "caravan/step/train_step.h"
#include "caravan/techniques/data/ddp.h"
#include "caravan/techniques/make_strategy.h"
#include "tests/cost/formulas/experts.h"
#include "tests/cost/formulas/memory.h"
#include "tests/cost/formulas/tensor.h"
#include "tests/techniques/together/technique.h"

namespace caravan::testing::dry_run_test {
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
  const ModelConfig config{.arch = Architecture::llama(),
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

/// dp 16 x cp 8 x tp 8 of a Llama with 7 billion parameters: the bytes on each axis in a step.
TEST(DryRun, AStepOfASplitLlamaOnAThousandRanks) {
  needs({"ddp"});
  const ModelConfig config{.arch = Architecture::llama(),
                           .layers = 32,
                           .width = 4096,
                           .heads = 32,
                           .context = 4096,
                           .vocabulary = 32'000,
                           .hidden = 11'008,
                           .tie_embeddings = false};
  constexpr int64_t kDp = 16, kSequences = 2;
  for (const int rank : {0, 517}) {
    Mesh mesh = Mesh::create(make_record_world(rank, kWorld), {{"dp", kDp}, {"cp", 8}, {"tp", 8}});
    Model model(config);
    const StrategyChoice choice{.tensor_parallel = tensor_of(8),
                                .context_parallel = context_of("ring", 8),
                                .sequences = kSequences,
                                .compute_dtype = at::kBFloat16};
    Engine engine(model, mesh, make_strategy(choice, model, mesh), {.device = at::kMeta});
    AdamW optimizer(engine.state());
    TrainStep step(engine, optimizer, {.num_micro_batches = kMicroBatches, .clip_norm = 1});
    const int64_t rows = kSequences * kMicroBatches;
    const at::Tensor ids = at::empty({rows, config.context}, at::TensorOptions(at::kLong).device(at::kMeta));
    const auto sent = [&](const char* axis) { return static_cast<double>(mesh[axis].comm().traffic().total_bytes()); };
    const double before_tp = sent("tp"), before_cp = sent("cp"), before_dp = sent("dp");
    step.run({.ids = ids,
              .labels = at::empty_like(ids),
              .first_row = rank / 64 * rows,
              .global_rows = kDp * rows,
              .num_targets = kDp * rows * config.context},
             0, 1e-3);
    TensorShape tensor{.model = config, .ranks = 8, .sequences = kSequences, .share = 1. / 8};
    TensorShape ring{.model = config, .kind = "ring", .ranks = 8, .sequences = kSequences, .share = 1. / 8};
    const auto of_layers = [&](const TensorShape& shape) {
      return static_cast<double>(kMicroBatches * config.layers) * layer_bytes(shape).total();
    };
    const double words = kMicroBatches * (embedding_bytes(tensor).total() + head_bytes(tensor).total());
    EXPECT_NEAR((sent("tp") - before_tp) / (of_layers(tensor) + words), 1, 1e-3);
    const auto held = static_cast<double>(engine.state().layout.count());  // fp32 gradients, all-reduced
    EXPECT_NEAR((sent("cp") - before_cp) / (of_layers(ring) + 2 * 7. / 8 * 4 * held), 1, 1e-3);
    EXPECT_NEAR((sent("dp") - before_dp) / (2 * 15. / 16 * 4 * held), 1, 1e-3);
  }
}

/// MT-NLG (Smith et al., arXiv 2201.11990): 530 billion parameters, tp 8 x pp 35, on 2,240 ranks. The first stage,
/// which holds the most micro-batches, as a rank of it computes and sends.
TEST(DryRun, AStepOfAPipelineOfThirtyFiveStages) {
  needs({"1f1b", "ddp"});
  const ModelConfig config{.arch = Architecture::gpt2(),
                           .layers = 105,
                           .width = 20'480,
                           .heads = 128,
                           .context = 2048,
                           .vocabulary = 51'200,
                           .tie_embeddings = true};
  constexpr int kMicros = 70;
  Mesh mesh = Mesh::create(make_record_world(3, 35 * 8 * 8), {{"pp", 35}, {"dp", 8}, {"tp", 8}});
  Model model(config);
  StrategyChoice choice{.tensor_parallel = tensor_of(8, "1d", {{"sequence", true}}),
                        .pipeline = {.degree = 35},
                        .compute_dtype = at::kBFloat16};
  choice.stage_of_block = stage_of_units(choice.pipeline, config, unit_flops(config));
  Engine engine(model, mesh, make_strategy(choice, model, mesh), {.device = at::kMeta});
  AdamW optimizer(engine.state());
  TrainStep step(engine, optimizer, {.num_micro_batches = kMicros, .clip_norm = 1});
  const at::Tensor ids = at::empty({kMicros, config.context}, at::TensorOptions(at::kLong).device(at::kMeta));
  const double before = static_cast<double>(mesh["pp"].comm().traffic().total_bytes());
  step.run({.ids = ids,
            .labels = at::empty_like(ids),
            .global_rows = 8 * kMicros,
            .num_targets = 8 * kMicros * config.context},
           0, 1e-4);
  // A part of the stream in bf16 for each micro-batch; its shape, once. The tied weight has its own axis.
  const double stream = 2. * 2048 * 20'480 / 8;
  EXPECT_NEAR((static_cast<double>(mesh["pp"].comm().traffic().total_bytes()) - before) / (kMicros * stream), 1, 1e-4);
  const MemoryShape all{.model = config,
                        .sequences = 1,
                        .rows = kMicros,
                        .tensor_parallel = choice.tensor_parallel,
                        .pipeline = choice.pipeline,
                        .compute_bytes = 2,
                        .ranks = 8};
  const MemoryShape rank = shapes_of_ranks(all).front();
  EXPECT_NEAR(static_cast<double>(engine.state().layout.count()) / state_of(rank).parameters, 1, 1e-3);
  EXPECT_EQ(rank.in_flight, 35);
}

/// Every rank of ep and tp sends the tokens of its experts, assuming that experts are chosen equally often.
TEST(DryRun, AStepOfExpertsOnAThousandRanks) {
  const ModelConfig config{.arch = Architecture::llama(),
                           .layers = 4,
                           .width = 1024,
                           .heads = 16,
                           .context = 512,
                           .vocabulary = 32'000,
                           .hidden = 1024,
                           .moe = {.experts = 64, .balance = BalanceScope::batch}};
  constexpr int64_t kEp = 16, kTp = 4;
  Mesh mesh = Mesh::create(make_record_world(77, kWorld), {{"dp", kWorld / (kEp * kTp)}, {"ep", kEp}, {"tp", kTp}});
  Model model(config);
  StrategyChoice choice;
  choice.tensor_parallel = tensor_of(kTp);
  choice.expert_parallel = experts_of(kEp);
  choice.sequences = kEp;
  Engine engine(model, mesh, make_strategy(choice, model, mesh), {.device = at::kMeta});
  AdamW optimizer(engine.state());
  TrainStep step(engine, optimizer, {});
  const at::Tensor ids = at::empty({kEp, config.context}, at::TensorOptions(at::kLong).device(at::kMeta));
  const Traffic& traffic = mesh["ep"].comm().traffic();
  const auto exchanged = [&] { return static_cast<double>(traffic.bytes[static_cast<size_t>(Verb::all_to_all)]); };
  const double before = exchanged();
  step.run({.ids = ids, .labels = at::empty_like(ids), .global_rows = 16 * kEp, .num_targets = 16 * kEp * 512}, 0,
           1e-3);
  const TensorTraffic layer =
      expert_bytes({.model = config, .ranks = kEp, .tensor_ranks = kTp, .sequences = kEp, .element_bytes = 4});
  const double passes = 2 * layer.forward + layer.backward;  // the batch is counted first
  EXPECT_NEAR((exchanged() - before) / (config.layers * passes), 1, 1e-3);
}

}  // namespace
}  // namespace caravan::testing::dry_run_test
