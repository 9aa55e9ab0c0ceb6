#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "caravan/checkpoint/checkpoint.h"

namespace caravan {

/// Saves checkpoints while training goes on: what this rank writes is copied, and a thread of its own writes the copy.
/// The thread does not communicate. Between steps the ranks ask each other whether all have written; then rank 0
/// publishes. So a kill at any moment leaves the earlier checkpoint whole. (Mohan et al., CheckFreq, FAST 2021.)
///
/// The copy takes as many bytes as this rank writes, from the first save on. Every rank of `world`, which outlives
/// this, calls each method, at the same steps.
class BackgroundSave {
 public:
  explicit BackgroundSave(Communicator& world);
  /// Gives up a save in progress.
  ~BackgroundSave();

  /// Copies and returns; the pieces may change afterwards. Finish an earlier save first. Throws ResourceError on every
  /// rank if the folder cannot be made.
  void begin(const std::filesystem::path& run, CheckpointInfo info, const std::vector<CheckpointPiece>& pieces,
             int64_t keep);
  bool is_running() const noexcept { return running_ != nullptr; }
  /// The checkpoint, if all ranks have written it meanwhile. Sends 8 bytes a rank. Throws as save_checkpoint on every
  /// rank if one could not write.
  std::optional<SavedCheckpoint> poll();
  /// Waits for it.
  SavedCheckpoint finish();

 private:
  struct Running;
  std::vector<CheckpointPiece> copied(const std::vector<const CheckpointPiece*>& mine);

  Communicator& world_;
  at::Tensor buffer_;  ///< of the copies; grows
  std::unique_ptr<Running> running_;
};

}  // namespace caravan
