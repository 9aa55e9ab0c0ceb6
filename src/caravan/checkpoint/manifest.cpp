#include "caravan/checkpoint/manifest.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/content_hash.h"
#include "caravan/base/error.h"
#include "caravan/base/file.h"
#include "caravan/base/json_reader.h"
#include "caravan/base/text.h"
#include "caravan/checkpoint/shard_copy.h"

namespace caravan {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr int kVersion = 2;
constexpr int kOldestVersion = 1;  ///< has neither "data" nor "numerics"
constexpr size_t kLargestManifest = size_t{256} << 20;

/// The hash of a manifest without its "hash".
std::string hash_of(const json& root) { return content_hash(root.dump()).hex(); }

/// Reads fields of a manifest. Errors name the folder and the field.
class Fields {
 public:
  explicit Fields(const fs::path& folder) : folder_(folder) {}

  [[noreturn]] void refuse(const std::string& field, const std::string& fact) const {
    throw DataError({.op = "checkpoint",
                     .subject = (folder_ / kManifestName).string(),
                     .fact = field + " " + fact,
                     .where = "",
                     .action = "the checkpoint is damaged: use an older one of the same run"});
  }

  /// Throws unless `object` has exactly these keys.
  void check_keys(const json& object, const std::string& field, const std::vector<std::string>& keys) const {
    if (!object.is_object()) refuse(field, "is not an object");
    for (const std::string& key : keys) {
      if (!object.contains(key)) refuse(field, "has no '" + key + "'");
    }
    for (const auto& [key, value] : object.items()) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) refuse(field, "has an unknown key '" + key + "'");
    }
  }

  int64_t number(const json& value, const std::string& field) const {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{INT64_MAX}) {
      refuse(field, "is not a whole number of at least 0");
    }
    return value.get<int64_t>();
  }

  std::string text(const json& value, const std::string& field) const {
    if (!value.is_string()) refuse(field, "is not a string");
    return value.get<std::string>();
  }

  std::string file_name(const json& value, const std::string& field) const {
    const std::string name = text(value, field);
    if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos)
      refuse(field, "is not a plain file name");
    return name;
  }

  /// Of either sign, by name.
  std::map<std::string, int64_t> counters(const json& value, const std::string& field) const {
    if (!value.is_object()) refuse(field, "is not an object");
    std::map<std::string, int64_t> out;
    for (const auto& [name, count] : value.items()) {
      if (!count.is_number_integer() || (count.is_number_unsigned() && count.get<uint64_t>() > uint64_t{INT64_MAX})) {
        refuse(field + "." + name, "is not a whole number");
      }
      out[name] = count.get<int64_t>();
    }
    return out;
  }

  std::vector<int64_t> numbers(const json& value, const std::string& field) const {
    if (!value.is_array()) refuse(field, "is not a list");
    std::vector<int64_t> out;
    for (const json& item : value) out.push_back(number(item, field));
    return out;
  }

 private:
  const fs::path& folder_;
};

/// The number of elements of a shape; -1 if it is absurd.
int64_t volume(const std::vector<int64_t>& shape) {
  int64_t product = 1;
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(product, size, &product) || product > (int64_t{1} << 56)) return -1;
  }
  return product;
}

void check_cover(const Fields& fields, const std::string& name, const ManifestTensor& tensor) {
  const int64_t whole = volume(tensor.shape);
  if (whole < 0) fields.refuse(name, "has an impossible shape");
  int64_t covered = 0;
  for (size_t i = 0; i < tensor.pieces.size(); ++i) {
    const Box& box = tensor.pieces[i].box;
    if (box.offset.size() != tensor.shape.size() || box.size.size() != tensor.shape.size()) {
      fields.refuse(name, "has a piece with a different number of dims");
    }
    for (size_t d = 0; d < tensor.shape.size(); ++d) {
      if (box.offset[d] > tensor.shape[d] || box.size[d] > tensor.shape[d] - box.offset[d]) {
        fields.refuse(name, "has a piece outside its shape");
      }
    }
    covered += volume(box.size);
    for (size_t k = 0; k < i; ++k) {
      if (overlaps(box, tensor.pieces[k].box)) fields.refuse(name, "has pieces that overlap");
    }
  }
  if (covered != whole)
    fields.refuse(name, fmt::format("has pieces of {} elements, but its shape has {}", covered, whole));
}

ManifestTensor read_tensor(const Fields& fields, const std::string& name, const json& value) {
  fields.check_keys(value, name, {"shape", "dtype", "pieces"});
  ManifestTensor tensor{fields.numbers(value["shape"], name), fields.text(value["dtype"], name), {}};
  if (!value["pieces"].is_array()) fields.refuse(name, "has no list of pieces");
  for (const json& piece : value["pieces"]) {
    fields.check_keys(piece, name, {"offset", "size", "file", "key"});
    tensor.pieces.push_back({{fields.numbers(piece["offset"], name), fields.numbers(piece["size"], name)},
                             fields.file_name(piece["file"], name),
                             fields.text(piece["key"], name)});
  }
  check_cover(fields, name, tensor);
  return tensor;
}

void read_origin(const Fields& fields, const json& root, CheckpointInfo& info) {
  const json& data = root["data"];
  fields.check_keys(data, "data", {"train", "validation"});
  info.train_hash = fields.text(data["train"], "data.train");
  info.validation_hash = fields.text(data["validation"], "data.validation");
  const json& numerics = root["numerics"];
  fields.check_keys(numerics, "numerics", {"ranks", "threads_per_rank", "products"});
  info.numerics = {.ranks = fields.number(numerics["ranks"], "numerics.ranks"),
                   .threads_per_rank = fields.number(numerics["threads_per_rank"], "numerics.threads_per_rank"),
                   .products = fields.text(numerics["products"], "numerics.products")};
}

void check_files(const Fields& fields, const fs::path& folder, const Manifest& manifest) {
  for (const auto& [name, file] : manifest.files) {
    std::error_code error;
    const auto size = fs::file_size(folder / name, error);
    if (error) fields.refuse(name, "cannot be found: " + error.message());
    if (static_cast<int64_t>(size) != file.bytes) {
      fields.refuse(name, fmt::format("has {} bytes, but {} were written", size, file.bytes));
    }
  }
  for (const auto& [name, tensor] : manifest.tensors) {
    for (const ManifestPiece& piece : tensor.pieces) {
      if (!manifest.files.contains(piece.file)) fields.refuse(name, "is in a file that is not listed: " + piece.file);
    }
  }
}

}  // namespace

std::string Manifest::to_json() const {
  json out{{"version", kVersion},
           {"step", info.step},
           {"position", info.position},
           {"optimizer_steps", info.optimizer_steps},
           {"recipe", info.recipe},
           {"model", info.model},
           {"tokenizer_hash", info.tokenizer_hash},
           {"data", {{"train", info.train_hash}, {"validation", info.validation_hash}}},
           {"numerics",
            {{"ranks", info.numerics.ranks},
             {"threads_per_rank", info.numerics.threads_per_rank},
             {"products", info.numerics.products}}},
           {"tensors", json::object()},
           {"files", json::object()}};
  if (!info.clocks.empty()) out["clocks"] = info.clocks;
  if (!info.counters.empty()) out["counters"] = info.counters;
  for (const auto& [name, tensor] : tensors) {
    json pieces = json::array();
    for (const ManifestPiece& piece : tensor.pieces) {
      pieces.push_back(
          {{"offset", piece.box.offset}, {"size", piece.box.size}, {"file", piece.file}, {"key", piece.key}});
    }
    out["tensors"][name] = {{"shape", tensor.shape}, {"dtype", tensor.dtype}, {"pieces", pieces}};
  }
  for (const auto& [name, file] : files) out["files"][name] = {{"bytes", file.bytes}, {"hash", file.hash}};
  out["hash"] = hash_of(out);
  return out.dump(1) + "\n";
}

Manifest Manifest::read(const fs::path& folder) {
  const Fields fields(folder);
  const MappedFile file(folder / kManifestName, "checkpoint");
  if (file.bytes().size() > kLargestManifest)
    fields.refuse("the manifest", fmt::format("has {}", format_bytes(static_cast<int64_t>(file.bytes().size()))));
  check_json_depth(file.text(), (folder / kManifestName).string(), "checkpoint");
  json root = json::parse(file.text(), nullptr, false);
  if (root.is_discarded()) fields.refuse("the manifest", "is not JSON");
  if (!root.is_object() || !root.contains("version")) fields.refuse("the manifest", "has no 'version'");
  const int64_t version = fields.number(root["version"], "version");
  if (version < kOldestVersion || version > kVersion) {
    fields.refuse("version", fmt::format("is {}; this program reads {} to {}", version, kOldestVersion, kVersion));
  }
  std::vector<std::string> keys{"version", "step",           "position", "optimizer_steps", "recipe",
                                "model",   "tokenizer_hash", "tensors",  "files",           "hash"};
  if (version > kOldestVersion) keys.insert(keys.end(), {"data", "numerics"});
  for (const char* optional : {"clocks", "counters"}) {
    if (root.contains(optional)) keys.emplace_back(optional);
  }
  fields.check_keys(root, "the manifest", keys);
  const std::string hash = fields.text(root["hash"], "hash");
  root.erase("hash");
  if (hash != hash_of(root)) fields.refuse("the manifest", "does not have the hash that was written: it was altered");

  Manifest manifest;
  manifest.info = {.step = fields.number(root["step"], "step"),
                   .position = fields.number(root["position"], "position"),
                   .optimizer_steps = fields.number(root["optimizer_steps"], "optimizer_steps"),
                   .recipe = fields.text(root["recipe"], "recipe"),
                   .model = fields.text(root["model"], "model"),
                   .tokenizer_hash = fields.text(root["tokenizer_hash"], "tokenizer_hash")};
  if (root.contains("clocks")) manifest.info.clocks = fields.numbers(root["clocks"], "clocks");
  if (root.contains("counters")) manifest.info.counters = fields.counters(root["counters"], "counters");
  if (version > kOldestVersion) read_origin(fields, root, manifest.info);
  if (!root["files"].is_object() || !root["tensors"].is_object()) fields.refuse("files, tensors", "are not objects");
  for (const auto& [name, value] : root["files"].items()) {
    fields.check_keys(value, name, {"bytes", "hash"});
    manifest.files[fields.file_name(name, "files")] = {fields.number(value["bytes"], name),
                                                       fields.text(value["hash"], name)};
  }
  for (const auto& [name, value] : root["tensors"].items()) manifest.tensors[name] = read_tensor(fields, name, value);
  check_files(fields, folder, manifest);
  return manifest;
}

}  // namespace caravan
