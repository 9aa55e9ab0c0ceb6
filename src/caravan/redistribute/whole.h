#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "caravan/mesh/layout.h"
#include "caravan/mesh/mesh.h"

namespace caravan {

/// The global tensor of a piece, on every rank: redistribute to I on every axis, the axis that has cut last first. Its
/// rows may be those of this rank's coordinate on the other axes: what tensor parallelism cuts unevenly, a sharding
/// technique cuts at other rows on each of its ranks. Every rank of the mesh calls it. Not
/// differentiable. Throws as redistribute.
at::Tensor whole_tensor(const at::Tensor& piece, const Layout& layout, const Mesh& mesh, const std::string& what);

}  // namespace caravan
