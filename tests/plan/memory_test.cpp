#include "caravan/plan/memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/memory_counter.h"
#include "caravan/comm/record.h"
#include "caravan/memory/recompute.h"
#include "caravan/nn/model.h"
#include "caravan/parallel/ddp.h"
#include "caravan/step/train_step.h"

namespace caravan::testing::memory_test {
namespace {

/// The peak of a rank's tensors over two real steps of this shape. The flat buffers come from the communicator and are
/// not counted as tensors, so they are added.
double measured_peak(const MemoryShape& shape, const RecomputeChoice& choice) {
  MemoryCounter& counter = MemoryCounter::current();
  const Mesh mesh = Mesh::create(make_record_world(0, 1), {{"dp", 1}});
  const int64_t before = counter.live_bytes();
  Model model(shape.model);
  model.materialise(mesh, {}, {.seed = 1});
  Strategy strategy = ddp(model, mesh, {.compute_dtype = shape.compute_bytes == 2 ? at::kBFloat16 : at::kFloat});
  add_recompute(strategy, model, choice);
  Engine engine(model, mesh, strategy);
  AdamW optimizer(engine.state());
  const int64_t num_micro_batches = shape.rows / shape.sequences;
  TrainStep step(engine, optimizer, {.seed = 1, .num_micro_batches = num_micro_batches, .clip_norm = 1});
  const at::Tensor ids = at::randint(shape.model.vocabulary, {shape.rows, shape.model.context}, at::kLong);
  const TrainBatch batch{.ids = ids,
                         .labels = ids.roll({-1}, {1}),
                         .global_rows = shape.rows,
                         .num_targets = shape.rows * shape.model.context};
  const FlatState& state = engine.state();
  const bool counts_flat = counter.live_bytes() - before >= 4 * 4 * shape.model.num_parameters();
  const int64_t flat = counts_flat ? 0 : (state.layout.count() + state.layout.trained_count()) * 4;
  counter.reset_peak();  // what making the model took is over before the steps
  for (int64_t i = 0; i < 2; ++i) step.run(batch, i, 1e-3);
  return static_cast<double>(counter.peak_bytes() - before + flat);
}

using Kind = RecomputeChoice::Kind;

struct Case {
  const char* name;
  MemoryShape shape;
  RecomputeChoice recompute = {};
};

class MemoryEstimate : public ::testing::TestWithParam<Case> {};

/// The estimate must not be too low, or the choice ends in the kernel's OOM killer, and not much too high.
TEST_P(MemoryEstimate, IsNearTheMeasuredPeak) {
  MemoryShape shape = GetParam().shape;
  count_recomputed(shape, GetParam().recompute);
  const double measured = measured_peak(shape, GetParam().recompute);
  const double estimated = peak_bytes(shape);
  const double layers = kept_activation_bytes(shape);
  EXPECT_GT(estimated / measured, 0.95) << "estimated " << estimated << ", measured " << measured << ", state "
                                        << state_bytes(shape) << ", layers " << layers << ", head " << head_bytes(shape)
                                        << ", backward " << layer_backward_bytes(shape);
  EXPECT_LT(estimated / measured, 1.35) << "estimated " << estimated << ", measured " << measured << ", state "
                                        << state_bytes(shape) << ", layers " << layers << ", head " << head_bytes(shape)
                                        << ", backward " << layer_backward_bytes(shape);
  RecordProperty("ratio", std::to_string(estimated / measured));
}

ModelConfig gpt2(double dropout) {
  return {.layers = 6, .width = 192, .heads = 6, .context = 256, .vocabulary = 2000, .dropout = dropout};
}
ModelConfig llama(double dropout, int64_t kv_heads = 2) {
  return {.kind = ModelKind::llama,
          .layers = 6,
          .width = 192,
          .heads = 6,
          .kv_heads = kv_heads,
          .context = 256,
          .vocabulary = 2000,
          .tie_embeddings = false,
          .dropout = dropout};
}
ModelConfig with_experts(ModelConfig config, const MoeConfig& moe, int64_t hidden = 256) {
  config.moe = moe;
  config.hidden = hidden;
  return config;
}
ModelConfig wide_head(ModelConfig config) {
  config.layers = 2;
  config.vocabulary = 30'000;
  return config;
}

MemoryShape shape(const ModelConfig& model, int64_t sequences, int64_t rows, int64_t compute_bytes) {
  return {.model = model, .sequences = sequences, .rows = rows, .compute_bytes = compute_bytes};
}

INSTANTIATE_TEST_SUITE_P(
    All, MemoryEstimate,
    ::testing::Values(
        Case{"Gpt2Fp32", shape(gpt2(0), 8, 8, 4)}, Case{"Gpt2Fp32Dropout", shape(gpt2(0.1), 8, 8, 4)},
        Case{"Gpt2Bf16", shape(gpt2(0), 8, 8, 2)}, Case{"Gpt2Bf16Dropout", shape(gpt2(0.1), 8, 8, 2)},
        Case{"Gpt2MicroBatches", shape(gpt2(0), 2, 8, 4)}, Case{"Gpt2WideHead", shape(wide_head(gpt2(0)), 4, 4, 4)},
        Case{"LlamaFp32", shape(llama(0), 8, 8, 4)}, Case{"LlamaFp32Dropout", shape(llama(0.1), 8, 8, 4)},
        Case{"LlamaBf16", shape(llama(0), 8, 8, 2)}, Case{"LlamaBf16Dropout", shape(llama(0.1), 8, 8, 2)},
        Case{"LlamaNoGroups", shape(llama(0, 6), 8, 8, 4)},
        Case{"LlamaWideHeadBf16", shape(wide_head(llama(0)), 4, 4, 2)},
        Case{"Gpt2Full", shape(gpt2(0), 8, 8, 4), {Kind::full}},
        Case{"Gpt2FullDropoutBf16", shape(gpt2(0.1), 8, 8, 2), {Kind::full}},
        Case{"LlamaFullDropout", shape(llama(0.1), 8, 8, 4), {Kind::full}},
        Case{"LlamaFullBf16", shape(llama(0), 8, 8, 2), {Kind::full}},
        Case{"Gpt2Selective", shape(gpt2(0), 8, 8, 4), {Kind::selective}},
        Case{"Gpt2SelectiveDropout", shape(gpt2(0.1), 8, 8, 4), {Kind::selective}},
        Case{"LlamaSelectiveDropoutBf16", shape(llama(0.1), 8, 8, 2), {Kind::selective}},
        Case{"Gpt2Experts", shape(with_experts(gpt2(0), {.experts = 8}), 8, 8, 4)},
        Case{"Gpt2OneExpertDropoutBf16", shape(with_experts(gpt2(0.1), {.experts = 4, .top_k = 1}), 8, 8, 2)},
        Case{"LlamaExperts", shape(with_experts(llama(0), {.experts = 8, .shared_hidden = 128}), 8, 8, 4)},
        Case{"LlamaExpertsBf16", shape(with_experts(llama(0), {.experts = 8, .top_k = 4}), 8, 8, 2)},
        Case{"LlamaManyExpertsBf16", shape(with_experts(llama(0), {.experts = 16, .top_k = 12}), 8, 8, 2)},
        Case{"LlamaGatedExpertsFull",
             shape(with_experts(llama(0), {.experts = 8, .shared_hidden = 64, .shared_gate = true}), 8, 8, 4),
             {Kind::full}},
        Case{"LlamaManyExpertsFullBf16",
             shape(with_experts(llama(0), {.experts = 16, .top_k = 8}), 8, 8, 2),
             {Kind::full}},
        Case{"LlamaSmallExpertsBf16", shape(with_experts(llama(0), {.experts = 8, .top_k = 8}, 64), 16, 16, 2)},
        Case{"Gpt2SomeBlocks", shape(gpt2(0.1), 8, 8, 4), {Kind::modules, {"blocks.1", "blocks.4*"}}}),
    [](const auto& info) { return info.param.name; });

TEST(CountRecomputed, GoesByTheNamesOfLayers) {
  MemoryShape sizes = shape(gpt2(0.1), 1, 1, 4);
  const auto count = [&](const RecomputeChoice& choice) {
    count_recomputed(sizes, choice);
    return std::pair(sizes.num_recomputed, sizes.num_recomputed_cores);
  };
  using Counts = std::pair<int64_t, int64_t>;
  EXPECT_EQ(count({}), Counts(0, 0));
  EXPECT_EQ(count({Kind::full}), Counts(6, 0));
  EXPECT_EQ(count({Kind::selective}), Counts(0, 6));
  EXPECT_EQ(count({Kind::modules, {"blocks.*"}}), Counts(6, 0));
  EXPECT_EQ(count({Kind::modules, {"blocks.2", "blocks.5"}}), Counts(2, 0));
  EXPECT_EQ(count({Kind::modules, {"blocks.0", "blocks.3.attention", "blocks.4.*core"}}), Counts(1, 2));
  EXPECT_EQ(count({Kind::modules, {"*.mlp", "head"}}), Counts(0, 0)) << "counts as kept";
}

TEST(LargestMicroBatch, IsTheLargestDivisorThatFits) {
  MemoryShape sizes = shape(gpt2(0), 1, 12, 4);
  const auto peak_of = [&](int64_t sequences) {
    sizes.sequences = sequences;
    return peak_bytes(sizes);
  };
  EXPECT_EQ(largest_micro_batch(sizes, 1e18), 12);
  EXPECT_EQ(largest_micro_batch(sizes, peak_of(6)), 6);
  EXPECT_EQ(largest_micro_batch(sizes, peak_of(5)), 4);
  EXPECT_EQ(largest_micro_batch(sizes, peak_of(1)), 1);
  EXPECT_EQ(largest_micro_batch(sizes, peak_of(1) - 1), 0);
}

/// No legal recipe overflows.
TEST(LargestMicroBatch, TakesTheLargestSizes) {
  const ModelConfig largest{
      .layers = 10'000, .width = 1 << 20, .heads = 1 << 16, .context = 1 << 24, .vocabulary = 1 << 24, .dropout = 0.1};
  const MemoryShape sizes = shape(largest, 1 << 30, 1 << 30, 4);
  EXPECT_GT(peak_bytes(sizes), 1e24);
}

}  // namespace
}  // namespace caravan::testing::memory_test
