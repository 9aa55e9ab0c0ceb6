#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/formats/checkpoint/checkpoint.h"
#include "caravan/mesh/mesh.h"
#include "caravan/redistribute/piece.h"

namespace caravan::testing {

/// Whole tensors by name, which a test saves and reads.
using Whole = std::map<std::string, at::Tensor>;

inline int ranks_of(const std::vector<AxisSize>& axes) {
  int ranks = 1;
  for (const AxisSize& axis : axes) ranks *= axis.size;
  return ranks;
}

/// Runs `body` on thread ranks with a mesh. Calls time out after 20 s.
inline void on_ranks(const std::vector<AxisSize>& axes, const std::function<void(const Mesh&)>& body) {
  run_thread_ranks(ranks_of(axes), [&](const auto& world) { body(Mesh::create(world, axes)); },
                   {.timeout = std::chrono::seconds(20)});
}

/// This rank's piece of `whole` in a layout.
inline CheckpointPiece piece_of(const std::string& name, const at::Tensor& whole, const Layout& layout,
                                const Mesh& mesh) {
  Parameter parameter(name, {.shape = whole.sizes().vec()});
  const Layout all = layout.completed(mesh, Invariant{});
  parameter.set_sharded(caravan::piece_of(whole, local_boxes(whole.sizes().vec(), all, mesh, name)).contiguous(), all);
  return checkpoint_piece(name, parameter, parameter.sharded(), mesh);
}

/// Every tensor replicated on every rank.
inline std::vector<CheckpointPiece> invariant_pieces(const Whole& tensors, const Mesh& mesh) {
  std::vector<CheckpointPiece> pieces;
  for (const auto& [name, tensor] : tensors) pieces.push_back(piece_of(name, tensor, {}, mesh));
  return pieces;
}

inline std::vector<std::pair<std::string, std::vector<int64_t>>> names_and_shapes(const Whole& tensors) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> all;
  for (const auto& [name, tensor] : tensors) all.emplace_back(name, tensor.sizes().vec());
  return all;
}

inline at::Tensor read_whole(CheckpointReader& reader, const std::string& name, const at::Tensor& like) {
  at::Tensor out = at::empty_like(like);
  reader.read(name, {std::vector<int64_t>(static_cast<size_t>(like.dim()), 0), like.sizes().vec()}, out);
  return out;
}

}  // namespace caravan::testing
