#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "caravan/mesh/layout.h"

namespace caravan {

/// What a checkpoint is of, beside its tensors.
struct CheckpointInfo {
  int64_t step = 0;             ///< optimizer steps done
  int64_t position = 0;         ///< of the data: tokens consumed over all ranks
  int64_t optimizer_steps = 0;  ///< the optimizer's own count
  std::string recipe{};         ///< of the run, as TOML
  std::string model{};          ///< the model's config, as the config.json of Hugging Face
  std::string tokenizer_hash{};
  bool operator==(const CheckpointInfo&) const = default;
};

/// A piece of a tensor, and the shard file that holds it under `key`.
struct ManifestPiece {
  Box box;
  std::string file;
  std::string key;
};

struct ManifestTensor {
  std::vector<int64_t> shape;  ///< global
  std::string dtype;           ///< as safetensors spells it: "F32"
  std::vector<ManifestPiece> pieces;
};

struct ManifestFile {
  int64_t bytes = 0;
  std::string hash;  ///< XXH3-128 of the whole file, 32 hexadecimal digits
};

/// manifest.json of a checkpoint folder: what it holds, where, and how to know that it is whole.
struct Manifest {
  CheckpointInfo info;
  std::map<std::string, ManifestTensor> tensors;
  std::map<std::string, ManifestFile> files;

  std::string to_json() const;
  /// Reads and checks a manifest: known version and keys only, unaltered by its own hash, names without path
  /// separators, boxes inside their shapes that cover them exactly once, files that exist with the sizes told. Nothing
  /// is allocated from its numbers. Throws DataError naming `folder` and what is wrong.
  static Manifest read(const std::filesystem::path& folder);
};

/// "step_000250".
std::string checkpoint_name(int64_t step);
/// The checkpoints of a run folder, oldest first: folders of that name that hold a manifest.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& run);
/// The newest of them, or `path` itself if it is one. Throws DataError if there is none, saying what was looked for.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

}  // namespace caravan
