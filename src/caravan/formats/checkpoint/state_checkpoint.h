#pragma once

#include <functional>
#include <string>
#include <vector>

#include "caravan/engine/training_state.h"
#include "caravan/formats/checkpoint/checkpoint.h"
#include "caravan/mesh/mesh.h"

namespace caravan {

/// The pieces of `state` that save_checkpoint writes on this rank. Their tensors are those of the owners, or copies.
std::vector<CheckpointPiece> checkpoint_pieces(const TrainingState& state, const Mesh& mesh);

/// Reads a checkpoint into `state`, on any number of ranks: each tensor that `state` has, by name. The checkpoint may
/// have another number of parts of a tensor with a part for each coordinate of an axis, or a single one, and vice
/// versa; a tensor shared by the ranks of an axis may have another shape, or be missing: see StatePiece.
class StateReader {
 public:
  struct Options {
    bool is_model_alone = false;  ///< only parameters and buffers are present; all other required state stays unchanged
    /// Checkpoint names that may be unknown here. Empty: none.
    std::function<bool(const std::string& name)> may_leave_out{};
  };

  /// `state` and `reader` outlive this.
  StateReader(const TrainingState& state, const Mesh& mesh, CheckpointReader& reader, Options options);

  /// Throws as CheckpointReader::check. Changes nothing.
  void check();
  /// Call check() first. Throws DataError for a tensor of another dtype, after some may have been read.
  void read();

 private:
  bool is_required(const StatePiece& piece) const;
  void read_piece(const StatePiece& piece);
  void read_parts(const StatePiece& piece, int64_t parts, bool is_there);

  const TrainingState& state_;
  Mesh mesh_;
  CheckpointReader& reader_;
  Options options_;
  std::vector<StatePiece> pieces_;
  StateOwner::Saved saved_;
};

}  // namespace caravan
