#include "caravan/train/model/load_weights.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include "caravan/base/content_hash.h"
#include "caravan/base/error.h"
#include "caravan/base/system/file.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/comm/calls/same.h"
#include "caravan/engine/engine.h"
#include "caravan/engine/training_state.h"
#include "caravan/formats/checkpoint/checkpoint.h"
#include "caravan/formats/huggingface/huggingface.h"
#include "caravan/formats/peft/peft.h"
#include "caravan/nn/lora.h"
#include "caravan/redistribute/piece.h"
#include "caravan/train/agreement.h"

namespace caravan {
namespace {

struct LoadedPiece {
  const Parameter* parameter;
  CheckpointPiece piece;
};

/// Whether a parameter means the same in the source; of another head only the pooler of a BERT with classes does.
bool is_kept(std::string_view name, const InitSource& source, const ModelConfig& model) {
  if (source.keeps_head || !model.is_of_head(name)) return true;
  return source.model.classes > 0 && model.classes > 0 && name.starts_with("head.transform.");
}

/// The pieces of the parameters of which `is_there` says that the source has them.
std::vector<LoadedPiece> pieces_of(Engine& engine, const std::function<bool(const std::string& name)>& is_there) {
  std::vector<LoadedPiece> pieces;
  for (Parameter* parameter : engine.model().parameters()) {
    if (!is_there(parameter->whole_name())) continue;
    pieces.push_back({parameter, checkpoint_piece(parameter->whole_name(), *parameter, parameter->sharded().detach(),
                                                  engine.mesh())});
  }
  return pieces;
}

std::set<std::string> names_of_pieces(const std::vector<LoadedPiece>& pieces) {
  std::set<std::string> names;
  for (const LoadedPiece& own : pieces) names.insert(own.piece.name);
  return names;
}

/// Calls fill(tensor) with the memory of a piece, or with a copy that is then written to disk.
void with_memory(Engine& engine, const LoadedPiece& own, const std::function<void(at::Tensor)>& fill) {
  const FlatState& state = engine.state();
  const at::Tensor& tensor = own.piece.tensor;
  if (!state.values.is_on_disk()) return fill(tensor);
  const at::Tensor copy = at::empty(tensor.sizes(), tensor.options());
  fill(copy);
  state.layout.write(state.values, *own.parameter, copy);
}

void hash_values(ContentHasher& hasher, const at::Tensor& values) {
  const at::Tensor bytes = values.contiguous();
  hasher.update(std::span(static_cast<const std::byte*>(bytes.const_data_ptr()), bytes.nbytes()));
}

void check_same(const Mesh& mesh, const ContentHash& hash) {
  refuse_different_data(find_disagreement(mesh.world(), {{"train.init_from", hash.hex()}}, "weights"));
}

/// The shapes in the source, which may have more positions than the model.
std::vector<int64_t> shape_in(const InitSource& source, const CheckpointPiece& piece, const ModelConfig& model) {
  std::vector<int64_t> shape = piece.shape;
  const bool is_positions = piece.name.ends_with("position.weight") && shape.front() == model.context;
  if (is_positions) shape.front() = source.model.context;
  return shape;
}

using ReadBox = std::function<void(const std::string& name, const Box& box, const at::Tensor& to)>;

/// The norms of the rows [begin, end) of a weight of the source: fp32.
at::Tensor norms_of_rows(const std::string& weight, int64_t columns, int64_t begin, int64_t end, const ReadBox& read) {
  constexpr int64_t kElementsAtOnce = int64_t{1} << 22;
  const int64_t at_once = std::max<int64_t>(1, kElementsAtOnce / columns);
  const at::Tensor norms = at::empty({end - begin}, at::kFloat);
  for (int64_t row = begin; row < end; row += at_once) {
    const int64_t count = std::min(at_once, end - row);
    const at::Tensor rows = at::empty({count, columns}, at::kFloat);
    read(weight, {{row, 0}, {count, columns}}, rows);
    norms.narrow(0, row - begin, count).copy_(rows.square_().sum(-1).sqrt_());
  }
  return norms;
}

/// Magnitudes start as the norms of the rows of the weights that the source has. Each rank reads the rows of its own,
/// whole, whatever part of the weight it holds.
void start_magnitudes(Engine& engine, const ReadBox& read) {
  std::map<std::string, int64_t> columns;
  for (const Parameter* parameter : engine.model().parameters()) {
    columns[parameter->whole_name()] = parameter->whole_shape().back();
  }
  const auto is_magnitude = [](const std::string& name) { return !weight_of_magnitude(name).empty(); };
  for (const LoadedPiece& own : pieces_of(engine, is_magnitude)) {
    if (own.piece.tensor.numel() == 0) continue;
    const std::string weight = weight_of_magnitude(own.piece.name);
    with_memory(engine, own, [&](const at::Tensor& to) {
      for (const PieceBox& box : own.piece.boxes) {
        const int64_t begin = box.global.offset.front();
        part_of(to, box).copy_(norms_of_rows(weight, columns.at(weight), begin, begin + box.global.size.front(), read));
      }
    });
  }
}

/// Whether the magnitudes follow from the weights of the source: neither it nor separate adapters have any.
bool starts_magnitudes(const ModelConfig& model, const InitSource& source) {
  return model.lora.is_used() && model.lora.dora && !source.model.lora.is_used() && source.adapter.empty();
}

/// Returns the names of what it has filled.
std::set<std::string> load_checkpoint(Engine& engine, const ModelConfig& model, const InitSource& source) {
  const Mesh& mesh = engine.mesh();
  CheckpointReader reader(source.folder);
  const MappedFile manifest(source.folder / kManifestName, "init_from");
  check_same(mesh, content_hash(manifest.bytes()));
  const auto is_there = [&](const std::string& name) {
    return is_kept(name, source, model) && (!is_of_adapter(name) || source.model.lora.is_used());
  };
  const std::vector<LoadedPiece> pieces = pieces_of(engine, is_there);
  std::vector<std::pair<std::string, std::vector<int64_t>>> wanted;
  for (const LoadedPiece& own : pieces) wanted.emplace_back(own.piece.name, shape_in(source, own.piece, model));
  for (const auto& [name, tensor] : reader.manifest().tensors) {
    if (is_training_state(name) || !is_kept(name, source, model)) wanted.emplace_back(name, tensor.shape);
  }
  reader.verify(mesh.world());
  reader.check(wanted);
  const auto fill = [&] {
    for (const LoadedPiece& own : pieces) {
      with_memory(engine, own, [&](const at::Tensor& to) { reader.read(own.piece.name, own.piece.boxes, to); });
    }
    if (!starts_magnitudes(model, source)) return;
    start_magnitudes(
        engine, [&](const std::string& name, const Box& box, const at::Tensor& to) { reader.read(name, box, to); });
  };
  all_or_none(mesh.world(), fill, "weights");
  return names_of_pieces(pieces);
}

/// Fills the pieces from a folder, each rank its own. Returns the names of what the folder has.
std::set<std::string> load_folder(Engine& engine, const ModelConfig& model, const InitSource& source) {
  const Mesh& mesh = engine.mesh();
  std::optional<HuggingfaceFolder> folder;
  all_or_none(
      mesh.world(),
      [&] { folder.emplace(open_huggingface(source.folder, {.may_be_missing = true, .new_classes = model.classes})); },
      "weights");
  // That all ranks have the same weights: config.json, what HuggingfaceWeights::fingerprint compares, and below every
  // byte of the parameters that all ranks hold whole, but magnitudes, which follow from them.
  check_same(mesh, folder->identity);
  // Without classes of its own, it has been read as a model with some: its head is then the pooler of a BERT, if any.
  const bool has_pooler = source.model.classes == 0 && model.classes > 0;
  const std::vector<LoadedPiece> pieces = pieces_of(engine, [&](const std::string& name) {
    return !is_of_adapter(name) && (has_pooler || is_kept(name, source, model)) && folder->weights.has(name);
  });
  ContentHasher hasher;
  const auto fill = [&] {
    for (const LoadedPiece& own : pieces) {
      if (own.piece.tensor.numel() == 0) continue;
      with_memory(engine, own, [&](const at::Tensor& to) {
        folder->weights.read(own.piece.name, own.piece.boxes, to);
        if (own.piece.num_replicas == mesh.size()) hash_values(hasher, to);
      });
    }
    if (!starts_magnitudes(model, source)) return;
    start_magnitudes(engine, [&](const std::string& name, const Box& box, const at::Tensor& to) {
      folder->weights.read(name, box, to);
    });
  };
  all_or_none(mesh.world(), fill, "weights");
  check_same(mesh, hasher.value());
  return names_of_pieces(pieces);
}

/// Fills the parameters that `whole` names, which every rank has read.
void fill(Engine& engine, const NamedTensors& whole) {
  ContentHasher hasher;
  std::map<std::string_view, at::Tensor> tensors;
  for (const auto& [name, tensor] : whole) {
    tensors.emplace(name, tensor);
    hash_values(hasher, tensor);
  }
  check_same(engine.mesh(), hasher.value());
  for (const LoadedPiece& own : pieces_of(engine, [&](const std::string& name) { return tensors.contains(name); })) {
    if (own.piece.tensor.numel() == 0) continue;
    with_memory(engine, own, [&](const at::Tensor& to) {
      to.copy_(piece_of(tensors.at(own.piece.name), own.piece.boxes).view(own.piece.tensor.sizes()));
    });
  }
}

}  // namespace

std::vector<std::string> load_weights(Engine& engine, const ModelConfig& model, const InitSource& source) {
  const at::NoGradGuard no_grad;
  std::set<std::string> filled =
      source.is_huggingface ? load_folder(engine, model, source) : load_checkpoint(engine, model, source);
  if (!source.adapter.empty()) {
    const NamedTensors adapters = read_peft(source.adapter, model);
    fill(engine, adapters);
    for (const auto& [name, tensor] : adapters) filled.insert(name);
  }
  engine.state().bump_version();
  std::vector<std::string> left;
  for (const Parameter* parameter : engine.model().parameters()) {
    const std::string& name = parameter->whole_name();
    if (!is_of_adapter(name) && !filled.contains(name) && (left.empty() || left.back() != name)) left.push_back(name);
  }
  return left;
}

}  // namespace caravan
