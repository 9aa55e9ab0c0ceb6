#pragma once

#include <string>

#include "caravan/step/batch.h"
#include "caravan/techniques/server/param_server.h"

namespace caravan {

/// Data parallelism within one process: every rank of the axis is a thread with a replica of the model, and the first
/// is the controller. The controller has the whole batch, sends each replica its rows and gathers the outputs; it sums
/// the gradients, holds all optimizer state, and sends the replicas the new parameters. (torch.nn.DataParallel;
/// Krizhevsky, "One weird trick for parallelizing convolutional neural networks", arXiv 1404.5997.)
///
///   sharded S(0; on 0) -> unsharded R, copied once a step; gradient P -> S(0; on 0): param_server with one server
///   the controller sends (n-1) x (bytes of the unsharded parameters) and (n-1)/n of the batch a step, and receives
///   (n-1) x (bytes of the gradients); ddp sends 2(n-1)/n x (bytes of the gradients) on every rank
///   memory: the controller 16 bytes a parameter with AdamW (bf16: 18), a replica 4 (2)
///
/// For comparison, and for programs where one thread has the data; ddp is faster.
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
/// Adds it to what other techniques have decided. In your own loop, scatter_rows (step/batch.h) sends each replica its
/// rows, and gather_rows collects the outputs.
void add_replicas(Strategy& strategy, const Mesh& mesh, const ReplicasOptions& options = {});

/// An engine with this strategy.
class Replicas final : public Engine {
 public:
  Replicas(Module& model, const Mesh& mesh, const ReplicasOptions& options = {})
      : Engine(model, mesh, replicas(model, mesh, options)) {}
};

}  // namespace caravan
