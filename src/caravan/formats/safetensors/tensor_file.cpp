#include "caravan/formats/safetensors/tensor_file.h"

#include <cstring>

#include <ATen/ops/empty.h>

#include "caravan/base/system/mapped_pages.h"
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
  const std::vector<int64_t>& shape = file.at(name).shape;
  return read_tensor(file, name, {std::vector<int64_t>(shape.size(), 0), shape});
}

at::Tensor read_tensor(const SafetensorsFile& file, const std::string& name, const Box& box) {
  const SafetensorsEntry& entry = file.at(name);
  at::Tensor tensor = at::empty(box.size, to_scalar_type(entry.dtype));
  if (tensor.numel() == 0) return tensor;
  const std::span<const std::byte> bytes = file.bytes(name);
  const std::byte* from = bytes.data();
  auto* to = static_cast<std::byte*>(tensor.mutable_data_ptr());
  // Runs: the dims from `inner` on are whole, and with the dim before them contiguous.
  size_t inner = entry.shape.size();
  int64_t run = size_bytes(entry.dtype);
  while (inner > 0 && box.size[inner - 1] == entry.shape[inner - 1]) run *= entry.shape[--inner];
  const int64_t length = inner > 0 ? run * box.size[inner - 1] : run;
  std::vector<int64_t> index(inner > 0 ? inner - 1 : 0, 0);  // of the dims that are walked, in the box
  for (bool is_done = false; !is_done;) {
    int64_t row = 0;
    for (size_t dim = 0; dim + 1 < inner; ++dim) row = (row + box.offset[dim] + index[dim]) * entry.shape[dim + 1];
    if (inner > 0) row += box.offset[inner - 1];
    std::memcpy(to, from + row * run, static_cast<size_t>(length));
    to += length;
    is_done = true;
    for (size_t dim = index.size(); is_done && dim-- > 0;) {
      is_done = ++index[dim] == box.size[dim];
      if (is_done) index[dim] = 0;
    }
  }
  drop_mapped_pages(bytes);
  return tensor;
}

}  // namespace caravan
