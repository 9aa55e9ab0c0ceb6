#pragma once

#include <optional>
#include <string>
#include <vector>

#include "caravan/techniques/data/zero.h"

namespace caravan {

/// Some ranks are servers: together they hold the sharded parameters, the gradients and the optimizer state. Every
/// rank, including servers, is a worker: it has all parameters, computes on its rows of the batch, pushes its gradients
/// to the servers and pulls new values. (Dean et al., "Large scale distributed deep networks", NIPS 2012; Li et al.,
/// "Scaling distributed machine learning with the parameter server", OSDI 2014.)
///
/// Synchronous, it is ZeRO-2 with shards on the servers alone:
///
///   sharded S(0; rows of k servers) -> unsharded R, gathered once a step, its memory kept; gradient P -> S
///   all n ranks together send in a step (n-1) x (bytes of gradients and unsharded parameters), as ZeRO-2
///     a server     (1 - 1/k) of the gradients + (n-1)/k of the parameters; receives (n-1)/k of the gradients
///     a worker     the gradients; receives the parameters
///   with Accumulate::sharded gradients are pushed once for each micro-batch
///
/// Bytes for each parameter with AdamW:
///                     fp32 compute   bf16 compute
///   a server          4 + 12/k       2 + 16/k      and the gradients of three units at most
///   a worker          4              2             the same
///   shared memory     servers 4 less and 4/k more (fp32), 2 less and 2/k more (bf16); workers 0
///
/// Every rank holds scalar parameters.
struct ParameterServerOptions {
  std::string axis = "dp";
  int servers = 0;  ///< the first ranks of the axis are servers; 0: all
  /// False: for an AsyncTrainer (techniques/server/async_trainer.h). Then a rank's unsharded parameters are its own
  /// version, never the memory of the values: 4/k bytes a parameter more for a server in fp32. Gradients are pushed
  /// once a step, and scalar parameters are refused. An Engine by itself runs it synchronously.
  bool is_synchronous = true;
  std::vector<std::string> units{};             ///< as ZeroOptions::units
  int prefetch = 1;                             ///< as ZeroOptions::prefetch; not used unless synchronous
  Accumulate accumulate = Accumulate::sharded;  ///< the same
  Share share = Share::automatic;               ///< the same
  at::ScalarType compute_dtype = at::kFloat;    ///< this and the next two: as in DdpOptions
  at::ScalarType gradient_dtype = at::kFloat;   ///< synchronous only, as the next
  std::optional<at::ScalarType> reduce_dtype{};
  bool find_unused_parameters = false;
  /// As DdpOptions::buffers. Workers that do not wait for each other cannot keep buffers equal: local only.
  Buffers buffers = Buffers::broadcast;
};

/// Throw UsageError for an impossible option, LayoutError if sharded parameters are not I on the axis.
Strategy param_server(Module& model, const Mesh& mesh, const ParameterServerOptions& options = {});
/// Adds it to what other techniques have decided.
void add_param_server(Strategy& strategy, const Mesh& mesh, const ParameterServerOptions& options = {});

/// An engine with this strategy.
class ParameterServer final : public Engine {
 public:
  ParameterServer(Module& model, const Mesh& mesh, const ParameterServerOptions& options = {})
      : Engine(model, mesh, param_server(model, mesh, options)) {}
};

}  // namespace caravan
