#include "caravan/formats/huggingface/load_model.h"

#include <algorithm>
#include <optional>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "caravan/base/content_hash.h"
#include "caravan/base/error.h"
#include "caravan/base/system/file.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/comm/calls/same.h"
#include "caravan/engine/average_tensor.h"
#include "caravan/engine/training_state.h"
#include "caravan/formats/checkpoint/checkpoint.h"
#include "caravan/formats/huggingface/config_text.h"
#include "caravan/formats/huggingface/huggingface.h"
#include "caravan/module/finite.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

StoredModel stored_folder(const fs::path& folder) {
  HuggingfaceFolder read = open_huggingface(folder, {.may_be_missing = true});
  const auto weights = std::make_shared<HuggingfaceWeights>(std::move(read.weights));
  const TensorShapes shapes = our_shapes(read.config);
  return {.config = read.config,
          .tokenizer = std::move(read.tokenizer),
          .text = std::move(read.text),
          .origin = folder.string(),
          .has_head = std::ranges::all_of(shapes, [&](const auto& of) { return weights->has(of.first); }),
          .identity = read.identity.hex(),
          .verify = [](Communicator& /*world*/) {},
          .read =
              [weights](const std::string& name, const std::vector<PieceBox>& boxes, const at::Tensor& out) {
                if (!weights->has(name)) return static_cast<void>(out.zero_());
                weights->read(name, boxes, out);
              }};
}

/// The tensors that a checkpoint of this model has.
NamedShapes wanted_tensors(const CheckpointReader& reader, const ModelConfig& config) {
  NamedShapes wanted;
  const Model model(config);
  for (const Parameter* parameter : model.parameters())
    wanted.emplace_back(parameter->name(), parameter->global_shape());
  for (const auto& [name, tensor] : reader.manifest().tensors) {
    if (is_training_state(name)) wanted.emplace_back(name, tensor.shape);
  }
  return wanted;
}

[[noreturn]] void refuse_average(const std::string& origin) {
  throw UsageError({"load", origin, "has no average of its weights", "",
                    "leave the average out, or train with optimizer.average, e.g. 0.999"});
}

void check_weights(const CheckpointReader& reader, StoredWeights weights, const std::string& origin) {
  if (weights == StoredWeights::last) return;
  const std::string prefix = average_tensor("");
  const auto is_average = [&](const auto& tensor) { return tensor.first.starts_with(prefix); };
  if (std::ranges::none_of(reader.manifest().tensors, is_average)) refuse_average(origin);
}

StoredModel stored_checkpoint(const fs::path& folder, StoredWeights weights) {
  const auto reader = std::make_shared<CheckpointReader>(folder);
  const fs::path run = fs::absolute(folder).lexically_normal().parent_path();
  const fs::path beside = folder.filename().empty() ? run.parent_path() : run;
  const Tokenizer tokenizer = Tokenizer::load(beside / "tokenizer.json");
  if (tokenizer.hash().hex() != reader->info().tokenizer_hash) {
    throw DataError({"load", (beside / "tokenizer.json").string(), "is not the tokenizer the model was trained with",
                     folder.string(), "restore the file that the run wrote"});
  }
  const ModelConfig config = parse_config_text(reader->info().model, folder.string());
  int64_t stored = 0;
  for (const auto& [name, tensor] : reader->manifest().tensors) {
    for (const ManifestPiece& piece : tensor.pieces) stored += piece.box.num_elements();
  }
  if (config.num_parameters() > stored) {  // before names are created for the huge model of a damaged config
    throw DataError({"load", folder.string(),
                     fmt::format("holds {} numbers, but its model has {} parameters", stored, config.num_parameters()),
                     "", "use an older checkpoint of the same run"});
  }
  check_weights(*reader, weights, folder.string());
  TextSettings text{parse_special_tokens(reader->info().model, folder.string()), read_text_files(beside)};
  const auto read = [reader, weights, origin = folder.string()](
                        const std::string& name, const std::vector<PieceBox>& boxes, const at::Tensor& out) {
    const std::string average = average_tensor(name);  // which frozen parameters lack
    const bool is_averaged = weights == StoredWeights::average && reader->manifest().tensors.contains(average);
    reader->read(is_averaged ? average : name, boxes, out);
    if (all_finite(out)) return;
    throw DataError({"load", origin, name + " has values that are not finite", "",
                     "use an earlier checkpoint of the run: its training has diverged"});
  };
  return {.config = config,
          .tokenizer = tokenizer,
          .text = std::move(text),
          .origin = folder.string(),
          .identity = content_hash(MappedFile(folder / kManifestName, "load").bytes()).hex(),
          .verify =
              [reader, config](Communicator& world) {
                reader->verify(world);
                all_or_none(
                    world, [&] { reader->check(wanted_tensors(*reader, config)); }, "checkpoint");
              },
          .read = read};
}

LoadedModel filled(StoredModel stored, const Mesh& mesh) {
  if (!stored.has_head) refuse_base_model(stored.origin, "head.weight");
  stored.verify(mesh.world());
  std::unique_ptr<Model> model = make_model(stored.config);
  model->materialise(mesh, {}, {.initialise = false});
  const auto read = [&] {
    for (const Parameter* parameter : model->parameters()) {
      const std::vector<int64_t>& shape = parameter->global_shape();
      const std::vector<int64_t> zeros(shape.size(), 0);
      stored.read(parameter->name(), {{{zeros, shape}, zeros}}, parameter->sharded().detach());
    }
  };
  all_or_none(mesh.world(), read, "weights");
  return {std::move(model), std::move(stored.tokenizer), std::move(stored.text), stored.origin, stored.identity};
}

bool is_huggingface(const fs::path& source) {
  std::error_code error;
  return fs::exists(source / "config.json", error);
}

}  // namespace

StoredModel open_model(const fs::path& source, StoredWeights weights) {
  if (!is_huggingface(source)) return stored_checkpoint(find_checkpoint(source), weights);
  if (weights == StoredWeights::average) refuse_average(source.string());
  return stored_folder(source);
}

StoredModel open_same_model(const fs::path& folder, Communicator& world, StoredWeights weights) {
  std::optional<StoredModel> stored;
  all_or_none(
      world, [&] { stored.emplace(open_model(folder, weights)); }, "model");
  check_same_on_all_ranks(world, "load", {{"the model", stored->identity}}, "model");
  return std::move(*stored);
}

void with_model_folder(const fs::path& source, Communicator& world, const std::function<void(const fs::path&)>& use) {
  const auto find = [&] {
    return is_huggingface(source) ? "" : find_checkpoint(source).lexically_relative(source).string();
  };
  for (int attempt = 0;; ++attempt) {
    const std::string name = text_of_rank_0(world, find, "model");  // ranks may have the run at other paths
    const fs::path folder = name.empty() || name == "." ? source : source / name;
    try {
      return use(folder);
    } catch (const DataError&) {
      constexpr int kMostAttempts = 10;
      std::error_code error;
      int64_t is_gone = folder != source && !fs::exists(folder, error) ? 1 : 0;
      take_maxima(world, {&is_gone, 1}, "model");
      if (attempt == kMostAttempts || is_gone == 0) throw;
    }
  }
}

LoadedModel load_model(const fs::path& source, const Mesh& mesh, StoredWeights weights) {
  const at::NoGradGuard no_grad;
  std::optional<LoadedModel> loaded;
  with_model_folder(source, mesh.world(), [&](const fs::path& folder) {
    loaded.emplace(filled(open_same_model(folder, mesh.world(), weights), mesh));
  });
  return std::move(*loaded);
}

}  // namespace caravan
