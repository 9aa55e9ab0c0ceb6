#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "caravan/formats/checkpoint/checkpoint.h"

namespace caravan {

/// Saves checkpoints during training: copies what this rank writes, and writes the copy on a separate thread, which
/// does not communicate. Between steps the ranks check whether all have written; then rank 0 publishes. So a kill at
/// any moment leaves the earlier checkpoint whole. (Mohan et al., CheckFreq, FAST 2021.)
///
/// The copy takes as many bytes as this rank writes, from the first save on. Every rank of `world`, which outlives
/// this, calls each method, at the same steps.
class BackgroundSave {
 public:
  explicit BackgroundSave(Communicator& world);
  /// Bytes on this rank of the copy of `pieces`, those of a checkpoint.
  static int64_t bytes_of_copy(const std::vector<CheckpointPiece>& pieces);
  /// Abandons a save in progress.
  ~BackgroundSave();

  /// Copies and returns; the pieces may change afterwards. Finish an earlier save first. Throws ResourceError on every
  /// rank if the folder cannot be made.
  void begin(const std::filesystem::path& run, CheckpointInfo info, const std::vector<CheckpointPiece>& pieces);
  bool is_running() const noexcept { return running_ != nullptr; }
  /// The checkpoint, if all ranks have written it since. Sends 8 bytes a rank. Throws as save_checkpoint, on every rank
  /// if one could not write.
  std::optional<SavedCheckpoint> poll();
  /// Waits for the save.
  SavedCheckpoint finish();
  /// Removes all but the `keep` newest checkpoints, as prune_checkpoints, in the background: rank 0 calls it after a
  /// save. The next save returns its warning.
  void prune(const std::filesystem::path& run, int64_t keep);

 private:
  struct Running;
  std::vector<CheckpointPiece> copied(const std::vector<const CheckpointPiece*>& mine);

  Communicator& world_;
  at::Tensor buffer_;  ///< of the copies; grows
  std::unique_ptr<Running> running_;
  std::string warning_;   ///< warning of pruning_
  std::jthread pruning_;  ///< last: it uses the others
};

}  // namespace caravan
