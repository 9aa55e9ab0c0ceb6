#include "caravan/formats/checkpoint/state_checkpoint.h"

#include <optional>

#include <ATen/ops/empty.h>

namespace caravan {
namespace {

using Spread = StatePiece::Spread;

std::vector<PieceBox> whole_boxes(const at::Tensor& tensor) {
  const std::vector<int64_t> start(static_cast<size_t>(tensor.dim()), 0);
  return {{{start, tensor.sizes().vec()}, start}};
}

/// A piece that this rank alone writes.
CheckpointPiece whole_piece(const StatePiece& piece) {
  return {.name = piece.name,
          .shape = piece.tensor.sizes().vec(),
          .boxes = whole_boxes(piece.tensor),
          .tensor = piece.tensor.contiguous()};
}

/// The shape of the tensor in a checkpoint of the same mesh; tiles are pieces of what they are cut from.
std::vector<int64_t> global_shape(const StatePiece& piece, const Mesh& mesh) {
  if (piece.parameter == nullptr) return piece.tensor.sizes().vec();
  std::vector<int64_t> shape = piece.parameter->whole_shape();
  if (piece.spread == Spread::per_coordinate) shape.insert(shape.begin(), mesh[piece.axis].size());
  return shape;
}

/// The number of parts of a tensor in a checkpoint with a part for each coordinate of an axis; 0 if there is one for
/// all. Nothing if it is neither.
std::optional<int64_t> num_parts(const StatePiece& piece, const std::vector<int64_t>& saved) {
  if (piece.parameter == nullptr) return std::nullopt;
  std::vector<int64_t> shape = piece.parameter->whole_shape();
  if (saved == shape) return 0;
  if (saved.empty() || piece.kind == StatePiece::Kind::parameter) return std::nullopt;
  shape.insert(shape.begin(), saved.front());
  return saved == shape ? std::optional(saved.front()) : std::nullopt;
}

}  // namespace

std::vector<CheckpointPiece> checkpoint_pieces(const TrainingState& state, const Mesh& mesh) {
  std::vector<CheckpointPiece> all;
  state.walk([&](const StatePiece& piece) {
    switch (piece.spread) {
      case Spread::like_parameter:
      case Spread::per_coordinate:
        all.push_back(checkpoint_piece(piece.name, *piece.parameter,
                                       piece.read ? piece.tensor : piece.tensor.contiguous(), mesh, piece.axis));
        all.back().read = piece.read;
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
  using Kind = StatePiece::Kind;
  if (piece.kind == Kind::residual || piece.kind == Kind::shared || piece.kind == Kind::window) return false;
  return !options_.is_model_alone || piece.kind == Kind::parameter || piece.kind == Kind::buffer;
}

void StateReader::check() {
  std::vector<std::pair<std::string, std::vector<int64_t>>> wanted;
  for (const StatePiece& piece : pieces_) {
    const auto found = saved_.find(piece.name);
    const bool is_there = found != saved_.end();
    if (!is_there && !is_required(piece)) continue;
    const bool has_any_shape =
        is_there && (piece.spread == Spread::on_axis || num_parts(piece, found->second).has_value());
    wanted.emplace_back(piece.name, has_any_shape ? found->second : global_shape(piece, mesh_));
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
  const bool is_there = found != saved_.end();
  if (piece.spread == Spread::on_axis) {
    if (!is_there || found->second != piece.tensor.sizes().vec()) return;  // starts anew
    reader_.read(piece.name, whole_boxes(piece.tensor), piece.tensor);
  } else if (piece.parameter != nullptr) {
    if (piece.read) {
      StatePiece copy = piece;
      copy.tensor = at::empty(piece.tensor.sizes(), piece.tensor.options());
      copy.read = nullptr;
      copy.loaded = [&] { piece.write(copy.tensor); };
      read_piece(copy);
      if (piece.loaded) piece.loaded();
      return;
    }
    const bool sums = piece.spread == Spread::per_coordinate && piece.combine == StatePiece::Combine::sum;
    if (!is_there && !sums) return;
    read_parts(piece, is_there ? num_parts(piece, found->second).value_or(0) : 0, is_there);
  } else {
    if (!is_there) return;
    reader_.read(piece.name, whole_boxes(piece.tensor), piece.tensor);
  }
  if (piece.loaded) piece.loaded();
}

/// Reads from a tensor of `parts` coordinates, or, if that is 0, of one for all.
void StateReader::read_parts(const StatePiece& piece, int64_t parts, bool is_there) {
  const Parameter& parameter = *piece.parameter;
  const at::Tensor& own = piece.tensor;
  const std::vector<PieceBox> boxes =
      parameter.in_whole(local_boxes(parameter.global_shape(), parameter.sharded_layout(), mesh_, parameter.name()));
  const bool has_parts = piece.spread == Spread::per_coordinate;
  const bool sums = has_parts && piece.combine == StatePiece::Combine::sum;
  const int coord = has_parts ? mesh_[piece.axis].coord() : 0;
  if (sums && parts != mesh_[piece.axis].size() && (coord != 0 || !is_there)) {
    own.zero_();
    return;
  }
  if (parts == 0) return reader_.read(piece.name, boxes, own);
  const auto read_part = [&](int64_t part, const at::Tensor& out) {
    std::vector<PieceBox> of_part = boxes;
    for (PieceBox& box : of_part) box = of_coordinate(std::move(box), part);
    reader_.read(piece.name, of_part, out.unsqueeze(0));
  };
  if (has_parts && parts == mesh_[piece.axis].size()) return read_part(coord, own);
  own.zero_();
  const at::Tensor one = at::empty(own.sizes(), own.options());
  for (int64_t part = 0; part < parts; ++part) {
    read_part(part, one);
    own.add_(one);
  }
  if (!sums) own.div_(static_cast<double>(parts));
}

}  // namespace caravan
