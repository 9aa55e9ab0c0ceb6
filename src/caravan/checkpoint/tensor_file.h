#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/base/content_hash.h"
#include "caravan/checkpoint/safetensors.h"

namespace caravan {

/// Writes whole CPU tensors as a safetensors file, aside and renamed. Throws ResourceError.
void write_tensors(const std::filesystem::path& path, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                   const std::map<std::string, std::string>& metadata = {});

/// The tensor `name` of `file`, copied.
at::Tensor read_tensor(const SafetensorsFile& file, const std::string& name);

}  // namespace caravan
