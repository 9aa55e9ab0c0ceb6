#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <functional>
#include <numeric>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/content_hash.h"
#include "caravan/base/error.h"
#include "caravan/base/file.h"
#include "caravan/checkpoint/checkpoint.h"
#include "caravan/checkpoint/safetensors.h"
#include "caravan/comm/agree.h"
#include "caravan/comm/tensor.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Which of the pieces that several ranks hold this one writes: the replicas take turns by bytes, in one order on all.
std::vector<const CheckpointPiece*> my_share(const std::vector<CheckpointPiece>& pieces) {
  std::map<int, std::vector<int64_t>> load;  // by number of replicas
  std::vector<const CheckpointPiece*> mine;
  for (const CheckpointPiece& piece : pieces) {
    auto& bytes = load.try_emplace(piece.num_replicas, static_cast<size_t>(piece.num_replicas)).first->second;
    const auto least = std::min_element(bytes.begin(), bytes.end());
    *least += static_cast<int64_t>(piece.tensor.nbytes());
    if (least - bytes.begin() == piece.replica) mine.push_back(&piece);
  }
  return mine;
}

ContentHash hash_of(const fs::path& path) { return content_hash(MappedFile(path, "checkpoint").bytes()); }

/// Writes this rank's shard into `folder` and returns what the manifest says of it, as JSON.
std::string write_shard(const fs::path& folder, const std::vector<const CheckpointPiece*>& pieces, int rank) {
  json report{{"pieces", json::array()}};
  if (pieces.empty()) return report.dump();
  const std::string name = fmt::format("rank_{:05}.safetensors", rank);
  std::vector<SafetensorsSpec> specs;
  for (const CheckpointPiece* piece : pieces) {
    specs.push_back({piece->name, to_dtype(piece->tensor.scalar_type()), piece->box.size});
  }
  OutputFile file(folder / name, "checkpoint");
  SafetensorsWriter writer(file, std::move(specs));
  for (const CheckpointPiece* piece : pieces) {
    writer.append(piece->name, {static_cast<const std::byte*>(piece->tensor.const_data_ptr()), piece->tensor.nbytes()});
    report["pieces"].push_back({{"name", piece->name},
                                {"shape", piece->shape},
                                {"dtype", safetensors_name(to_dtype(piece->tensor.scalar_type()))},
                                {"offset", piece->box.offset},
                                {"size", piece->box.size}});
  }
  writer.finish();
  file.finish();
  report["file"] = name;
  report["bytes"] = fs::file_size(folder / name);
  report["hash"] = hash_of(folder / name).hex();
  return report.dump();
}

Manifest assemble(const CheckpointInfo& info, const std::vector<std::string>& reports) {
  Manifest manifest;
  manifest.info = info;
  for (const std::string& text : reports) {
    const json report = json::parse(text);
    if (!report.contains("file")) continue;
    const auto file = report["file"].get<std::string>();
    manifest.files[file] = {report["bytes"].get<int64_t>(), report["hash"].get<std::string>()};
    for (const json& piece : report["pieces"]) {
      const auto name = piece["name"].get<std::string>();
      ManifestTensor& tensor = manifest.tensors[name];
      tensor.shape = piece["shape"].get<std::vector<int64_t>>();
      tensor.dtype = piece["dtype"].get<std::string>();
      tensor.pieces.push_back(
          {{piece["offset"].get<std::vector<int64_t>>(), piece["size"].get<std::vector<int64_t>>()}, file, name});
    }
  }
  return manifest;
}

void sync_folder(const fs::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw_file_error("checkpoint", folder, "cannot be opened", errno);
  const int failed = ::fsync(descriptor) != 0 ? errno : 0;
  ::close(descriptor);
  if (failed != 0) throw_file_error("checkpoint", folder, "cannot be flushed", failed);
}

void make_empty(const fs::path& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  fs::create_directories(folder, error);
  if (error) throw_file_error("checkpoint", folder, "cannot be made", error.value());
}

/// Gives the finished folder its name in one step, also where a checkpoint of that name stands (the same step, written
/// again after a resume): a crash leaves either the old or the new one.
void publish(const fs::path& aside, const fs::path& target) {
  std::error_code error;
  if (!fs::exists(target, error)) return rename_durably(aside, target, "checkpoint");
  if (::renameat2(AT_FDCWD, aside.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) != 0) {
    throw_file_error("checkpoint", target, "cannot be replaced", errno);
  }
  sync_folder(target.parent_path());
  fs::remove_all(aside, error);
}

/// Folders written aside by a run that was killed, and checkpoints beyond the newest `keep`.
void prune(const fs::path& run, int64_t keep) {
  std::error_code error;
  const auto all = list_checkpoints(run);
  for (size_t i = 0; keep > 0 && i + static_cast<size_t>(keep) < all.size(); ++i) fs::remove_all(all[i], error);
  std::vector<fs::path> stale;
  for (const auto& entry : fs::directory_iterator(run, error)) {
    if (entry.path().filename().string().starts_with(".step_")) stale.push_back(entry.path());
  }
  for (const fs::path& folder : stale) fs::remove_all(folder, error);
}

/// One part of the work on every rank: runs `work`, and throws on all of them what went wrong on the first that failed.
std::vector<std::string> all_or_none(Communicator& world, const std::function<std::string()>& work) {
  std::string mine;
  std::string failure;
  try {
    mine = work();
  } catch (const Error& error) {
    failure = fmt::format("rank {}: {}", world.rank(), error.what());
  } catch (const std::exception& error) {
    failure = fmt::format("rank {}: {}", world.rank(), error.what());
  }
  const std::vector<std::string> failures = gather_texts(world, failure, "checkpoint");
  for (const std::string& text : failures) {
    if (!text.empty()) {
      throw ResourceError({"checkpoint", "", "was not written; earlier ones are untouched", text,
                           "free space or name another folder: checkpoint.dir"});
    }
  }
  return gather_texts(world, mine, "checkpoint");
}

}  // namespace

CheckpointPiece checkpoint_piece(std::string name, const Parameter& parameter, const at::Tensor& tensor,
                                 const Mesh& mesh) {
  CheckpointPiece piece{.name = std::move(name),
                        .shape = parameter.global_shape(),
                        .box = local_box(parameter.global_shape(), parameter.rest_layout(), mesh, parameter.name()),
                        .tensor = tensor};
  for (const MeshAxis& axis : mesh.axes()) {
    if (parameter.rest_layout().has(axis.name()) && parameter.rest_layout()[axis.name()].is_shard()) continue;
    piece.replica = piece.replica * axis.size() + axis.coord();
    piece.num_replicas *= axis.size();
  }
  return piece;
}

fs::path save_checkpoint(const fs::path& run, const CheckpointInfo& info, const std::vector<CheckpointPiece>& pieces,
                         Communicator& world, int64_t keep) {
  const fs::path target = run / checkpoint_name(info.step);
  const fs::path aside = run / ("." + checkpoint_name(info.step) + ".tmp");
  const bool is_first = world.rank() == 0;
  try {
    all_or_none(world, [&] {
      if (is_first) make_empty(aside);
      return std::string();
    });
    const auto reports = all_or_none(world, [&] { return write_shard(aside, my_share(pieces), world.rank()); });
    all_or_none(world, [&] {
      if (!is_first) return std::string();
      OutputFile file(aside / "manifest.json", "checkpoint");
      file.append(assemble(info, reports).to_json());
      file.finish();
      sync_folder(aside);
      publish(aside, target);
      prune(run, keep);
      return std::string();
    });
  } catch (const ResourceError&) {
    std::error_code error;
    if (is_first) fs::remove_all(aside, error);
    throw;
  }
  return target;
}

}  // namespace caravan
