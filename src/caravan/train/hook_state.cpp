#include "caravan/train/hook_state.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

namespace caravan {
namespace {

/// Ranks that differ on other axes than that of the hook reduce other pieces, and share other tensors: each of these
/// places has names of its own.
std::string shared_prefix(const Mesh& mesh, const std::string& axis) {
  int index = 0;
  int count = 1;
  for (const MeshAxis& other : mesh.axes()) {
    if (other.name() == axis) continue;
    index = index * other.size() + other.coord();
    count *= other.size();
  }
  return fmt::format("{}shared.{} of {}.", kHookTensors, index, count);
}

/// Calls f(name in checkpoints, parameter, the piece of this rank) for each summand of each trained parameter.
template <class F>
void for_each_summand(Engine& engine, F f) {
  const FlatLayout& layout = engine.state().layout;
  for (const auto& [state, flat] : engine.strategy().hook->summands()) {
    for (const Slot& slot : layout.slots()) {
      if (!slot.parameter->requires_grad()) continue;
      f(kHookTensors + state + "." + slot.parameter->name(), *slot.parameter, layout.view(flat, *slot.parameter));
    }
  }
}

}  // namespace

std::vector<CheckpointPiece> hook_pieces(Engine& engine) {
  std::vector<CheckpointPiece> all;
  const auto& hook = engine.strategy().hook;
  if (hook == nullptr) return all;
  const Mesh& mesh = engine.mesh();
  const std::string& axis = engine.strategy().hook_axis;
  for_each_summand(engine, [&](const std::string& name, const Parameter& parameter, const at::Tensor& piece) {
    all.push_back(checkpoint_piece(name, parameter, piece, mesh, axis));
  });
  for (const auto& [name, tensor] : hook->shared()) {
    all.push_back({.name = shared_prefix(mesh, axis) + name,
                   .shape = tensor.sizes().vec(),
                   .box = {std::vector<int64_t>(static_cast<size_t>(tensor.dim()), 0), tensor.sizes().vec()},
                   .tensor = tensor,
                   .replica = mesh[axis].coord(),
                   .num_replicas = mesh[axis].size(),
                   .replica_axes = axis});
  }
  return all;
}

void read_hook(Engine& engine, CheckpointReader& reader) {
  const auto& hook = engine.strategy().hook;
  if (hook == nullptr) return;
  const auto& tensors = reader.manifest().tensors;
  const Mesh& mesh = engine.mesh();
  const MeshAxis& axis = mesh[engine.strategy().hook_axis];
  for_each_summand(engine, [&](const std::string& name, const Parameter& parameter, at::Tensor piece) {
    const auto found = tensors.find(name);
    piece.zero_();
    if (found == tensors.end()) return;
    const int64_t before = found->second.shape.front();
    Box box = checkpoint_piece(name, parameter, piece, mesh, axis.name()).box;
    if (before == axis.size()) return reader.read(name, box, piece);
    if (axis.coord() != 0) return;
    at::Tensor one = at::empty_like(piece);
    for (box.offset.front() = 0; box.offset.front() < before; ++box.offset.front()) {
      reader.read(name, box, one);
      piece.add_(one);
    }
  });
  const std::string shared = shared_prefix(mesh, axis.name());
  for (const auto& [name, tensor] : tensors) {
    if (!name.starts_with(shared)) continue;
    at::Tensor one = at::empty(tensor.shape, engine.state().gradients.options());
    reader.read(name, {std::vector<int64_t>(tensor.shape.size(), 0), tensor.shape}, one);
    hook->set_shared(name.substr(shared.size()), one);
  }
}

double hook_bytes(Engine& engine) {
  const auto& hook = engine.strategy().hook;
  if (hook == nullptr) return 0;
  double bytes = 0;
  for (const auto& [name, tensor] : hook->summands()) bytes += static_cast<double>(tensor.nbytes());
  for (const auto& [name, tensor] : hook->shared()) bytes += static_cast<double>(tensor.nbytes());
  return bytes;
}

}  // namespace caravan
