#pragma once

#include <functional>
#include <string>
#include <vector>

#include "caravan/engine/training_state.h"
#include "caravan/formats/checkpoint/checkpoint.h"
#include "caravan/mesh/mesh.h"

namespace caravan {

/// What save_checkpoint writes of `state` on this rank. The tensors are those of the owners, or copies.
std::vector<CheckpointPiece> checkpoint_pieces(const TrainingState& state, const Mesh& mesh);

/// Reads a checkpoint into `state`, on any number of ranks: each tensor that `state` has, by its name. Of those with a
/// part for each coordinate of an axis, the checkpoint may have another number of parts, or one for all, and the other
/// way round; of those that the ranks of an axis share, it may have another shape, or none: see StatePiece.
class StateReader {
 public:
  struct Options {
    bool is_model_alone = false;  ///< parameters and buffers are there, all else that is required stays as it is
    /// Names of the checkpoint that may be unknown here. Empty: none.
    std::function<bool(const std::string& name)> may_leave_out{};
  };

  /// `state` and `reader` outlive this.
  StateReader(const TrainingState& state, const Mesh& mesh, CheckpointReader& reader, Options options);

  /// Throws as CheckpointReader::check. Nothing is changed.
  void check();
  /// After check(). Throws DataError for a tensor of another dtype; then some have been read.
  void read();

 private:
  bool is_required(const StatePiece& piece) const;
  void read_piece(const StatePiece& piece);
  void read_parts(const StatePiece& piece, int64_t parts, bool is_there);
  void fill(const std::string& name, const Box& box, const at::Tensor& out);

  const TrainingState& state_;
  Mesh mesh_;
  CheckpointReader& reader_;
  Options options_;
  std::vector<StatePiece> pieces_;
  StateOwner::Saved saved_;
};

}  // namespace caravan
