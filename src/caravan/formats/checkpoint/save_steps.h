#pragma once

#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "caravan/formats/checkpoint/checkpoint.h"

namespace caravan {

// The steps of a save. Every rank takes part in the first and the last, and writes its shard between them.

/// Creates the temporary folder that all ranks write into. Throws ResourceError on every rank.
std::filesystem::path begin_save(const std::filesystem::path& run, int64_t step, Communicator& world);

/// The pieces that this rank writes.
std::vector<const CheckpointPiece*> my_share(const std::vector<CheckpointPiece>& pieces);

/// Writes this rank's shard into `folder`, unless its pieces have no elements. Returns its entry in the manifest, as
/// JSON. Not collective: any thread. Throws ResourceError, also when asked to stop.
std::string write_shard(const std::filesystem::path& folder, const std::vector<const CheckpointPiece*>& pieces,
                        int rank, const std::stop_token& stop = {});

/// The manifest of a checkpoint with these shards: the results of write_shard, one for each rank.
Manifest manifest_of(const CheckpointInfo& info, const std::vector<std::string>& reports);

/// Publishes the checkpoint once all ranks have their shard() on disk. An error on one rank is thrown on every rank, as
/// ResourceError; then nothing new is left.
SavedCheckpoint end_save(const std::filesystem::path& run, const std::filesystem::path& aside,
                         const CheckpointInfo& info, Communicator& world, const std::function<std::string()>& shard);

/// prune_checkpoints by rank 0, after a save. The new checkpoint exists by then, so a failure does not end the run:
/// returns it as a warning.
std::string prune_or_warn(const std::filesystem::path& run, int64_t keep);

}  // namespace caravan
