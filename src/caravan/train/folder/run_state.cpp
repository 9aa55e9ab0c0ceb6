#include "caravan/train/folder/run_state.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/system/file.h"
#include "caravan/base/text.h"
#include "caravan/data/tasks/sequence_pair.h"
#include "caravan/formats/checkpoint/publish.h"
#include "caravan/formats/huggingface/config_text.h"
#include "caravan/train/model/load_weights.h"
#include "caravan/train/model/measured_costs.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

std::string name_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return "fp32";
    case at::kDouble: return "fp64";
    case at::kBFloat16: return "bf16";
    case at::kHalf: return "fp16";
    default: return c10::toString(type);
  }
}

}  // namespace

ModelConfig model_config(const Recipe& recipe, const Tokenizer& tokenizer) {
  ModelConfig config = recipe.model;
  if (config.vocabulary == 0) config.vocabulary = tokenizer.vocab_size();
  if (config.vocabulary < tokenizer.vocab_size()) {
    throw UsageError({"train", "model.vocabulary",
                      fmt::format("{} rows for a tokenizer of {} tokens", config.vocabulary, tokenizer.vocab_size()),
                      recipe.where("model.vocabulary"), "leave it out, or use at least as many as there are tokens"});
  }
  return config;
}

RunState::RunState(const Recipe& recipe, const Tokenizer& tokenizer, const Mesh& mesh, RunOrigin origin)
    : recipe_(recipe),
      tokenizer_(tokenizer),
      tokens_(special_tokens(tokenizer)),
      mesh_(mesh),
      origin_(std::move(origin)),
      rate_(recipe.optimizer.rate) {
  rate_.total_steps = recipe.train.steps;
  tokens_.classes = origin_.class_names;
  const std::string& task = recipe.data.task.kind;
  if (task == "pairs" || task == "spans") tokens_.prompt_end = end_token(tokenizer, task.c_str());
  const ModelConfig config = model_config(recipe, tokenizer);
  if (config.has_encoder()) tokens_.decoder_start = filling_token(tokenizer);
  UnitCosts costs;
  if (recipe.pipeline.is_used() && recipe.pipeline.measures()) costs = measured_costs(recipe, config, mesh);
  trained_ = std::make_unique<TrainedModel>(recipe, config, mesh_, costs);
}

std::string RunState::stages() const {
  if (trained_->engine->strategy().pipeline_axis.empty()) return "";
  std::vector<std::pair<std::string, std::string>> ends;  // by stage: the first and the last
  for (const Units::Unit& unit : trained_->engine->state().layout.units().units) {
    if (unit.parent >= 0) continue;
    if (static_cast<int>(ends.size()) <= unit.stage) ends.emplace_back(unit.name, "");
    ends.back().second = unit.name;
  }
  std::string text;
  for (const auto& [first, last] : ends) {
    text += (text.empty() ? "" : " | ") + first + (first == last ? "" : " to " + last);
  }
  return text;
}

std::string RunState::dtypes() const {
  const FlatState& state = trained_->engine->state();
  const at::Tensor leaf = state.layout.slots().front().parameter->unsharded();
  const auto moments = trained_->optimizer->state();
  return fmt::format("parameters {}, compute {}, gradients {}, reduction {}{}", name_of(state.values.scalar_type()),
                     name_of(leaf.scalar_type()), name_of(state.gradients.scalar_type()),
                     name_of(trained_->engine->reduce_dtype()),
                     moments.empty() ? "" : ", optimizer " + name_of(moments.front().second.scalar_type()));
}

CheckpointInfo RunState::info(const TaskRows& rows) const {
  return {.step = step,
          .position = rows.position(step * recipe_.train.global_batch),
          .optimizer_steps = trained_->optimizer->num_steps(),
          .clocks = clocks,
          .recipe = to_toml(recipe_),
          .model = config_text(trained_->model->config(), tokens_),
          .tokenizer_hash = tokenizer_.hash().hex(),
          .train_hash = origin_.train_hash,
          .validation_hash = origin_.validation_hash,
          .numerics = origin_.numerics};
}

void RunState::load(const fs::path& folder, const TaskRows& rows) {
  try {
    read(folder, rows);
  } catch (const DataError& error) {
    refuse_damaged(folder, error);
  }
}

/// Those of another model, or of a checkpoint; what the run learns is its own.
void RunState::take_tokens(SpecialTokens source) {
  const SpecialTokens own = std::exchange(tokens_, std::move(source));
  tokens_.classes = own.classes;
  tokens_.prompt_end = own.prompt_end;
  if (!tokens_.decoder_start) tokens_.decoder_start = own.decoder_start;
}

std::vector<std::string> RunState::start_from(const InitSource& source) {
  std::vector<std::string> left = load_weights(*trained_->engine, trained_->model->config(), source);
  take_tokens(source.tokens);
  return left;
}

void RunState::read(const fs::path& folder, const TaskRows& rows) {
  CheckpointReader reader(folder);
  const CheckpointInfo& info = reader.info();
  changed_keys_ = check_resumed_run(info, folder.string(),
                                    {.recipe = recipe_,
                                     .model = trained_->model->config(),
                                     .tokenizer_hash = tokenizer_.hash().hex(),
                                     .train_hash = origin_.train_hash,
                                     .validation_hash = origin_.validation_hash});
  if (info.position != rows.position(info.step * recipe_.train.global_batch)) {
    throw DataError({"resume", folder.string(),
                     fmt::format("its data position {} does not fit its step {}", info.position, info.step), "",
                     "resume with the recipe.toml of that run"});
  }
  const at::NoGradGuard no_grad;
  const auto is_moment = [](const auto& tensor) { return tensor.first.starts_with(kOptimizerTensors); };
  const bool has_moments = std::ranges::any_of(reader.manifest().tensors, is_moment);
  const auto is_of_technique = [](const std::string& name) {
    return name.starts_with(kHookTensors) || name.starts_with(kStepperTensors) || name == kSpikeTensor;
  };
  SpecialTokens tokens = parse_special_tokens(info.model, folder.string());
  const auto classes = classes_of_records(tokens);
  if (tokens.classes != origin_.class_names && classes != origin_.class_names) {
    throw UsageError(
        {"resume", "data.classes",
         fmt::format("are {} here, and {} in {}", join(origin_.class_names), join(classes), folder.string()),
         recipe_.where("data.classes"), "leave it out, or start a new run with train.init_from"});
  }
  StateReader state(trained_->tensors, mesh_, reader,
                    {.is_model_alone = info.optimizer_steps == 0 && !has_moments,  // imported weights
                     .may_leave_out = is_of_technique});                           // that this run may not have
  reader.verify(mesh_.world());
  state.check();
  state.read();
  trained_->engine->state().bump_version();
  trained_->optimizer->set_num_steps(info.optimizer_steps);
  take_tokens(std::move(tokens));
  step = info.step;
  clocks = info.clocks;
}

void write_run_files(const fs::path& run, const Recipe& recipe, const Tokenizer& tokenizer) {
  std::error_code error;
  fs::create_directories(run, error);
  if (error) throw_file_error("train", run, "cannot be made", error.value());
  write_file_durably(run / "recipe.toml", to_toml(recipe), "train");
  tokenizer.save(run / "tokenizer.json");
}

}  // namespace caravan
