#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/comm/communicator.h"
#include "caravan/formats/checkpoint/manifest.h"
#include "caravan/module/parameter.h"

namespace caravan {

/// This rank's piece of a named tensor. Ranks that hold the same piece are its replicas, numbered by their coordinates
/// on the axes that do not cut the tensor; exactly one of them writes it. A piece without elements is not written.
struct CheckpointPiece {
  std::string name;
  std::vector<int64_t> shape;          ///< global
  std::vector<PieceBox> boxes;         ///< what it consists of: several for a blocked shard
  at::Tensor tensor;                   ///< contiguous
  std::function<at::Tensor()> read{};  ///< if set, `tensor` has no memory, and this reads it
  int replica = 0;
  int num_replicas = 1;
  std::string replica_axes{};  ///< the axes that number the replicas: "dp tp"
};

/// The piece of the sharded `parameter` that this rank of `mesh` holds. `tensor` has the data: its values, or an
/// optimizer moment of the same layout. With `own_axis`, an axis on which the parameter is I, each coordinate has its
/// own data: they form one tensor with an additional dim 0.
CheckpointPiece checkpoint_piece(std::string name, const Parameter& parameter, const at::Tensor& tensor,
                                 const Mesh& mesh, const std::string& own_axis = "");

/// A box of the data of one coordinate in a tensor with an additional dim 0 for the coordinates.
PieceBox of_coordinate(PieceBox box, int64_t coord);

struct SavedCheckpoint {
  std::filesystem::path folder;
  std::string warning{};  ///< on rank 0: why older checkpoints could not be removed; "" if they were
};

/// Writes run/step_NNNNNN: all ranks write their shards, and send rank 0 the list of their pieces for the manifest. All
/// files go to a temporary folder, which is flushed to disk and renamed. After a crash at any point, the last
/// checkpoint that was complete is still complete. Then rank 0 removes all but the `keep` newest (0: keeps all); see
/// prune_checkpoints. If that fails, the result has a warning, and the next save tries again.
///
/// Every rank of `world` calls it, with the same info and its own pieces. If a rank fails to write, all ranks throw its
/// error as ResourceError naming rank and path; nothing new is left, and earlier checkpoints are untouched.
SavedCheckpoint save_checkpoint(const std::filesystem::path& run, const CheckpointInfo& info,
                                const std::vector<CheckpointPiece>& pieces, Communicator& world, int64_t keep);

/// Reads a checkpoint on any number of ranks, in any layout.
class CheckpointReader {
 public:
  /// Reads the manifest. Throws DataError naming a file that is missing or truncated, or the manifest if it is altered.
  explicit CheckpointReader(const std::filesystem::path& folder);
  ~CheckpointReader();

  const CheckpointInfo& info() const noexcept { return manifest_.info; }
  const Manifest& manifest() const noexcept { return manifest_; }

  /// Compares the hash of each shard with the manifest. Every rank of `world` calls it before it uses the result of
  /// `read`. Each shard is read by one rank; the ranks have about the same number of bytes to read. If a shard is
  /// altered, all ranks throw the same DataError naming it. Sends 8 bytes.
  void verify(Communicator& world) const;
  /// Throws DataError for tensors that are missing, unexpected or of another shape than `wanted`, listing them, and for
  /// a shard whose header does not match the manifest. Reads only the headers of all shards. Shapes that pass are safe
  /// to allocate: their bytes exist.
  void check(const std::vector<std::pair<std::string, std::vector<int64_t>>>& wanted);
  /// Fills `out` with `box` of tensor `name` from the shards that hold parts of it. `out` is contiguous, on the CPU,
  /// and has the dtype of the tensor.
  void read(const std::string& name, const Box& box, at::Tensor out);
  /// The same for a piece, which may be strided.
  void read(const std::string& name, const std::vector<PieceBox>& boxes, const at::Tensor& out);

 private:
  struct Shards;
  std::span<const std::byte> bytes_of(const std::string& name, const ManifestTensor& tensor,
                                      const ManifestPiece& piece);

  std::filesystem::path folder_;
  Manifest manifest_;
  std::unique_ptr<Shards> shards_;
};

}  // namespace caravan
