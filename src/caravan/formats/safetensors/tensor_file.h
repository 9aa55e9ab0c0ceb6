#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/base/content_hash.h"
#include "caravan/formats/safetensors/safetensors.h"
#include "caravan/mesh/layout.h"

namespace caravan {

/// Writes whole CPU tensors to a safetensors file, through a temporary file that is renamed. Throws ResourceError.
void write_tensors(const std::filesystem::path& path, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                   const std::map<std::string, std::string>& metadata = {});

/// A copy of tensor `name` of `file`.
at::Tensor read_tensor(const SafetensorsFile& file, const std::string& name);
/// A copy of a box of it, which lies in the tensor. Reads no other bytes of the mapping.
at::Tensor read_tensor(const SafetensorsFile& file, const std::string& name, const Box& box);

}  // namespace caravan
