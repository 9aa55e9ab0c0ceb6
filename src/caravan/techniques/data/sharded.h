#pragma once

#include <string>

#include "caravan/mesh/mesh.h"
#include "caravan/techniques/data/zero.h"

namespace caravan {

// Common part of the techniques that gather shards. `name` is the technique, for errors.

/// Throws UsageError unless `prefetch` is 0, 1 or 2 units.
void check_prefetch(const std::string& name, int prefetch);

/// Whether the ranks of `axis` share the memory of what they gather: the same on every rank of the mesh. Collective
/// unless `share` is off. Throws UsageError if it is on and they cannot.
bool is_shared(const std::string& name, const Mesh& mesh, const MeshAxis& axis, Share share);

/// Copies the options that ddp() has too: dtypes, find_unused_parameters and buffers.
template <class Options>
void set_common(Strategy& strategy, const Options& options) {
  strategy.compute_dtype = options.compute_dtype;
  strategy.gradient_dtype = options.gradient_dtype;
  strategy.reduce_dtype = options.reduce_dtype;
  strategy.find_unused_parameters = options.find_unused_parameters;
  strategy.buffers = options.buffers;
}

}  // namespace caravan
