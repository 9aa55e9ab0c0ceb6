#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "caravan/mesh/layout.h"
#include "caravan/mesh/mesh.h"

namespace caravan {

/// The global tensor of a piece, on every rank: redistributes to I on every axis, in the reverse order of the cuts. The
/// rows of a shard may depend on this rank's coordinates on other axes: a sharding technique cuts unevenly split
/// tensors at different rows on each tensor-parallel rank. Every rank of the mesh calls it. Not differentiable. Throws
/// as redistribute.
at::Tensor whole_tensor(const at::Tensor& piece, const Layout& layout, const Mesh& mesh, const std::string& what);

}  // namespace caravan
