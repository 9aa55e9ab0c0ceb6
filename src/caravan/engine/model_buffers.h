#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/engine/attendance.h"
#include "caravan/engine/gradients/transfer.h"

namespace caravan {

/// At the end of every step, makes the buffers of a model equal on the ranks of the data axes, where each forward
/// updates them from other rows. So evaluation and checkpoints see the same on every rank.
///
///   Buffers::broadcast  buffers become those of coordinate 0 (the first that has a batch). PyTorch's broadcast_buffers
///                       does this before the next forward, with the same training
///   Buffers::average    floating-point ones become their mean over the ranks that have a batch, others as above
///   Buffers::local      buffers stay unchanged
///
/// One collective for each dtype and data axis: a step sends their bytes once, except on the last rank of a broadcast
/// (average: 2(n-1)/n times). Holds a copy of the buffers.
class ModelBuffers {
 public:
  /// Takes the present buffers of `model`; those without elements are ignored.
  ModelBuffers(Module& model, const Strategy& strategy, const Mesh& mesh);

  /// Starts the collectives: the buffers have their new values when `transfers` are complete. Every rank of the mesh
  /// calls it.
  void start(TransferQueue& transfers, const Attendance& attendance);

 private:
  /// Buffers of one dtype.
  struct Set {
    at::Tensor flat;
    std::vector<at::Tensor> buffers;
    bool is_averaged = false;
  };
  void collect(const Set& set) const;
  void spread(const Set& set) const;
  TransferStages::Stage stage_of(const Set& set, const MeshAxis& axis, int source) const;

  std::vector<MeshAxis> axes_;
  std::vector<Set> sets_;
};

}  // namespace caravan
