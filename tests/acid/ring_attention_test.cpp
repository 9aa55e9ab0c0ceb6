#include "tests/acid/techniques/ring_attention.h"

#include <gtest/gtest.h>

#include "caravan/data/tokenizer/tokenizer.h"
#include "caravan/generate/generate.h"
#include "caravan/prove/prove.h"
#include "caravan/step/train_step.h"
#include "caravan/techniques/recompute/recompute.h"
#include "tests/acid/techniques/column_row.h"
#include "tests/acid/techniques/one_f_one_b.h"
#include "tests/acid/techniques/shard_everything.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing::ring_attention_test {
namespace {

using Axes = std::vector<AxisSize>;
using Hooks = std::vector<Hook>;

/// GPT-2 with tied embeddings, or Llama with grouped heads and RoPE.
ModelConfig model_of(Architecture kind) {
  const bool is_gpt2 = kind == Architecture::gpt2();
  ModelConfig model = shrunken({.arch = kind, .heads = 4, .kv_heads = is_gpt2 ? 0 : 2, .tie_embeddings = is_gpt2});
  model.dropout = 0;  // of attention weights: the technique has none
  return model;
}

Arrangement ring(Model& model, Mesh& mesh) {
  Strategy strategy = whole_model(model, mesh);
  if (mesh.has("dp")) add_data_axis(strategy, mesh, "dp");
  const auto hooks = std::make_shared<Hooks>(ring_attention(strategy, model, mesh, "cp"));
  return {std::move(strategy), hooks};
}

/// Two stages x column/row split x full recompute x deferred weight gradients x state in shards over the ring.
Arrangement everything(Model& model, Mesh& mesh) {
  const std::vector<int64_t> part{2, model.config().context / mesh["cp"].size()};
  Strategy strategy = whole_model(model, mesh);
  add_plan(strategy,
           std::make_shared<AppliedPlan>(apply(fitted(column_row("tp"), model), model, mesh, {part, part}, {part})));
  add_recompute(strategy, model);
  add_stages(strategy, mesh, "pp", {0, 0, 1, 1});
  run_one_f_one_b(strategy);
  shard_everything(strategy, mesh, "cp");
  const auto hooks = std::make_shared<Hooks>(ring_attention(strategy, model, mesh, "cp"));
  return {std::move(strategy), hooks};
}

struct Case {
  std::string name;
  Axes axes;
  Arrangement (*arrange)(Model& model, Mesh& mesh) = ring;
  at::ScalarType dtype = at::kDouble;
};

class RingAttentionTest : public ::testing::TestWithParam<Case> {};

/// Loss, every gradient, norm and update; row r of the batch has r % 5 tokens without a target.
TEST_P(RingAttentionTest, MatchesOneProcess) {
  for (const Architecture& kind : {Architecture::gpt2(), Architecture::llama()}) {
    const Proof proof = prove({.name = GetParam().name,
                               .model = model_of(kind),
                               .axes = GetParam().axes,
                               .arrange = GetParam().arrange,
                               .num_micro_batches = 2,
                               .dtype = GetParam().dtype});
    EXPECT_TRUE(proof.holds()) << kind.name << ": " << proof.to_string();
    EXPECT_GT(proof.num_parameters, 20);
    EXPECT_LE(proof.tolerance, GetParam().dtype == at::kDouble ? 1e-10 : 3e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(Axes, RingAttentionTest,
                         ::testing::Values(Case{"cp1", {{"cp", 1}}}, Case{"cp2", {{"cp", 2}}}, Case{"cp4", {{"cp", 4}}},
                                           Case{"dp2_cp2", {{"dp", 2}, {"cp", 2}}},
                                           Case{"cp4_fp32", {{"cp", 4}}, ring, at::kFloat},
                                           Case{"pp2_cp2_tp2", {{"pp", 2}, {"cp", 2}, {"tp", 2}}, everything}),
                         [](const auto& info) { return info.param.name; });

// ---- what prove does not see ----

constexpr int64_t kRows = 4, kLength = 8;

struct Found {
  std::vector<double> losses, norms;
  double evaluation = 0;
  std::string sample;
};

TrainBatch batch_of(const Engine& engine, int64_t step) {
  const at::Tensor all = ((at::arange(kRows * (kLength + 1)) + step) * 131).remainder(257).view({kRows, -1});
  return piece_of_rank(engine, {.ids = all.narrow(1, 0, kLength),
                                .labels = all.narrow(1, 1, kLength),
                                .global_rows = kRows,
                                .num_targets = kRows * kLength});
}

/// 3 steps with dropout, but of attention weights; evaluation and a sample.
std::vector<Found> train(Architecture kind, int cp, Arrangement (*arrange)(Model& model, Mesh& mesh)) {
  std::vector<Found> ranks(static_cast<size_t>(cp));
  on_mesh({{"cp", cp}}, [&](const Mesh& world_mesh) {
    Mesh mesh = world_mesh;
    ModelConfig config = model_of(kind);
    config.vocabulary = 257;
    config.dropout = 0.1;
    Model model(config);
    const Arrangement arrangement = arrange(model, mesh);
    Engine engine(model, mesh, arrangement.strategy, {.seed = 7, .dtype = at::kDouble});
    Sgd optimizer(engine.state());
    Found& found = ranks[static_cast<size_t>(mesh.rank())];
    TrainStep step(engine, optimizer, {.seed = 3, .num_micro_batches = 2});
    for (int64_t i = 0; i < 3; ++i) {
      const StepResult result = step.run(batch_of(engine, i), i, 0.1);
      found.losses.push_back(result.loss);
      found.norms.push_back(result.grad_norm);
    }
    const TrainBatch batch = batch_of(engine, 17);
    engine.begin_evaluation();
    found.evaluation =
        StageRunner(engine).evaluate({batch.ids, batch.labels, {.phase = Phase::evaluate}}).item<double>();
    engine.end_evaluation();
    mesh.world().all_reduce({&found.evaluation, 1, Dtype::fp64}, {&found.evaluation, 1, Dtype::fp64}, ReduceOp::sum);
    generate(TextModel(engine), Tokenizer::bytes(), "Call", 8, {.seed = 5}, [&](std::string_view piece) {
      found.sample += piece;
      return true;
    });
  });
  return ranks;
}

/// One process, whose attention weights are not dropped either.
Arrangement without_weight_dropout(Model& model, Mesh& mesh) {
  const auto hooks = std::make_shared<Hooks>();
  for (Module* module : model.modules()) {
    if (dynamic_cast<AttentionCore*>(module) == nullptr) continue;
    hooks->push_back(module->add_hook([](Module&, Tensors inputs, ForwardContext context, const Next& next) {
      context.phase = Phase::evaluate;
      return next(std::move(inputs), context);
    }));
  }
  return {whole_model(model, mesh), hooks};
}

TEST(RingAttention, DropsEvaluatesAndSamplesLikeOneProcess) {
  for (const Architecture& kind : {Architecture::gpt2(), Architecture::llama()}) {
    const Found want = train(kind, 1, without_weight_dropout).front();
    EXPECT_FALSE(want.sample.empty());
    for (const Found& got : train(kind, 4, ring)) {
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_NEAR(got.losses[i] / want.losses[i], 1, 1e-12);
        EXPECT_NEAR(got.norms[i] / want.norms[i], 1, 1e-10);
      }
      EXPECT_NEAR(got.evaluation / want.evaluation, 1, 1e-12);
      EXPECT_EQ(got.sample, want.sample);
    }
  }
}

/// Forward sends n - 1 blocks of keys and values; backward sends n of them with their gradients, which return to their
/// owner.
TEST(RingAttention, SendsBlocks) {
  on_mesh({{"cp", 4}}, [](const Mesh& mesh) {
    const auto over = c10::make_intrusive<Ring>(mesh["cp"]);
    const at::Tensor q = random_tensor({2, 4, 3, 8}, 1).requires_grad_();
    const at::Tensor kv = random_tensor({2, 2, 2, 3, 8}, 2).requires_grad_();
    const int64_t block = static_cast<int64_t>(kv.nbytes());
    const int64_t before = mesh.bytes_sent();
    const at::Tensor out = RingAttention::apply(q, kv, over);
    EXPECT_EQ(mesh.bytes_sent() - before, 3 * block);
    out.sum().backward();
    EXPECT_EQ(mesh.bytes_sent() - before, (3 + 4 * 2) * block);
  });
}

}  // namespace
}  // namespace caravan::testing::ring_attention_test
