#include "caravan/checkpoint/state_checkpoint.h"

#include <ATen/ops/empty.h>

namespace caravan {
namespace {

using Spread = StatePiece::Spread;

Box whole_box(const at::Tensor& tensor) {
  return {std::vector<int64_t>(static_cast<size_t>(tensor.dim()), 0), tensor.sizes().vec()};
}

/// That this rank alone writes.
CheckpointPiece whole_piece(const StatePiece& piece) {
  return {.name = piece.name,
          .shape = piece.tensor.sizes().vec(),
          .box = whole_box(piece.tensor),
          .tensor = piece.tensor.contiguous()};
}

/// The shape of the tensor in a checkpoint of the same mesh.
std::vector<int64_t> global_shape(const StatePiece& piece, const Mesh& mesh) {
  if (piece.parameter == nullptr) return piece.tensor.sizes().vec();
  std::vector<int64_t> shape = piece.parameter->global_shape();
  if (piece.spread == Spread::per_coordinate) shape.insert(shape.begin(), mesh[piece.axis].size());
  return shape;
}

}  // namespace

std::vector<CheckpointPiece> checkpoint_pieces(const TrainingState& state, const Mesh& mesh) {
  std::vector<CheckpointPiece> all;
  state.walk([&](const StatePiece& piece) {
    switch (piece.spread) {
      case Spread::like_parameter:
      case Spread::per_coordinate:
        all.push_back(checkpoint_piece(piece.name, *piece.parameter, piece.tensor.contiguous(), mesh, piece.axis));
        return;
      case Spread::on_axis:
        all.push_back(whole_piece(piece));
        all.back().replica = mesh[piece.axis].coord();
        all.back().num_replicas = mesh[piece.axis].size();
        all.back().replica_axes = piece.axis;
        return;
      case Spread::everywhere:
        all.push_back(whole_piece(piece));
        all.back().replica = mesh.rank();
        all.back().num_replicas = mesh.size();
        all.back().replica_axes = "world";
        return;
      case Spread::on_rank_0:
        if (mesh.rank() != 0) return;
        all.push_back(whole_piece(piece));
        all.back().replica_axes = "rank 0";
        return;
    }
  });
  return all;
}

StateReader::StateReader(const TrainingState& state, const Mesh& mesh, CheckpointReader& reader, Options options)
    : state_(state), mesh_(mesh), reader_(reader), options_(std::move(options)) {
  state.walk([&](StatePiece piece) { pieces_.push_back(std::move(piece)); });
  for (const auto& [name, tensor] : reader.manifest().tensors) saved_.emplace(name, tensor.shape);
}

bool StateReader::is_required(const StatePiece& piece) const {
  if (piece.spread == Spread::per_coordinate || piece.spread == Spread::on_axis) return false;
  return !options_.is_model_alone || piece.kind == StatePiece::Kind::parameter ||
         piece.kind == StatePiece::Kind::buffer;
}

void StateReader::check() {
  std::vector<std::pair<std::string, std::vector<int64_t>>> wanted;
  for (const StatePiece& piece : pieces_) {
    const auto found = saved_.find(piece.name);
    std::vector<int64_t> shape = global_shape(piece, mesh_);
    if (is_required(piece)) {
      wanted.emplace_back(piece.name, std::move(shape));
    } else if (found != saved_.end() && piece.spread == Spread::per_coordinate) {
      if (!found->second.empty()) shape.front() = found->second.front();
      wanted.emplace_back(piece.name, std::move(shape));
    } else if (found != saved_.end() && piece.spread == Spread::on_axis) {
      wanted.emplace_back(piece.name, found->second);
    }
  }
  for (const auto& [name, shape] : saved_) {
    if (options_.may_leave_out && options_.may_leave_out(name)) wanted.emplace_back(name, shape);
  }
  reader_.check(wanted);
}

void StateReader::read() {
  for (const StatePiece& piece : pieces_) read_piece(piece);
  state_.walk_saved(saved_, [&](const StatePiece& piece) { read_piece(piece); });
}

void StateReader::read_piece(const StatePiece& piece) {
  const auto found = saved_.find(piece.name);
  if (piece.spread == Spread::per_coordinate) {
    if (!read_of_coordinate(piece)) return;
  } else if (piece.spread == Spread::on_axis) {
    if (found == saved_.end() || found->second != piece.tensor.sizes().vec()) return;  // begins anew
    fill(piece.name, whole_box(piece.tensor), piece.tensor);
  } else if (!is_required(piece)) {
    return;
  } else if (piece.spread == Spread::like_parameter) {
    const Parameter& parameter = *piece.parameter;
    fill(piece.name, local_box(parameter.global_shape(), parameter.rest_layout(), mesh_, parameter.name()),
         piece.tensor);
  } else {
    fill(piece.name, whole_box(piece.tensor), piece.tensor);
  }
  if (piece.loaded) piece.loaded();
}

/// Returns whether it has written the tensor.
bool StateReader::read_of_coordinate(const StatePiece& piece) {
  const MeshAxis& axis = mesh_[piece.axis];
  const at::Tensor& own = piece.tensor;
  const bool is_sum = piece.combine == StatePiece::Combine::sum;
  const auto found = saved_.find(piece.name);
  const int64_t before = found == saved_.end() ? 0 : found->second.front();
  if (before == 0 && !is_sum) return false;
  Box box = checkpoint_piece(piece.name, *piece.parameter, own, mesh_, piece.axis).box;
  if (before == axis.size()) {
    fill(piece.name, box, own);
    return true;
  }
  own.zero_();
  if (is_sum && axis.coord() != 0) return true;
  at::Tensor one = at::empty(own.sizes(), own.options());
  for (box.offset.front() = 0; box.offset.front() < before; ++box.offset.front()) {
    fill(piece.name, box, one);
    own.add_(one);
  }
  if (!is_sum) own.div_(static_cast<double>(before));
  return true;
}

/// `out` may be strided, as buffers of modules are.
void StateReader::fill(const std::string& name, const Box& box, const at::Tensor& out) {
  if (out.is_contiguous()) return reader_.read(name, box, out);
  at::Tensor read = at::empty(out.sizes(), out.options());
  reader_.read(name, box, read);
  out.copy_(read);
}

}  // namespace caravan
