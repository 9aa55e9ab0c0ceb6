// Checkpoints of more ranks than a test can start: each rank's shard is written by the code that a rank runs.
#include <unistd.h>

#include <gtest/gtest.h>

#include "caravan/base/system/file.h"
#include "caravan/comm/record.h"
#include "caravan/engine/groups.h"
#include "caravan/engine/strategy.h"
#include "caravan/formats/checkpoint/save_steps.h"
#include "tests/data/support.h"
#include "tests/engine/parameters.h"
#include "tests/formats/pieces.h"

namespace caravan::testing::many_ranks_test {
namespace {

namespace fs = std::filesystem;

constexpr int kRanks = 4096;
constexpr const char* kMoments[] = {"", "optimizer.adamw.exp_avg.", "optimizer.adamw.exp_avg_sq."};

/// Sharded layouts under ZeRO-3 on `ranks` ranks, by name.
std::map<std::string, Layout> rest_layouts(Module& model, const Mesh& mesh) {
  Strategy strategy = whole_model(model, mesh);
  add_data_axis(strategy, mesh, "dp");
  shard_at_rows(strategy, mesh, "dp");
  std::map<std::string, Layout> layouts;
  for (const Parameter* parameter : model.parameters()) {
    layouts[parameter->name()] = layouts_of(strategy, *parameter).sharded;
  }
  return layouts;
}

/// In memory if possible: thousands of files are flushed one by one.
class FolderInMemory {
 public:
  FolderInMemory()
      : path_((fs::is_directory("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path()) /
              ("caravan_test_" + std::to_string(::getpid()))) {
    fs::create_directories(path_);
  }
  ~FolderInMemory() {
    std::error_code error;
    fs::remove_all(path_, error);
  }
  FolderInMemory(const FolderInMemory&) = delete;
  FolderInMemory& operator=(const FolderInMemory&) = delete;
  fs::path operator/(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

TEST(ManyRanks, TheirCheckpointIsReadByTwoRanks) {
  const FolderInMemory run;
  const fs::path folder = run / "step_000005";
  fs::create_directories(folder);
  // One tensor with more rows than ranks, and others with fewer.
  Chain model({{{"long", {9000, 2}}, {"small", {40, 6}}, {"bias", {40}, false}}, {{"scalar", {}}, {"other", {5000}}}});
  const std::map<std::string, Layout> layouts =
      rest_layouts(model, Mesh::create(make_record_world(0, kRanks), {{"dp", kRanks}}));
  Whole saved;
  for (const Parameter* parameter : model.parameters()) {
    const int64_t elements = c10::multiply_integers(parameter->global_shape());
    for (const char* moment : kMoments) {
      saved[moment + parameter->name()] =
          at::arange(elements, at::kFloat).add(static_cast<double>(saved.size())).sin().view(parameter->global_shape());
    }
  }
  std::vector<std::string> reports;
  size_t report_bytes = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    const Mesh mesh = Mesh::create(make_record_world(rank, kRanks), {{"dp", kRanks}});
    std::vector<CheckpointPiece> pieces;
    for (const Parameter* parameter : model.parameters()) {
      for (const char* moment : kMoments) {
        const std::string name = moment + parameter->name();
        pieces.push_back(piece_of(name, saved.at(name), layouts.at(parameter->name()), mesh));
      }
    }
    reports.push_back(write_shard(folder, my_share(pieces), rank));
    report_bytes += reports.back().size();
  }
  const Manifest manifest = manifest_of({.step = 5, .model = "{}"}, reports);
  write_file(folder / kManifestName, manifest.to_json());
  // A rank reports only the pieces that it writes; each takes a few numbers in the manifest.
  int64_t num_pieces = 0;
  for (const auto& [name, tensor] : manifest.tensors) num_pieces += static_cast<int64_t>(tensor.pieces.size());
  EXPECT_GT(num_pieces, 5 * kRanks);
  EXPECT_LT(report_bytes, static_cast<size_t>(num_pieces) * 200 + kRanks * 200);
  EXPECT_LT(fs::file_size(folder / kManifestName), static_cast<size_t>(num_pieces) * 30 + kRanks * 120);

  on_ranks({{"dp", 2}}, [&](const Mesh& mesh) {
    CheckpointReader reader(folder);
    reader.verify(mesh.world());
    reader.check(names_and_shapes(saved));
    for (const auto& [name, tensor] : saved) {
      const Layout rows = tensor.dim() == 0 ? Layout{} : Layout{{"dp", Shard{0}}};
      const CheckpointPiece wanted = piece_of(name, tensor, rows, mesh);
      at::Tensor out = at::full_like(wanted.tensor, -7);
      reader.read(name, wanted.boxes, out);
      EXPECT_TRUE(at::equal(out, wanted.tensor)) << name;
    }
  });
}

}  // namespace
}  // namespace caravan::testing::many_ranks_test
