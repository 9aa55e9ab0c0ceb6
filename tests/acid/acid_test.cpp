#include <cmath>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/data/tokenizer/tokenizer.h"
#include "caravan/formats/checkpoint/state_checkpoint.h"
#include "caravan/generate/generate.h"
#include "caravan/nn/loss/ignored_label.h"
#include "caravan/optim/optimizer.h"
#include "caravan/redistribute/redistribute.h"
#include "caravan/step/train_step.h"
#include "caravan/techniques/recompute/recompute.h"
#include "tests/acid/techniques/column_row.h"
#include "tests/acid/techniques/one_f_one_b.h"
#include "tests/acid/techniques/shard_everything.h"
#include "tests/data/support.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing::acid_test {
namespace {

/// Everything at once: sharded state x column/row split x full recompute x deferred weight gradients x two pipeline
/// stages, on 8 ranks, against one process. Each technique is a file in techniques/ of at most 80 lines, written
/// against public headers; none of them knows the others.

constexpr int64_t kRows = 24, kLength = 8;
constexpr int kMicroBatches = 4;
constexpr int64_t kSteps = 3;
using Named = std::map<std::string, at::Tensor>;

struct Acid {
  Architecture arch;
  at::ScalarType rest;
  at::ScalarType leaf;
  double tolerance;
  std::string name;
  Axes axes{{"pp", 2}, {"dp", 2}, {"tp", 2}};
  bool freezes_first_stage = false;
};

ModelConfig config_of(Architecture kind) {
  const bool is_gpt2 = kind == Architecture::gpt2();
  return {.arch = kind,
          .layers = 3,
          .width = 16,
          .heads = 4,
          .kv_heads = is_gpt2 ? 0 : 2,
          .context = kLength,
          .vocabulary = 257,  // odd, and enough for the byte tokenizer
          .hidden = 24,
          .tie_embeddings = is_gpt2,
          .dropout = 0.1};
}

/// One parameter is frozen, and the modules of one norm are skipped: its parameters are unused.
Hook make_uneven(Model& model, bool freezes_first_stage) {
  for (const char* module : {"embedding", "blocks.0", "blocks.1"}) {
    if (!freezes_first_stage) break;
    for (Parameter* parameter : model.find(module).parameters()) parameter->set_requires_grad(false);
  }
  model.find("blocks.0.mlp_norm").own_parameters()[0]->set_requires_grad(false);
  const auto skip = [](Module&, Tensors inputs, const ForwardContext&, const Next&) { return inputs; };
  return model.find("blocks.1.attention_norm").add_hook(skip);
}

/// Fills with values that depend only on name and global index. None is zero: zero biases would hide faults.
void fill(const Engine& engine) {
  const at::NoGradGuard no_grad;
  for (const Slot& slot : engine.state().layout.slots()) {
    const Parameter& parameter = *slot.parameter;
    const Box box = local_box(parameter.global_shape(), parameter.sharded_layout(), engine.mesh());
    at::Tensor piece = random_tensor(parameter.global_shape(), std::hash<std::string>()(parameter.name())) * 0.3;
    if (parameter.spec().init.kind == Init::Kind::ones) piece = piece + 1;
    for (size_t dim = 0; dim < box.size.size(); ++dim) {
      piece = piece.narrow(static_cast<int64_t>(dim), box.offset[dim], box.size[dim]);
    }
    engine.state().layout.view(engine.state().values, parameter).copy_(piece);
  }
}

at::Tensor all_ids() { return (at::arange(kRows * (kLength + 1)) * 131 + 7).remainder(257).view({kRows, kLength + 1}); }

TrainBatch batch_of(const Engine& engine, int64_t step) {
  const at::Tensor all = (all_ids() + step * 5).remainder(257);
  at::Tensor labels = all.narrow(1, 1, kLength).contiguous();
  // Rows have different numbers of targets.
  for (int64_t row = 0; row < kRows; ++row) labels[row].narrow(0, 0, row % 5) = kIgnoredLabel;
  return piece_of_rank(engine, {.ids = all.narrow(1, 0, kLength),
                                .labels = labels,
                                .global_rows = kRows,
                                .num_targets = labels.ge(0).sum().item<int64_t>()});
}

/// What a run found: the same on every rank.
struct Found {
  std::vector<double> losses, norms;
  std::vector<Named> gradients;  ///< by step
  Named parameters;              ///< after the last step
  double evaluation = 0;         ///< after step 1
  std::string sample;            ///< after step 1
};

at::Tensor whole(const at::Tensor& piece, const Parameter& parameter, const Mesh& mesh) {
  return redistribute(piece, parameter.sharded_layout(), Layout::all(mesh, Invariant{}), mesh, parameter.name());
}

void save(Engine& engine, Optimizer& optimizer, const std::filesystem::path& folder) {
  TrainingState state;
  state.add(state_of_model(engine));
  state.add(optimizer);
  save_checkpoint(folder, {.step = 2}, checkpoint_pieces(state, engine.mesh()), engine.mesh().world(), 0);
}

void load(Engine& engine, Optimizer& optimizer, const std::filesystem::path& checkpoint) {
  const at::NoGradGuard no_grad;
  TrainingState state;
  state.add(state_of_model(engine));
  state.add(optimizer);
  CheckpointReader reader(checkpoint);
  reader.verify(engine.mesh().world());
  StateReader tensors(state, engine.mesh(), reader, {});
  tensors.check();
  tensors.read();
}

double evaluate_once(Engine& engine) {
  StageRunner runner(engine);
  TrainBatch batch = batch_of(engine, 17);
  const ForwardContext context{.phase = Phase::evaluate, .loss_scale = 1.0 / static_cast<double>(batch.num_targets)};
  engine.begin_evaluation();
  const at::Tensor loss = runner.evaluate({batch.ids, batch.labels, context});
  engine.end_evaluation();
  double sum = 0;
  bool counts = loss.defined();
  for (const auto& [axis, placement] : engine.strategy().loss_layout.entries()) {
    counts = counts && (!placement.is_invariant() || engine.mesh()[axis].coord() == 0);
  }
  if (counts) sum = loss.item<double>();
  engine.mesh().world().all_reduce({&sum, 1, Dtype::fp64}, {&sum, 1, Dtype::fp64}, ReduceOp::sum);
  return sum;
}

std::string sample(Engine& engine) {
  std::string text;
  generate(TextModel(engine), Tokenizer::bytes(), "Call", 8, {.seed = 5}, [&](std::string_view piece) {
    text += piece;
    return true;
  });
  return text;
}

/// Steps `first` .. 3, with everything that happens between them.
Found train(Engine& engine, Optimizer& optimizer, int64_t first, int micro_batches,
            const std::filesystem::path& folder) {
  Found found;
  const Mesh& mesh = engine.mesh();
  TrainStep step(engine, optimizer, {.seed = 3, .num_micro_batches = micro_batches, .clip_norm = 0.5});
  for (int64_t i = first; i < kSteps; ++i) {
    const auto inspect = [&](const StepResult&) {
      const at::NoGradGuard no_grad;
      Named gradients;
      for (const Slot& slot : engine.state().layout.slots()) {
        if (!slot.parameter->requires_grad()) continue;
        const at::Tensor piece = engine.state().layout.view(engine.state().gradients, *slot.parameter);
        gradients[slot.parameter->name()] = whole(piece, *slot.parameter, mesh).clone();
      }
      found.gradients.push_back(std::move(gradients));
    };
    const StepResult result = step.run(batch_of(engine, i), i, 0.1, false, inspect);
    found.losses.push_back(result.loss);
    found.norms.push_back(result.grad_norm);
    if (i == 0) found.evaluation = evaluate_once(engine);
    if (i == 0) found.sample = sample(engine);
    if (i == 1 && !folder.empty()) save(engine, optimizer, folder);
  }
  const at::NoGradGuard no_grad;
  for (const Parameter* parameter : engine.model().parameters()) {
    found.parameters[parameter->name()] = whole(parameter->sharded().detach(), *parameter, mesh).clone();
  }
  return found;
}

/// One process; from a checkpoint if there is one.
Found one_process(const Acid& acid, int64_t first, const std::filesystem::path& checkpoint) {
  Found found;
  on_mesh({{"pp", 1}, {"dp", 1}, {"tp", 1}}, [&](const Mesh& mesh) {
    Model model(config_of(acid.arch));
    const Hook uneven = make_uneven(model, acid.freezes_first_stage);
    Strategy strategy = whole_model(model, mesh);
    strategy.compute_dtype = acid.leaf;
    strategy.find_unused_parameters = true;
    Engine engine(model, mesh, strategy, {.dtype = acid.rest});
    fill(engine);
    Sgd optimizer(engine.state(), {.momentum = 0.9, .weight_decay = 0.01});
    if (first > 0) load(engine, optimizer, checkpoint);
    optimizer.set_num_steps(first);
    found = train(engine, optimizer, first, 1, {});
  });
  return found;
}

std::vector<Found> many_ranks(const Acid& acid, const std::filesystem::path& folder) {
  std::vector<Found> ranks(static_cast<size_t>(num_ranks(acid.axes)));
  on_mesh(acid.axes, [&](const Mesh& world_mesh) {
    Mesh mesh = world_mesh;
    Model model(config_of(acid.arch));
    const Hook uneven = make_uneven(model, acid.freezes_first_stage);
    const std::vector<int64_t> part{kRows / mesh["dp"].size() / kMicroBatches, kLength};
    Strategy strategy = whole_model(model, mesh);
    add_plan(strategy,
             std::make_shared<AppliedPlan>(apply(fitted(column_row("tp"), model), model, mesh, {part, part}, {part})));
    add_recompute(strategy, model);
    add_stages(strategy, mesh, "pp", {0, 0, 0, 1, 1});
    run_one_f_one_b(strategy);
    shard_everything(strategy, mesh, "dp");
    strategy.compute_dtype = acid.leaf;
    strategy.find_unused_parameters = true;
    Engine engine(model, mesh, strategy, {.dtype = acid.rest});
    fill(engine);
    Sgd optimizer(engine.state(), {.momentum = 0.9, .weight_decay = 0.01});
    ranks[static_cast<size_t>(mesh.rank())] = train(engine, optimizer, 0, kMicroBatches, folder);
  });
  return ranks;
}

/// |a - b| / |b|, where b counts as at least 1e-2 of the largest: the gradient of a key bias is rounding alone.
double apart(const Named& a, const Named& b, std::string& worst) {
  double largest = 0;
  double most = 0;
  for (const auto& [name, tensor] : b) largest = std::max(largest, tensor.abs().max().item<double>());
  for (const auto& [name, tensor] : b) {
    const at::Tensor wide = tensor.to(at::kDouble);
    const double floor = 1e-2 * largest * std::sqrt(static_cast<double>(tensor.numel()));
    const double distance =
        (a.at(name).to(at::kDouble) - wide).norm().item<double>() / (wide.norm().item<double>() + floor);
    if (!(distance <= most)) worst = name;
    most = std::max(most, std::isnan(distance) ? INFINITY : distance);
  }
  return most;
}

void expect_equal(const Found& got, const Found& want, double tolerance) {
  ASSERT_EQ(got.losses.size(), want.losses.size());
  std::string worst;
  for (size_t i = 0; i < want.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i] / want.losses[i], 1, tolerance) << "loss of step " << i;
    EXPECT_NEAR(got.norms[i] / want.norms[i], 1, tolerance) << "norm of step " << i;
    const double distance = apart(got.gradients[i], want.gradients[i], worst);
    EXPECT_LE(distance, tolerance) << "gradient of " << worst << " in step " << i;
  }
  const double distance = apart(got.parameters, want.parameters, worst);
  EXPECT_LE(distance, tolerance) << "parameter " << worst;
}

class AcidTest : public ::testing::TestWithParam<Acid> {};

TEST_P(AcidTest, ManyRanksMatchOneProcess) {
  const TemporaryFolder folder;
  const Acid& acid = GetParam();
  const Found want = one_process(acid, 0, {});
  const std::vector<Found> ranks = many_ranks(acid, folder / "run");
  for (const Found& got : ranks) {
    expect_equal(got, want, acid.tolerance);
    EXPECT_NEAR(got.evaluation / want.evaluation, 1, acid.tolerance);
    if (acid.leaf != at::kBFloat16) {  // there rounding decides between likely tokens
      EXPECT_EQ(got.sample, want.sample);
    }
    EXPECT_EQ(got.losses, ranks[0].losses);
    EXPECT_EQ(got.norms, ranks[0].norms);
  }
  EXPECT_GT(want.gradients[0].size(), acid.freezes_first_stage ? 5U : 20U);

  Found rest = one_process(acid, 2, folder / "run" / "step_000002");
  EXPECT_NEAR(rest.losses[0] / want.losses[2], 1, acid.tolerance) << "resumed on one rank";
  std::string worst;
  EXPECT_LE(apart(rest.parameters, want.parameters, worst), acid.tolerance) << worst << ", resumed on one rank";
}

// fp64: only rounding. fp32: sums in another order; 1e-5 is a hundred roundings, a missing summand is 1e-2 or more.
// bf16: both sides round activations and weights to 8 bits; partial sums of two halves round once more (2^-9 each).
INSTANTIATE_TEST_SUITE_P(
    Models, AcidTest,
    ::testing::Values(
        Acid{Architecture::gpt2(), at::kDouble, at::kFloat, 1e-12, "gpt2_fp64"},
        Acid{Architecture::llama(), at::kDouble, at::kFloat, 1e-12, "llama_fp64"},
        Acid{Architecture::gpt2(), at::kFloat, at::kFloat, 1e-5, "gpt2_fp32"},
        Acid{Architecture::llama(), at::kFloat, at::kFloat, 1e-5, "llama_fp32"},
        Acid{Architecture::gpt2(), at::kFloat, at::kBFloat16, 0.05, "gpt2_bf16"},
        Acid{Architecture::llama(), at::kFloat, at::kBFloat16, 0.05, "llama_bf16"},
        Acid{Architecture::gpt2(), at::kDouble, at::kFloat, 1e-12, "gpt2_pp2_tp2", {{"pp", 2}, {"dp", 1}, {"tp", 2}}},
        Acid{Architecture::llama(), at::kDouble, at::kFloat, 1e-12, "llama_pp2_dp3", {{"tp", 1}, {"dp", 3}, {"pp", 2}}},
        Acid{Architecture::llama(),
             at::kDouble,
             at::kFloat,
             1e-12,
             "llama_frozen",
             {{"pp", 2}, {"dp", 2}, {"tp", 1}},
             true}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace caravan::testing::acid_test
