#include "caravan/formats/safetensors/tensor_file.h"

#include <cstring>

#include <ATen/ops/empty.h>

#include "caravan/comm/tensor.h"

namespace caravan {

namespace fs = std::filesystem;

void write_tensors(const fs::path& path, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                   const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsSpec> specs;
  for (const auto& [name, tensor] : tensors) {
    specs.push_back({name, to_dtype(tensor.scalar_type()), tensor.sizes().vec()});
  }
  OutputFile file(name_aside(path), "safetensors");
  SafetensorsWriter writer(file, std::move(specs), metadata);
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor whole = tensor.detach().contiguous();
    writer.append(name, {static_cast<const std::byte*>(whole.const_data_ptr()), whole.nbytes()});
  }
  writer.finish();
  file.finish_as(path);
}

at::Tensor read_tensor(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsEntry& entry = file.at(name);
  at::Tensor tensor = at::empty(entry.shape, to_scalar_type(entry.dtype));
  const auto bytes = file.bytes(name);
  if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

}  // namespace caravan
