#include "caravan/train/folder/dump.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/system/file.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/formats/huggingface/hf_names.h"
#include "caravan/formats/huggingface/text_settings.h"
#include "caravan/formats/peft/peft.h"
#include "caravan/formats/safetensors/tensor_file.h"
#include "caravan/module/join_tiles.h"
#include "caravan/redistribute/whole.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

/// The whole tensor of a piece that is laid out like the sharded `parameter`.
at::Tensor whole(const at::Tensor& piece, const Parameter& parameter, const Mesh& mesh) {
  return whole_tensor(piece, parameter.sharded_layout(), mesh, parameter.name());
}

/// Under the names of transformers, and of PEFT for adapters.
NamedTensors with_their_names(const ModelConfig& config, const NamedTensors& ours, TensorKind kind) {
  if (!config.lora.is_used()) return to_huggingface(config, ours, kind);
  NamedTensors theirs;
  // Frozen weights have no gradients.
  if (kind == TensorKind::values) theirs = to_huggingface(without_adapters(config), without_adapters(ours), kind);
  for (auto& adapter : to_peft(config, ours, kind)) theirs.push_back(std::move(adapter));
  return theirs;
}

void write_files(const fs::path& folder, int64_t step, RunState& state, const TrainBatch& global_batch,
                 const StepResult& result, const NamedTensors& parameters, const NamedTensors& gradients) {
  const ModelConfig& config = state.model().config();
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw_file_error("dump", folder, "cannot be made", error.value());
  write_file_durably(folder / "config.json",
                     huggingface_config(without_adapters(config), special_tokens(state.tokenizer())), "dump");
  NamedTensors batch{{"input_ids", global_batch.ids}, {"labels", global_batch.labels}};
  if (global_batch.positions.defined()) batch.emplace_back("position_ids", global_batch.positions);
  if (global_batch.documents.defined()) batch.emplace_back("document_ids", global_batch.documents);
  if (global_batch.token_types.defined()) batch.emplace_back("token_type_ids", global_batch.token_types);
  write_tensors(folder / "batch.safetensors", batch);
  write_tensors(folder / "parameters.safetensors", with_their_names(config, parameters, TensorKind::values),
                {{"format", "pt"}});
  write_tensors(folder / "gradients.safetensors", with_their_names(config, gradients, TensorKind::gradients),
                {{"format", "pt"}});
  const nlohmann::ordered_json metrics{{"step", step}, {"loss", result.loss}, {"grad_norm", result.grad_norm}};
  write_file_durably(folder / "metrics.json", metrics.dump(2) + "\n", "dump");
}

}  // namespace

void dump_step(const fs::path& dir, int64_t step, RunState& state, const TrainBatch& global_batch,
               const StepResult& result) {
  const at::NoGradGuard no_grad;
  const Mesh& mesh = state.engine().mesh();
  const FlatState& flat = state.engine().state();
  const std::vector<Parameter*> all = state.model().parameters();
  std::vector<Parameter*> trained;
  std::vector<at::Tensor> values, gradients_of_trained;
  for (Parameter* parameter : all) {
    values.push_back(whole(flat.layout.read(flat.values, *parameter), *parameter, mesh));
    if (!parameter->requires_grad()) continue;
    const at::Tensor gradient = whole(flat.layout.read(flat.gradients, *parameter), *parameter, mesh);
    trained.push_back(parameter);
    gradients_of_trained.push_back(gradient.to(parameter->sharded().scalar_type()) / result.loss_scale);
  }
  const NamedTensors parameters = join_tiles(all, values);
  const NamedTensors gradients = join_tiles(trained, gradients_of_trained);
  const auto write = [&] {
    write_files(dir / fmt::format("step_{}", step), step, state, global_batch, result, parameters, gradients);
  };
  on_rank_0(mesh.world(), write, "dump");
}

}  // namespace caravan
