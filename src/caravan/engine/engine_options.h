#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace caravan {

struct EngineOptions {
  uint64_t seed = 0;  ///< seed of initial values, for parameters that have no memory yet
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;  ///< dtype of sharded parameters that have no memory yet
  bool initialise = true;             ///< false: the caller sets their values
};

}  // namespace caravan
