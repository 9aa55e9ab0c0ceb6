#include "caravan/train/model/reference_model.h"

#include <array>
#include <filesystem>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/tensor.h"
#include "caravan/recipe/init_from.h"
#include "caravan/registry/compose.h"
#include "caravan/techniques/make_strategy.h"

namespace caravan {
namespace {

constexpr const char* kKey = "preference.reference";

at::ScalarType compute_dtype(const Recipe& recipe) {
  StrategyChoice choice;
  set_dtypes(choice, recipe.precision);
  return choice.compute_dtype;
}

/// A pass of the run's own model needs all ranks at the same place.
void check_own(const Recipe& recipe) {
  const Demand together{Trait::whole_gradient, kKey,
                        "runs the model of the step without its adapters, on all ranks at once",
                        "set preference.reference to the folder of the weights under them"};
  if (const auto misfit = find_misfit(techniques_of(recipe), {{together}})) {
    recipe.refuse(misfit->key, misfit->fact, misfit->action);
  }
}

void check_is_there(const Recipe& recipe, const std::string& folder) {
  std::error_code error;
  if (folder.empty() || std::filesystem::exists(folder, error)) return;
  throw DataError({"train", kKey, fmt::format("there is no folder {}", folder), recipe.where(kKey),
                   "if it was moved, give its new place: --set preference.reference=FOLDER"});
}

void check_folder(const Recipe& recipe, const ModelConfig& config, const std::string& origin) {
  if (!config.arch.is_causal || config.has_encoder() || config.classes > 0) {
    recipe.refuse(kKey, origin + " does not continue texts", "use a language model");
  }
  if (config.arch.positions == Positions::learned && config.context < recipe.model.context) {
    recipe.refuse(kKey,
                  fmt::format("{} has learned {} positions, and model.context is {}", origin, config.context,
                              recipe.model.context),
                  fmt::format("use model.context = {}", config.context));
  }
}

}  // namespace

PreferenceSettings preference_settings(const PreferenceChoice& choice) {
  const bool is_dpo = choice.loss == "dpo";
  return {.kind = is_dpo ? PreferenceKind::dpo : PreferenceKind::ipo,
          .beta = choice.beta,
          .label_smoothing = is_dpo ? choice.label_smoothing : 0};
}

ReferenceModel::ReferenceModel(const Recipe& recipe, const Tokenizer& tokenizer, Engine& engine, const Mesh& mesh)
    : settings_(preference_settings(recipe.data.task.preference)), engine_(engine) {
  const std::string folder = reference_folder(recipe);
  check_is_there(recipe, folder);
  if (folder.empty()) {
    check_own(recipe);
    own_runner_.emplace(engine);
    return;
  }
  folder_.emplace(FrozenModel::beside(folder, mesh, compute_dtype(recipe), kKey));
  folder_->check_companion(tokenizer, "the run", "train", kKey);
  check_folder(recipe, folder_->config(), folder_->origin());
}

ReferenceModel::ReferenceModel(const Recipe& recipe, Engine& engine, const Mesh& mesh)
    : settings_(preference_settings(recipe.data.task.preference)), engine_(engine) {
  const std::string folder = reference_folder(recipe);
  check_is_there(recipe, folder);
  if (folder.empty()) {
    check_own(recipe);
    own_runner_.emplace(engine);
    return;
  }
  const ModelConfig config = read_init_source(folder).model;
  check_folder(recipe, config, folder);
  folder_.emplace(FrozenModel::rehearsed(config, mesh, compute_dtype(recipe), kKey));
}

std::string ReferenceModel::to_string() const { return folder_ ? folder_->origin() : "the weights under the adapters"; }

void ReferenceModel::score(TrainBatch& batch, int64_t num_micro_batches) {
  const at::NoGradGuard no_grad;
  std::optional<EvaluationScope> scope;
  if (!folder_) scope.emplace(engine_, /*of_step=*/true);
  score_micro_batches(batch, num_micro_batches);
}

void ReferenceModel::score_micro_batches(TrainBatch& batch, int64_t num_micro_batches) {
  batch.preference = PreferencePass{.settings = settings_};
  std::vector<at::Tensor> parts;
  for (int64_t index = 0; index < num_micro_batches; ++index) {
    MicroBatch micro = micro_batch_of(batch, num_micro_batches, static_cast<int>(index), 0, 0);
    micro.context.phase = Phase::evaluate;
    micro.context.leaves_out_adapters = !folder_;
    const at::Tensor own = folder_ ? folder_->run(micro) : own_runner_->evaluate(micro);
    parts.push_back(own.defined() ? own : at::zeros({micro.ids.size(0)}, batch.ids.options().dtype(at::kDouble)));
  }
  const at::Tensor all = at::cat(parts);
  // The stages of a run may lie the other way round: every rank of the pipeline gets the numbers.
  const Mesh& mesh = engine_.mesh();
  if (mesh.has("pp")) {
    all_reduce_async(mesh["pp"].comm(), all, all, ReduceOp::sum, "reference log probabilities").wait();
  }
  batch.preference->reference = all.view({batch.ids.size(0), batch.sequences});
  batch.preference->sums = sums_;
}

at::Tensor ReferenceModel::evaluate(StageRunner& runner, const at::Tensor& ids, const at::Tensor& labels) {
  TrainBatch pairs{.ids = ids, .labels = labels, .global_rows = ids.size(0)};
  pairs.sequences = 2;
  score_micro_batches(pairs, 1);
  MicroBatch whole = micro_batch_of(pairs, 1, 0, 0, 0);
  whole.context.phase = Phase::evaluate;
  return runner.evaluate(whole);
}

std::optional<RewardMeans> ReferenceModel::take_rewards() {
  const PreferenceSums own = std::exchange(*sums_, {});
  std::array<double, 4> all{};
  if (engine_.strategy().counts_loss(engine_.mesh())) all = {own.pairs, own.chosen, own.rejected, own.right};
  const Buffer buffer{all.data(), static_cast<int64_t>(all.size()), Dtype::fp64};
  engine_.mesh().world().all_reduce(buffer, buffer, ReduceOp::sum, "rewards");
  const double pairs = all[0];
  if (pairs == 0) return std::nullopt;
  return RewardMeans{.chosen = all[1] / pairs, .rejected = all[2] / pairs, .accuracy = all[3] / pairs};
}

}  // namespace caravan
