#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "caravan/base/system/file_lock.h"
#include "caravan/comm/communicator.h"
#include "caravan/formats/checkpoint/manifest.h"
#include "caravan/train/train.h"

namespace caravan {

/// The run folder, chosen and locked by rank 0, on every rank.
struct Place {
  FileLock lock;  ///< on rank 0
  std::filesystem::path folder;
  std::filesystem::path checkpoint;    ///< to resume from; empty: none
  std::optional<Numerics> numerics{};  ///< of the checkpoint, on rank 0
  int64_t micro_batch = 0;             ///< of the checkpoint's recipe, on rank 0; 0: none
  std::vector<std::string> notes{};    ///< on rank 0
  std::string fill{};                  ///< data.fill of the checkpoint's recipe; "": none that a resume must keep
  std::string experts{};               ///< lora.experts of it, "true" or "false"; "": it has no adapters
};

/// Opens the run folder on rank 0 and, for a resume, finds the checkpoint; every rank gets both paths, absolute. Every
/// rank of `world` calls it. Throws on every rank as open_run_folder does, DataError for a damaged checkpoint, and
/// UsageError for one that does not exist.
Place share_place(const TrainOptions& options, Communicator& world);

/// Takes data.fill and lora.experts from the run that is resumed, unless the recipe gives them: their defaults have
/// changed.
void keep_defaults(Recipe& recipe, const Place& place);

/// The recipe as the run keeps it: with absolute paths, so that it is independent of the current folder. Throws
/// UsageError for a path that is not UTF-8.
Recipe recipe_to_keep(const TrainOptions& options);

/// `path` relative to the current folder if it is below it, for messages.
std::filesystem::path shown(const std::filesystem::path& path);

}  // namespace caravan
