#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "caravan/base/error.h"

namespace caravan {

/// Publishes checkpoints in a run folder and removes them. Each function is called by one rank, which holds the run's
/// lock. Names that begin with ".step_" are not checkpoints, but unfinished work and leftovers of killed processes.

/// Creates the empty folder into which checkpoint `step` of `run` is written before it is published.
std::filesystem::path make_checkpoint_aside(const std::filesystem::path& run, int64_t step);

/// Flushes `aside` and renames it to `target` atomically, even if a folder of that name exists: after a crash either
/// the old or the new one exists. `train` replaces a folder only if it has no manifest, such as one that was copied in
/// part: a resume skips it and reaches its step again. Throws ResourceError.
void publish_checkpoint(const std::filesystem::path& aside, const std::filesystem::path& target);

/// Makes `run`/best a link to the checkpoint of `step`, in place of an earlier one. Throws ResourceError.
void mark_best_checkpoint(const std::filesystem::path& run, int64_t step);
/// The step of the checkpoint that `run`/best links to; -1 if there is none.
int64_t best_checkpoint_step(const std::filesystem::path& run);

/// Removes all but the `keep` newest checkpoints (0: none), but never the best one, nor one without a step of training,
/// since imported weights cannot be regenerated. Each is renamed before it is deleted, so that a partial checkpoint is
/// never mistaken for a whole one. Also removes leftovers of killed processes. Throws ResourceError.
void prune_checkpoints(const std::filesystem::path& run, int64_t keep);

/// Restores a checkpoint whose replacement was interrupted on a file system that cannot exchange two names.
void restore_checkpoints(const std::filesystem::path& run);

/// Renames the checkpoints of later steps than `step`, which are not part of a run that is resumed from there, to
/// step_NNNNNN.abandoned[-N]. Returns their new names.
std::vector<std::filesystem::path> abandon_later_checkpoints(const std::filesystem::path& run, int64_t step);

/// Reads all of a checkpoint. Throws DataError naming the first file that is missing, truncated or altered.
void verify_checkpoint(const std::filesystem::path& folder);

/// The newest checkpoint of `run` of an earlier step than `step` that is intact; empty if there is none.
std::filesystem::path newest_whole_checkpoint(const std::filesystem::path& run, int64_t step);

/// Rethrows `error`, which reading checkpoint `folder` threw. If the checkpoint is damaged, the message says so and
/// names the newest intact one of the run.
[[noreturn]] void refuse_damaged(const std::filesystem::path& folder, const DataError& error);

}  // namespace caravan
