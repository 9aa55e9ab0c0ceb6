#include <algorithm>
#include <map>
#include <set>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/system/mapped_pages.h"
#include "caravan/base/text.h"
#include "caravan/comm/tensor.h"
#include "caravan/formats/checkpoint/checkpoint.h"
#include "caravan/formats/checkpoint/shard_copy.h"
#include "caravan/formats/checkpoint/verify.h"
#include "caravan/formats/safetensors/safetensors.h"
#include "caravan/redistribute/piece.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const fs::path& path, const std::string& fact) {
  throw DataError(
      {"checkpoint", path.string(), fact, "", "the checkpoint is damaged: use an older one of the same run"});
}

std::string shape_text(const std::vector<int64_t>& shape) { return "[" + join(shape) + "]"; }

}  // namespace

struct CheckpointReader::Shards {
  std::map<std::string, SafetensorsFile> open;

  const SafetensorsFile& get(const fs::path& folder, const std::string& file) {
    const auto found = open.find(file);
    if (found != open.end()) return found->second;
    return open.emplace(file, SafetensorsFile(folder / file)).first->second;
  }
};

CheckpointReader::CheckpointReader(const fs::path& folder)
    : folder_(folder), manifest_(Manifest::read(folder)), shards_(std::make_unique<Shards>()) {}

CheckpointReader::~CheckpointReader() = default;

std::span<const std::byte> CheckpointReader::bytes_of(const std::string& name, const ManifestTensor& tensor,
                                                      const ManifestPiece& piece) {
  const SafetensorsFile& shard = shards_->get(folder_, piece.file);
  const std::string& key = piece.key.empty() ? name : piece.key;
  const SafetensorsEntry& entry = shard.at(key);
  if (safetensors_name(entry.dtype) != tensor.dtype || entry.shape != piece.box.size) {
    refuse(shard.path(),
           fmt::format("holds {} as {} {}, but the manifest says {} {}", key, safetensors_name(entry.dtype),
                       shape_text(entry.shape), tensor.dtype, shape_text(piece.box.size)));
  }
  return shard.bytes(key);
}

void CheckpointReader::verify(Communicator& world) const { verify_files(folder_, manifest_.files, world); }

void CheckpointReader::check(const std::vector<std::pair<std::string, std::vector<int64_t>>>& wanted) {
  std::vector<std::string> missing, unexpected, other_shape;
  std::set<std::string> names;
  for (const auto& [name, shape] : wanted) {
    names.insert(name);
    const auto found = manifest_.tensors.find(name);
    if (found == manifest_.tensors.end()) {
      missing.push_back(name);
    } else if (found->second.shape != shape) {
      other_shape.push_back(fmt::format("{} {} (wanted {})", name, shape_text(found->second.shape), shape_text(shape)));
    }
  }
  for (const auto& [name, tensor] : manifest_.tensors) {
    if (!names.contains(name)) unexpected.push_back(name);
  }
  std::vector<std::string> facts;
  if (!missing.empty()) facts.push_back("lacks " + some_of(missing, 5));
  if (!unexpected.empty()) facts.push_back("has, unexpected, " + some_of(unexpected, 5));
  if (!other_shape.empty()) facts.push_back("has in another shape " + some_of(other_shape, 5));
  if (!facts.empty()) {
    throw DataError({"checkpoint", folder_.string(), join(facts, "; "), "",
                     "use the model and the optimizer that wrote it: those of the run's recipe.toml, if it has one"});
  }
  for (const auto& [name, tensor] : manifest_.tensors) {
    for (const ManifestPiece& piece : tensor.pieces) bytes_of(name, tensor, piece);
  }
}

void CheckpointReader::read(const std::string& name, const Box& box, at::Tensor out) {
  const auto found = manifest_.tensors.find(name);
  if (found == manifest_.tensors.end()) refuse(folder_, "lacks " + name);
  const ManifestTensor& tensor = found->second;
  const std::string dtype(safetensors_name(to_dtype(out.scalar_type())));
  if (tensor.dtype != dtype) {
    throw DataError({"checkpoint", name, fmt::format("is {}, not {}", tensor.dtype, dtype), folder_.string(),
                     "use the model and the optimizer that wrote it: those of the run's recipe.toml, if it has one"});
  }
  const std::span<std::byte> target(static_cast<std::byte*>(out.mutable_data_ptr()), static_cast<size_t>(out.nbytes()));
  for (const ManifestPiece& piece : tensor.pieces) {
    if (!overlaps(piece.box, box)) continue;  // its shard need not be opened
    const std::span<const std::byte> bytes = bytes_of(name, tensor, piece);
    copy_overlap(piece.box, bytes, box, target, static_cast<int64_t>(out.element_size()));
    drop_mapped_pages(bytes);
  }
}

void CheckpointReader::read(const std::string& name, const std::vector<PieceBox>& boxes, const at::Tensor& out) {
  for (const PieceBox& box : boxes) {
    const at::Tensor part = boxes.size() == 1 ? out : part_of(out, box);
    if (part.is_contiguous()) {
      read(name, box.global, part);
      continue;
    }
    const at::Tensor values = at::empty(part.sizes(), part.options());
    read(name, box.global, values);
    part.copy_(values);
  }
}

}  // namespace caravan
