#include "caravan/train/model/load_weights.h"

#include <ATen/core/grad_mode.h>

#include "caravan/base/content_hash.h"
#include "caravan/base/error.h"
#include "caravan/base/system/file.h"
#include "caravan/comm/calls/same.h"
#include "caravan/engine/training_state.h"
#include "caravan/formats/checkpoint/checkpoint.h"
#include "caravan/formats/huggingface/huggingface.h"
#include "caravan/formats/peft/peft.h"
#include "caravan/nn/lora.h"
#include "caravan/redistribute/piece.h"
#include "caravan/train/agreement.h"

namespace caravan {
namespace {

/// The pieces of the parameters that `source` has, or of all others.
std::vector<CheckpointPiece> pieces_of(Model& model, const Mesh& mesh, const InitSource& source, bool has = true) {
  std::vector<CheckpointPiece> pieces;
  for (Parameter* parameter : model.parameters()) {
    const bool is_there = !is_of_adapter(parameter->name()) || source.model.lora.is_used();
    if (is_there != has) continue;
    pieces.push_back(checkpoint_piece(parameter->name(), *parameter, parameter->sharded().detach(), mesh));
  }
  return pieces;
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

void load_checkpoint(Model& model, const Mesh& mesh, const InitSource& source) {
  CheckpointReader reader(source.folder);
  const MappedFile manifest(source.folder / kManifestName, "init_from");
  check_same(mesh, content_hash(manifest.bytes()));
  const std::vector<CheckpointPiece> pieces = pieces_of(model, mesh, source);
  std::vector<std::pair<std::string, std::vector<int64_t>>> wanted;
  for (const CheckpointPiece& piece : pieces) {
    wanted.emplace_back(piece.name, shape_in(source, piece, model.config()));
  }
  for (const auto& [name, tensor] : reader.manifest().tensors) {
    if (is_training_state(name)) wanted.emplace_back(name, tensor.shape);
  }
  reader.verify(mesh.world());
  reader.check(wanted);
  for (const CheckpointPiece& piece : pieces) reader.read(piece.name, piece.box, piece.tensor);
}

/// Fills the pieces, in the order of the whole tensors, which every rank has read.
void fill(const std::vector<CheckpointPiece>& pieces, const NamedTensors& whole, const Mesh& mesh) {
  ContentHasher hasher;
  for (const auto& [name, tensor] : whole) {
    const at::Tensor bytes = tensor.contiguous();
    hasher.update(std::span(static_cast<const std::byte*>(bytes.const_data_ptr()), bytes.nbytes()));
  }
  check_same(mesh, hasher.value());
  for (size_t i = 0; i < pieces.size(); ++i) {
    const CheckpointPiece& piece = pieces[i];
    if (piece.tensor.numel() == 0) continue;
    piece.tensor.copy_(piece_of(whole[i].second, piece.box).view(piece.tensor.sizes()));
  }
}

}  // namespace

void load_weights(Model& model, const Mesh& mesh, const InitSource& source) {
  const at::NoGradGuard no_grad;
  if (source.is_huggingface) {
    fill(pieces_of(model, mesh, source), read_huggingface(source.folder).parameters, mesh);
  } else {
    load_checkpoint(model, mesh, source);
  }
  if (source.adapter.empty()) return;
  fill(pieces_of(model, mesh, source, /*has=*/false), read_peft(source.adapter, model.config()), mesh);
}

}  // namespace caravan
