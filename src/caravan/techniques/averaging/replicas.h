#pragma once

#include <string>

#include "caravan/step/batch.h"
#include "caravan/techniques/server/param_server.h"

namespace caravan {

/// The classic data parallelism of one process: every rank of the axis is a thread with a replica of the model, and the
/// first is the controller. It has the whole batch, gives each replica its rows and collects what they return; it sums
/// their gradients, has the optimizer state alone, and gives the replicas the new parameters. (torch.nn.DataParallel;
/// Krizhevsky, "One weird trick for parallelizing convolutional neural networks", arXiv 1404.5997.)
///
///   at rest S(0; on 0) -> leaf R, copied once a step; gradient P -> S(0; on 0): param_server with one server
///   the controller sends (n-1) x (bytes of the leaves) and (n-1)/n of the batch a step, and receives (n-1) x (bytes of
///   the gradients); ddp sends 2(n-1)/n x (bytes of the gradients) on every rank
///   memory: the controller 16 bytes a parameter with AdamW (bf16: 18), a replica 4 (2)
///
/// Its use is comparison, and programs where one thread has the data; ddp is faster.
struct ReplicasOptions {
  std::string axis = "dp";
  int prefetch = 1;                             ///< as ZeroOptions::prefetch
  Accumulate accumulate = Accumulate::sharded;  ///< as ZeroOptions::accumulate
  std::vector<std::string> units{};             ///< as ZeroOptions::units
  at::ScalarType compute_dtype = at::kFloat;    ///< this and the next two: as in DdpOptions
  at::ScalarType gradient_dtype = at::kFloat;
  std::optional<at::ScalarType> reduce_dtype{};
  bool find_unused_parameters = false;
  Buffers buffers = Buffers::broadcast;
};

/// Throws UsageError unless the ranks are threads of one process (back-end thread, or record, which moves nothing).
Strategy replicas(Module& model, const Mesh& mesh, const ReplicasOptions& options = {});
/// On top of what other techniques have decided. In a loop of your own, scatter_rows (step/batch.h) gives each replica
/// its rows, and gather_rows brings back what they return.
void add_replicas(Strategy& strategy, const Mesh& mesh, const ReplicasOptions& options = {});

/// An engine with that strategy.
class Replicas final : public Engine {
 public:
  Replicas(Module& model, const Mesh& mesh, const ReplicasOptions& options = {})
      : Engine(model, mesh, replicas(model, mesh, options)) {}
};

}  // namespace caravan
