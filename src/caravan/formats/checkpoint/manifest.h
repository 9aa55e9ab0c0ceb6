#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "caravan/mesh/layout.h"

namespace caravan {

/// The file that makes a folder a checkpoint.
inline constexpr const char* kManifestName = "manifest.json";

/// What the bits of a run depend on besides its recipe: for example, the number of threads determines the order of
/// sums.
struct Numerics {
  int64_t ranks = 0;             ///< 0: not known
  int64_t threads_per_rank = 0;  ///< 0: not known, or not the same on all ranks
  std::string products{};        ///< which library computes which matrix product (nn/product/product.h); "": not known
  bool operator==(const Numerics&) const = default;
};

/// The optimizer of a user's program: its options, and the counts of its learning-rate schedulers.
struct OptimizerRecord {
  struct Group {
    std::map<std::string, double> options;  ///< by name: "lr", "weight_decay"; a flag is 0 or 1
    std::vector<std::string> parameters;
    bool operator==(const Group&) const = default;
  };
  std::string kind{};                 ///< "adamw"; "": not known
  std::vector<Group> groups{};        ///< parameters with the same options
  std::vector<int64_t> schedulers{};  ///< steps of each, in the order in which they were added
  bool operator==(const OptimizerRecord&) const = default;
};

/// Everything about a checkpoint except its tensors.
struct CheckpointInfo {
  int64_t step = 0;             ///< optimizer steps done
  int64_t position = 0;         ///< in the data: tokens consumed over all ranks
  int64_t optimizer_steps = 0;  ///< the optimizer's own step count
  /// Steps that each rank has done, if ranks do not wait for each other (AsyncTrainer); `step` is the smallest.
  std::vector<int64_t> clocks{};
  std::map<std::string, int64_t> counters{};  ///< counters of a user's program, by name
  std::string recipe{};                       ///< of the run, as TOML
  std::string model{};                        ///< the model's config (formats/huggingface/config_text.h)
  std::string tokenizer_hash{};
  std::string train_hash{};       ///< of the training text and the tokenizer; "": not known
  std::string validation_hash{};  ///< of the validation text and the tokenizer
  Numerics numerics{};
  OptimizerRecord optimizer{};
  bool operator==(const CheckpointInfo&) const = default;
};

/// A piece of a tensor: the tensor of the same name, or `key`, in the shard `file`.
struct ManifestPiece {
  Box box;
  std::string file;
  std::string key{};  ///< "": the name of the tensor, of which the shard has one piece
};

struct ManifestTensor {
  std::vector<int64_t> shape;         ///< global
  std::string dtype;                  ///< as safetensors spells it: "F32"
  std::vector<ManifestPiece> pieces;  ///< empty for a tensor without elements
};

struct ManifestFile {
  int64_t bytes = 0;
  std::string hash;  ///< XXH3-128 of the whole file, 32 hexadecimal digits
};

/// manifest.json of a checkpoint folder: its tensors, their location, and the hashes that show it is complete.
struct Manifest {
  CheckpointInfo info;
  std::map<std::string, ManifestTensor> tensors;
  std::map<std::string, ManifestFile> files;

  /// A longer manifest is refused, both in writing and in reading.
  static constexpr int64_t kMostBytes = int64_t{1} << 30;

  std::string to_json() const;
  /// Reads and checks a manifest: version and keys are known, its own hash matches, file names have no path separators,
  /// the boxes of a tensor cover its shape exactly once, and the files exist with the recorded sizes. Allocates nothing
  /// by its numbers. Throws DataError naming `folder` and what is wrong.
  static Manifest read(const std::filesystem::path& folder);
};

/// "step_000250".
std::string checkpoint_name(int64_t step);
/// The step of a checkpoint folder by its name; -1 if it has no such name.
int64_t step_of(const std::filesystem::path& checkpoint);
/// The checkpoints of a run folder, oldest first: folders with such a name and a manifest.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& run);
/// `path` itself if it is a checkpoint, else the newest checkpoint in it. Throws DataError if there is none.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

}  // namespace caravan
