#include "caravan/techniques/context/context_parallel.h"

#include <array>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/record.h"
#include "caravan/data/tokenizer/tokenizer.h"
#include "caravan/engine/engine.h"
#include "caravan/generate/generate.h"
#include "caravan/prove/prove.h"
#include "caravan/step/train_step.h"
#include "caravan/techniques/data/ddp.h"
#include "caravan/techniques/data/zero.h"
#include "caravan/techniques/technique_body.h"
#include "caravan/techniques/tensor/tensor_1d.h"
#include "tests/redistribute/denote.h"
#include "tests/techniques/together/technique.h"

namespace caravan::testing::context_parallel_test {
namespace {

/// Axes "ring", "ulysses", "tp" and "dp", those that there are.
struct Variant {
  std::string name;
  Axes axes;
  bool has_zero3 = false;
  bool has_documents = false;
  double dropout = 0;
  bool splits_stream = false;  ///< tensor parallelism, over the sequence too
  Setting recompute{"recompute"};
  RowNeeds needs{};
};

void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

int size_of(const Axes& axes, const std::string& name) {
  const auto axis = std::ranges::find(axes, name, &AxisSize::name);
  return axis == axes.end() ? 1 : axis->size;
}

/// What a recipe with these axes would put on the model.
Arrangement arrange(const Variant& variant, Model& model, Mesh& mesh) {
  ContextParallelOptions options;
  if (mesh.has("ring")) options.ring = "ring";
  if (mesh.has("ulysses")) options.ulysses = "ulysses";
  const ModelConfig& config = model.config();
  Plan plan;
  if (mesh.has("tp")) {
    plan = tensor_1d(config, mesh, {.axis = "tp", .sequence = variant.splits_stream});
    options.head_parts = mesh["tp"].size();
  }
  plan = join(context_parallel(config, mesh, options), plan);
  const std::vector<int64_t> ids{2, config.context};
  Strategy strategy = whole_model(model, mesh);
  add_plan(strategy, std::make_shared<AppliedPlan>(apply(plan, model, mesh, {ids, ids}, {ids})));
  if (mesh.has("dp") && variant.has_zero3) add_fsdp(strategy, mesh, {.share = Share::off});
  if (mesh.has("dp") && !variant.has_zero3) add_ddp(strategy, mesh);
  add_around(variant.recompute, strategy, model);
  return strategy;
}

ModelConfig model_of(const Variant& variant, Architecture kind, bool is_tied) {
  ModelConfig model = shrunken({.arch = kind, .heads = 4, .kv_heads = 2, .tie_embeddings = is_tied});
  const int heads = size_of(variant.axes, "ulysses") * size_of(variant.axes, "tp");
  if (heads == 3) {
    model.heads = 6;
    model.width = 24;
  }
  model.kv_heads = kind == Architecture::gpt2() ? 0 : 2;
  const int pieces = 2 * size_of(variant.axes, "ring") * size_of(variant.axes, "ulysses") * size_of(variant.axes, "tp");
  model.context = pieces >= 8 ? pieces : 12;
  model.dropout = variant.dropout;
  return model;
}

std::vector<Variant> variants() {
  return {{"ring1", {{"ring", 1}}, false, true},
          {"ring2", {{"ring", 2}}},
          {"ring2_documents", {{"ring", 2}}, false, true},
          {"ring2_dropout", {{"ring", 2}}, false, true, 0.2},
          {"ring3", {{"ring", 3}}, false, true},
          {"ring3_recompute", {{"ring", 3}}, false, true, 0, false, recompute_of("full")},
          {"ring4", {{"ring", 4}}, false, false, 0, false, recompute_of("selective")},
          {"ulysses2", {{"ulysses", 2}}, false, true, 0.2},
          {"ulysses3", {{"ulysses", 3}}},  // key heads 0 and 1 for query heads 0 1, 2 3 and 4 5 of 6
          {"ulysses4", {{"ulysses", 4}}, false, true},
          {"ring2_ulysses2", {{"ring", 2}, {"ulysses", 2}}, false, true},
          {"ring2_ulysses2_dropout", {{"ring", 2}, {"ulysses", 2}}, false, false, 0.2},
          {"dp2_ring2", {{"dp", 2}, {"ring", 2}}, false, true},
          {"zero3_ring2", {{"dp", 2}, {"ring", 2}}, true, false, 0.2},
          {"zero3_ulysses2", {{"dp", 2}, {"ulysses", 2}}, true, true},
          {"tp2_ring2", {{"ring", 2}, {"tp", 2}}, false, true},
          {"tp2_stream_ring2", {{"ring", 2}, {"tp", 2}}, false, false, 0.2, true},
          {"tp2_ulysses2", {{"ulysses", 2}, {"tp", 2}}, false, true},
          {"tp2_stream_ulysses2", {{"ulysses", 2}, {"tp", 2}}, false, false, 0.2, true}};
}

/// Dtypes of the sharded parameters and of the arithmetic: fp64, fp32, bf16.
constexpr std::array<std::pair<at::ScalarType, at::ScalarType>, 3> kDtypes{
    {{at::kDouble, at::kFloat}, {at::kFloat, at::kFloat}, {at::kFloat, at::kBFloat16}}};

class ContextParallel : public ::testing::TestWithParam<Variant> {};

INSTANTIATE_TEST_SUITE_P(Axes, ContextParallel, ::testing::ValuesIn(variants()),
                         [](const auto& info) { return info.param.name; });

TEST_P(ContextParallel, MatchesOneProcess) {
  const Variant& variant = GetParam();
  variant.needs.check();
  size_t which = 0;
  for (const Architecture& kind : {Architecture::gpt2(), Architecture::llama()}) {
    for (const bool is_tied : {true, false}) {
      // bf16 stands for few summands only: see prove().
      const size_t num_dtypes = variant.axes.size() == 1 ? kDtypes.size() : kDtypes.size() - 1;
      const auto& [dtype, compute_dtype] = kDtypes[which++ % num_dtypes];
      const bool is_bf16 = compute_dtype == at::kBFloat16;
      const ProveCase what{.name = variant.name,
                           .model = model_of(variant, kind, is_tied),
                           .axes = variant.axes,
                           .arrange = [&](Model& model, Mesh& mesh) { return arrange(variant, model, mesh); },
                           .num_micro_batches = is_bf16 ? 1 : 2,
                           .rows = (is_bf16 ? 2 : 4) * size_of(variant.axes, "dp"),
                           .has_documents = variant.has_documents,
                           .dtype = dtype,
                           .compute_dtype = compute_dtype};
      SCOPED_TRACE(what.to_string());
      const Proof proof = prove(what);
      EXPECT_TRUE(proof.holds()) << proof.to_string();
    }
  }
}

// ---- what prove does not see ----

struct Found {
  double loss = 0;
  std::string sample;
};

/// The loss of an evaluation with documents, and a sampled text.
Found found_on(const Variant& variant, Architecture kind, const Mesh& world_mesh, bool is_arranged) {
  Mesh mesh = world_mesh;
  ModelConfig config = model_of(variant, kind, false);
  config.vocabulary = 257;
  Model model(config);
  Arrangement arrangement = is_arranged ? arrange(variant, model, mesh) : Arrangement(whole_model(model, mesh));
  Engine engine(model, mesh, arrangement.strategy, {.seed = 7, .dtype = at::kDouble});
  const at::Tensor tokens = (at::arange(3 * (config.context + 1)) * 131).remainder(257).view({3, -1});
  MicroBatch batch{tokens.narrow(1, 0, config.context), tokens.narrow(1, 1, config.context), {}};
  batch.context.phase = Phase::evaluate;
  batch.context.documents = at::arange(config.context).floor_divide(5).expand({3, config.context});
  batch.context.positions = at::arange(config.context).remainder(5).expand({3, config.context});
  Found found;
  engine.begin_evaluation();
  found.loss = StageRunner(engine).evaluate(batch).item<double>() * engine.strategy().counts_loss(mesh);
  engine.end_evaluation();
  mesh.world().all_reduce({&found.loss, 1, Dtype::fp64}, {&found.loss, 1, Dtype::fp64}, ReduceOp::sum);
  generate(TextModel(engine), Tokenizer::bytes(), "Call me", 12, {.seed = 5}, [&](std::string_view piece) {
    found.sample += piece;
    return true;
  });
  return found;
}

TEST_P(ContextParallel, EvaluatesAndSamplesLikeOneProcess) {
  const Variant& variant = GetParam();
  for (const Architecture& kind : {Architecture::gpt2(), Architecture::llama()}) {
    Found want;
    on_mesh({{"dp", 1}}, [&](const Mesh& mesh) { want = found_on(variant, kind, mesh, false); });
    EXPECT_FALSE(want.sample.empty());
    const int copies = size_of(variant.axes, "dp");  // which evaluate the same rows here
    on_mesh(variant.axes, [&](const Mesh& mesh) {
      const Found got = found_on(variant, kind, mesh, true);
      EXPECT_NEAR(got.loss / copies / want.loss, 1, 1e-12);
      EXPECT_EQ(got.sample, want.sample);
    });
  }
}

/// Bytes that rank 1 sends in a forward pass of one layer, by a world that sends nothing.
int64_t forward_bytes(const Axes& axes, const ModelConfig& config) {
  const Variant variant{"", axes};
  int ranks = 1;
  for (const AxisSize& axis : axes) ranks *= axis.size;
  Mesh mesh = Mesh::create(make_record_world(1, ranks), axes);
  Model model(config);
  const Arrangement arrangement = arrange(variant, model, mesh);
  const auto meta = at::TensorOptions().device(at::kMeta);
  model.materialise(mesh, {}, {.device = at::kMeta});
  const at::Tensor ids = at::empty({2, config.context}, meta.dtype(at::kLong));
  const at::NoGradGuard no_grad;
  const int64_t before = mesh.bytes_sent();
  model.run({ids, ids}, {});
  return mesh.bytes_sent() - before;
}

TEST(ContextParallelBytes, MatchTheDocs) {
  ModelConfig config = shrunken({.arch = Architecture::llama(), .heads = 4, .kv_heads = 2});
  config.dropout = 0;
  config.layers = 1;
  const int64_t q = 2 * config.context / 4 * config.width * 4;  // of one of 4 ranks; k and v have half the heads
  EXPECT_EQ(forward_bytes({{"ring", 4}}, config), 3 * q);
  EXPECT_EQ(forward_bytes({{"ulysses", 4}}, config), 2 * q * 3 / 4 + 3 * q);
  config.kv_heads = 4;
  EXPECT_EQ(forward_bytes({{"ulysses", 4}}, config), 4 * q * 3 / 4);
}

std::string refusal(const Axes& axes, ModelConfig config, const ContextParallelOptions& options) {
  std::string text;
  on_mesh(axes, [&](const Mesh& mesh) {
    try {
      context_parallel(config, mesh, options);
    } catch (const Error& error) {
      if (mesh.rank() == 0) text = error.what();
    }
  });
  return text;
}

TEST(ContextParallelPlan, RefusesWhatDoesNotDivideWithTheNearestThatDoes) {
  ModelConfig config = shrunken({.arch = Architecture::llama(), .heads = 4, .kv_heads = 2});
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) == std::string::npos ? ::testing::AssertionFailure() << part << " is not in: " << text
                                                : ::testing::AssertionSuccess();
  };
  const std::string of_heads = refusal({{"cp", 3}}, config, {.ulysses = "cp"});
  EXPECT_TRUE(has(of_heads, "4 heads do not divide among the 3 ranks of cp"));
  EXPECT_TRUE(has(of_heads, "{1, 2, 4}"));
  config.context = 10;
  const std::string of_ring = refusal({{"cp", 2}}, config, {.ring = "cp"});
  EXPECT_TRUE(has(of_ring, "10 tokens does not split into 4 equal chunks"));
  EXPECT_TRUE(has(of_ring, "8 or 12"));
  EXPECT_TRUE(has(refusal({{"r", 2}, {"u", 2}}, config, {.ring = "r", .ulysses = "u"}), "a context of 8 or 16"));
  EXPECT_TRUE(refusal({{"cp", 2}}, config, {.ulysses = "cp"}).empty()) << "2 chunks are enough";
  EXPECT_TRUE(has(refusal({{"cp", 2}}, config, {}), "needs an axis"));
  EXPECT_TRUE(has(refusal({{"cp", 2}}, config, {.ring = "cp", .ulysses = "cp"}), "two different ones"));
  EXPECT_TRUE(has(refusal({{"cp", 2}}, config, {.ring = "dp"}), "dp"));
}

}  // namespace
}  // namespace caravan::testing::context_parallel_test
