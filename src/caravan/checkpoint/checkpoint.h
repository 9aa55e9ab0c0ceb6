#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/checkpoint/manifest.h"
#include "caravan/comm/communicator.h"
#include "caravan/module/parameter.h"

namespace caravan {

/// This rank's piece of a named tensor. Where several ranks hold the same piece they are its replicas: `replica` of
/// `num_replicas` (the coordinates on invariant axes), and exactly one of them writes it.
struct CheckpointPiece {
  std::string name;
  std::vector<int64_t> shape;  ///< global
  Box box;
  at::Tensor tensor;  ///< contiguous, of box.size
  int replica = 0;
  int num_replicas = 1;
};

/// The piece of `parameter`'s rest layout that this rank of `mesh` holds, with `tensor` (its values, or a moment of it)
/// as data.
CheckpointPiece checkpoint_piece(std::string name, const Parameter& parameter, const at::Tensor& tensor,
                                 const Mesh& mesh);

/// Writes run/step_NNNNNN: every rank its own shard, side by side; then rank 0 the manifest. Everything is written into
/// a folder aside, fsynced, and renamed: after a crash at any point the last good checkpoint is there and complete.
/// Then all but the `keep` newest are removed (0: none is).
///
/// Every rank of `world` calls it, with the same info and its own pieces. Throws on every rank what went wrong on one
/// (ResourceError naming rank and path); then nothing new is left and the earlier checkpoints are untouched.
std::filesystem::path save_checkpoint(const std::filesystem::path& run, const CheckpointInfo& info,
                                      const std::vector<CheckpointPiece>& pieces, Communicator& world, int64_t keep);

/// A checkpoint being read, by any number of ranks, in any layout.
class CheckpointReader {
 public:
  /// Reads the manifest; each shard is checked, its hash included, when it is first needed. Throws DataError for a
  /// file that is missing, truncated or altered, naming it.
  explicit CheckpointReader(const std::filesystem::path& folder);
  ~CheckpointReader();

  const CheckpointInfo& info() const noexcept { return manifest_.info; }
  const Manifest& manifest() const noexcept { return manifest_; }

  /// Strict both ways: throws DataError listing what is missing in the checkpoint, what is there and not wanted, and
  /// what has another shape; and for a shard that is damaged or does not hold what the manifest says. What passes can
  /// be allocated: its bytes are there.
  void check(const std::vector<std::pair<std::string, std::vector<int64_t>>>& wanted);
  /// Fills `out` (contiguous, CPU, the tensor's dtype) with `box` of tensor `name`.
  void read(const std::string& name, const Box& box, at::Tensor out);

 private:
  struct Shards;
  std::span<const std::byte> bytes_of(const ManifestTensor& tensor, const ManifestPiece& piece);

  std::filesystem::path folder_;
  Manifest manifest_;
  std::unique_ptr<Shards> shards_;
};

}  // namespace caravan
