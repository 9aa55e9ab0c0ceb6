#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/base/runtime.h"
#include "caravan/comm/communicator.h"
#include "caravan/comm/store/rendezvous.h"
#include "caravan/mesh/mesh.h"

namespace caravan {

struct SessionOptions {
  /// The axes of the mesh, as in a recipe: stages of a pipeline, parts of the batch, experts, sequences and layers.
  /// dp = 0: the ranks that the others leave.
  int dp = 0, pp = 1, ep = 1, cp = 1, tp = 1;
  /// In place of these: axes of other names, the slowest first, of which one may have size 0.
  std::vector<AxisSize> axes{};
  std::string backend = "auto";  ///< see make_world
  uint64_t seed = 1;
  double timeout_s = 300;  ///< of every wait for other ranks
  int threads = 0;         ///< of this rank, for compute; 0: an equal share of the host's cores. Ranks may differ
};

/// The rows of a batch that this rank computes: a part for each coordinate of the axis dp, which differ by one row at
/// most. Throws UsageError for a mesh without that axis, and for fewer rows than parts.
at::Tensor rows_of(const at::Tensor& batch, const Mesh& mesh);

/// What a program of your own needs of its job, from the environment: `caravan run`, torchrun, mpirun, or none of them
/// for one rank. main() makes one before the first tensor, and keeps it as long as anything made from it.
///
/// torch's default generator is seeded the same on every rank, so modules start equal and every rank can make the same
/// batch. torch::nn::Dropout draws the same masks on all of them: seed by rank after parallelize() if that matters.
class Session {
 public:
  /// Every rank of the job calls it. Throws UsageError on every rank, naming the option and both values, if two ranks
  /// have different options; if the sizes do not multiply to the number of ranks, naming sizes that do; for an unknown
  /// back-end; for a time-out or a number of threads that is none; and if another Session or Runtime exists. Throws
  /// CommError naming the ranks that do not come within the time-out.
  explicit Session(const SessionOptions& options = {});
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  Communicator& world() const noexcept { return mesh_.world(); }
  const Mesh& mesh() const noexcept { return mesh_; }
  /// For what adds axes to it, such as add_pipeline.
  Mesh& mesh() noexcept { return mesh_; }
  /// Mesh::operator[].
  const MeshAxis& operator[](std::string_view axis) const { return mesh_[axis]; }

  int rank() const noexcept { return info_.rank; }
  int size() const noexcept { return info_.world_size; }
  /// True on the rank that prints: under `caravan run`, the one whose output is the command's.
  bool is_main() const noexcept { return info_.rank == 0; }
  at::Device device() const noexcept { return at::kCPU; }
  uint64_t seed() const noexcept { return seed_; }

  /// The sum over all ranks, on every rank; of a tensor, a new one. Every rank calls it.
  double sum(double value) const;
  at::Tensor sum(const at::Tensor& value) const;
  /// This rank's rows of a batch that every rank has: rows_of().
  at::Tensor rows(const at::Tensor& batch) const { return rows_of(batch, mesh_); }
  /// Whether some rank was told to stop, by Ctrl-C (SIGINT), SIGTERM or SIGHUP; the same on every rank. Every rank
  /// calls it, say once a step; it sends 8 bytes. The first call takes over these signals: from then on the first one
  /// asks to stop, and a second one ends the process.
  bool should_stop() const;
  int threads() const noexcept { return threads_; }

 private:
  // In the order in which they are made; the store outlives the world, and the allocator all tensors.
  RankInfo info_;
  uint64_t seed_;
  int threads_;
  Runtime runtime_;
  std::shared_ptr<Store> store_;
  Mesh mesh_;
};

}  // namespace caravan
