#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/module/parameter.h"

namespace caravan {

/// `tensors[i]`, of the global shape of `parameters[i]`, or undefined, by the names of checkpoints: tiles are put
/// together, where the first of them is.
std::vector<std::pair<std::string, at::Tensor>> join_tiles(const std::vector<Parameter*>& parameters,
                                                           const std::vector<at::Tensor>& tensors);

}  // namespace caravan
