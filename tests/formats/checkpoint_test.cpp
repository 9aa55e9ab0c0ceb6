#include "caravan/formats/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <thread>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/base/system/file.h"
#include "caravan/formats/checkpoint/background_save.h"
#include "caravan/formats/safetensors/safetensors.h"
#include "tests/data/support.h"
#include "tests/formats/pieces.h"

namespace caravan::testing::checkpoint_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Axes = std::vector<AxisSize>;

const CheckpointInfo kInfo{.step = 5,
                           .position = 77,
                           .optimizer_steps = 4,
                           .counters = {{"epoch", 3}, {"below zero", -7}},
                           .recipe = "[train]\nsteps = 9 # \"é\"\n",
                           .model = "{}",
                           .tokenizer_hash = "abc",
                           .train_hash = "def",
                           .validation_hash = "0123",
                           .numerics = {.ranks = 3, .threads_per_rank = 2, .products = "tiles bf16=fp32"}};

/// [12, 24] splits evenly over 1, 2, 3 and 4 ranks on both dims.
Whole tensors() {
  Whole all;
  const at::Tensor base = at::arange(12 * 24, at::kFloat).view({12, 24}).mul(0.37).sub(9).sin();
  for (const char* name : {"all", "rows", "columns", "uneven", "cut_twice", "both", "blocked", "twice_blocked"})
    all[name] = base + all.size();
  all["vector"] = base.select(1, 3).clone();
  all["scalar"] = base[2][3].clone();
  all["cube"] = base.view({12, 4, 6}).clone();
  return all;
}

std::vector<int64_t> uneven(int n) {
  const std::vector<std::vector<int64_t>> rows{{12}, {7, 5}, {0, 9, 3}, {1, 0, 8, 3}};
  return rows[static_cast<size_t>(n - 1)];
}

/// Layouts of a [12, 24] tensor on a mesh, one of each kind.
std::vector<Layout> layouts(const Axes& axes) {
  const int n = axes.front().size;
  std::vector<Layout> all{{},
                          {{"dp", Shard{0}}},
                          {{"dp", Shard{1}}},
                          {{"dp", Shard{.dim = 0, .sizes = uneven(n)}}},
                          {{"dp", Shard{.dim = 1, .sizes = uneven(n), .blocks = 2}}}};
  if (axes.size() > 1) {
    all.push_back({{"tp", Shard{0}}});
    all.push_back({{"dp", Shard{0}}, {"tp", Shard{1}}});
    all.push_back({{"tp", Shard{0}}, {"dp", Shard{0}}});
    all.push_back({{"tp", Shard{.dim = 0, .blocks = 3}}, {"dp", Shard{.dim = 0, .sizes = {5, 1}}}});
    all.push_back({{"tp", Shard{.dim = 0, .blocks = 3}}, {"dp", Shard{.dim = 1, .blocks = 4}}});
  }
  return all;
}

std::vector<CheckpointPiece> pieces_on(const Whole& tensors, const Axes& axes, const Mesh& mesh) {
  const std::vector<Layout> kinds = layouts(axes);
  std::vector<CheckpointPiece> pieces;
  size_t kind = 0;
  for (const auto& [name, tensor] : tensors) {
    pieces.push_back(piece_of(name, tensor, tensor.dim() == 2 ? kinds[kind++ % kinds.size()] : Layout{}, mesh));
  }
  return pieces;
}

const std::vector<Axes> kMeshes{{{"dp", 1}}, {{"dp", 2}}, {{"dp", 3}}, {{"dp", 4}}, {{"dp", 2}, {"tp", 2}}};

TEST(Checkpoint, EveryLayoutIsReadInEveryOtherBitForBit) {
  const Whole saved = tensors();
  for (const Axes& writers : kMeshes) {
    const TemporaryFolder run;
    on_ranks(writers, [&](const Mesh& mesh) {
      const auto [folder, warning] =
          save_checkpoint(run.path(), kInfo, pieces_on(saved, writers, mesh), mesh.world(), 0);
      EXPECT_EQ(folder, run / "step_000005");
      EXPECT_EQ(warning, "");
    });
    for (const Axes& readers : kMeshes) {
      on_ranks(readers, [&](const Mesh& mesh) {
        CheckpointReader reader(run / "step_000005");
        EXPECT_EQ(reader.info(), kInfo);
        reader.verify(mesh.world());
        reader.check(names_and_shapes(saved));
        for (const auto& [name, tensor] : saved) {
          for (const Layout& layout : tensor.dim() == 2 ? layouts(readers) : std::vector<Layout>{{}}) {
            const CheckpointPiece wanted = piece_of(name, tensor, layout, mesh);
            at::Tensor out = at::full_like(wanted.tensor, -7);
            reader.read(name, wanted.boxes, out);
            EXPECT_TRUE(at::equal(out, wanted.tensor)) << name << " as " << layout.to_string() << ", " << mesh.where();
          }
        }
      });
    }
  }
}

TEST(Checkpoint, ExactlyOneReplicaWritesEachPieceAndTheyShareTheWork) {
  const Whole saved = tensors();
  for (const Axes& axes : kMeshes) {
    const TemporaryFolder run;
    on_ranks(axes, [&](const Mesh& mesh) {
      save_checkpoint(run.path(), kInfo, pieces_on(saved, axes, mesh), mesh.world(), 0);
    });
    int64_t stored = 0;
    int files = 0;
    for (const auto& entry : fs::directory_iterator(run / "step_000005")) {
      if (entry.path().extension() != ".safetensors") continue;
      ++files;
      const SafetensorsFile shard(entry.path());
      for (const auto& [name, tensor] : shard.tensors()) stored += tensor.end - tensor.begin;
    }
    int64_t bytes = 0;
    for (const auto& [name, tensor] : saved) bytes += static_cast<int64_t>(tensor.nbytes());
    EXPECT_EQ(stored, bytes);
    EXPECT_EQ(files, ranks_of(axes));
    const Manifest manifest = Manifest::read(run / "step_000005");
    EXPECT_EQ(manifest.tensors.at("vector").pieces.size(), 1U);
  }
}

TEST(Checkpoint, KeepsTheElementsOfEveryDtype) {
  const TemporaryFolder run;
  const Whole saved{{"bf16", at::arange(30).view({5, 6}).to(at::kBFloat16)},
                    {"fp64", at::arange(7, at::kDouble).div(3)},
                    {"int64", at::arange(-3, 4)},
                    {"nothing", at::empty({0, 4})}};
  on_ranks({{"dp", 2}}, [&](const Mesh& mesh) {
    save_checkpoint(run.path(), kInfo, invariant_pieces(saved, mesh), mesh.world(), 0);
  });
  CheckpointReader reader(run / "step_000005");
  for (const auto& [name, tensor] : saved) EXPECT_TRUE(at::equal(read_whole(reader, name, tensor), tensor)) << name;
  EXPECT_THAT(message_of<DataError>([&] { read_whole(reader, "bf16", at::empty({5, 6})); }), HasSubstr("BF16"));
}

void save(const fs::path& run, int64_t step, const Whole& tensors, int64_t keep) {
  CheckpointInfo info = kInfo;
  info.step = step;
  on_ranks({{"dp", 2}},
           [&](const Mesh& mesh) { save_checkpoint(run, info, invariant_pieces(tensors, mesh), mesh.world(), keep); });
}

std::vector<std::string> entries(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(Checkpoint, KeepsTheNewestAndRemovesLeftoversOfAKilledRun) {
  const TemporaryFolder run;
  const Whole saved{{"w", at::ones({3})}};
  fs::create_directories(run / ".step_000009.tmp/deep");
  write_file(run / "train.log", "a line\n");
  fs::create_directories(run / "step_000000");  // without a manifest: not a checkpoint
  for (const int64_t step : {1, 2, 3}) save(run.path(), step, saved, 2);
  EXPECT_EQ(entries(run.path()), (std::vector<std::string>{"step_000000", "step_000002", "step_000003", "train.log"}));
  save(run.path(), 1'234'567, saved, 0);
  EXPECT_EQ(list_checkpoints(run.path()),
            (std::vector<fs::path>{run / "step_000002", run / "step_000003", run / "step_1234567"}));
  EXPECT_EQ(find_checkpoint(run.path()), run / "step_1234567");
  EXPECT_EQ(find_checkpoint(run / "step_000002"), run / "step_000002");
  EXPECT_THAT(message_of<DataError>([&] { find_checkpoint(run / "step_000000"); }),
              HasSubstr("holds no complete checkpoint"));
  EXPECT_THAT(message_of<DataError>([&] { find_checkpoint(run / "nowhere"); }), HasSubstr("is not there"));
  EXPECT_THAT(message_of<DataError>([&] { find_checkpoint(run / "train.log"); }), HasSubstr("is a file, not a folder"));
}

TEST(Checkpoint, TheSameStepSavedAgainReplacesTheOldOne) {
  const TemporaryFolder run;
  save(run.path(), 5, {{"w", at::ones({300})}}, 2);
  save(run.path(), 5, {{"v", at::full({4}, 2.0F)}}, 2);
  EXPECT_EQ(entries(run.path()), std::vector<std::string>{"step_000005"});
  CheckpointReader reader(run / "step_000005");
  reader.check({{"v", {4}}});
  EXPECT_TRUE(at::equal(read_whole(reader, "v", at::empty({4})), at::full({4}, 2.0F)));
}

TEST(Checkpoint, AFailedWriteOnOneRankFailsTheSave) {
  for (const int failing : {0, 1, 2}) {
    const TemporaryFolder run;
    const Whole saved{{"a", at::ones({64})}, {"b", at::ones({64})}, {"c", at::ones({64})}};
    save(run.path(), 4, saved, 2);
    std::vector<std::string> messages(3);
    on_ranks({{"dp", 3}}, [&](const Mesh& mesh) {
      std::vector<CheckpointPiece> pieces = invariant_pieces(saved, mesh);
      // A shard of 2^60 bytes, which no disk can hold.
      if (mesh.rank() == failing) {
        for (CheckpointPiece& piece : pieces) piece.boxes.front().global.size = {int64_t{1} << 58};
      }
      messages[mesh.rank()] =
          message_of<ResourceError>([&] { save_checkpoint(run.path(), kInfo, pieces, mesh.world(), 2); });
    });
    for (const std::string& message : messages) {
      EXPECT_THAT(message, HasSubstr("rank " + std::to_string(failing)));
      EXPECT_THAT(message, HasSubstr("step_000005"));
      EXPECT_THAT(message, HasSubstr("earlier ones are untouched"));
    }
    EXPECT_EQ(entries(run.path()), std::vector<std::string>{"step_000004"});
    CheckpointReader(run / "step_000004").check(names_and_shapes(saved));
  }
}

/// The values of the moment of begin(), in the same bytes.
TEST(Checkpoint, WrittenInTheBackgroundIsTheSame) {
  for (const int ranks : {1, 2, 3}) {
    const TemporaryFolder run, other;
    const Whole tensors{{"a", at::arange(1000.0)}, {"b", at::ones({7}, at::kHalf)}, {"c", at::ones({0})}};
    on_ranks({{"dp", ranks}}, [&](const Mesh& mesh) {
      save_checkpoint(other.path(), kInfo, invariant_pieces(tensors, mesh), mesh.world(), 2);
      BackgroundSave background(mesh.world());
      for (const int64_t step : {4, 5, 6}) {
        Whole own;
        for (const auto& [name, tensor] : tensors) own[name] = tensor.clone();
        std::vector<CheckpointPiece> pieces = invariant_pieces(own, mesh);
        CheckpointInfo info = kInfo;
        info.step = step;
        background.begin(run.path(), info, pieces);
        for (CheckpointPiece& piece : pieces) piece.tensor.fill_(-1);
        EXPECT_TRUE(background.is_running());
        EXPECT_THROW(background.begin(run.path(), info, pieces), InternalError);
        while (step == 5 && !background.poll()) std::this_thread::yield();
        if (background.is_running()) {
          EXPECT_EQ(background.finish().folder, run / checkpoint_name(step));
        }
        EXPECT_FALSE(background.is_running());
      }
    });
    EXPECT_EQ(entries(run.path()), (std::vector<std::string>{"step_000004", "step_000005", "step_000006"}));
    for (const std::string& name : entries(other / "step_000005")) {
      if (name == "manifest.json") continue;
      const MappedFile here(run / "step_000005" / name, "test"), there(other / "step_000005" / name, "test");
      EXPECT_EQ(here.text(), there.text()) << name;
    }
    CheckpointReader(run / "step_000005").check(names_and_shapes(tensors));
  }
}

TEST(Checkpoint, AFailedBackgroundWriteIsAnErrorOnEveryRank) {
  const TemporaryFolder run;
  const Whole saved{{"a", at::ones({64})}, {"b", at::ones({64})}};
  save(run.path(), 4, saved, 2);
  std::vector<std::string> messages(2);
  on_ranks({{"dp", 2}}, [&](const Mesh& mesh) {
    BackgroundSave background(mesh.world());
    std::vector<CheckpointPiece> pieces = invariant_pieces(saved, mesh);
    if (mesh.rank() == 1) {
      for (CheckpointPiece& piece : pieces) piece.boxes.front().global.size = {int64_t{1} << 58};
    }
    background.begin(run.path(), kInfo, pieces);
    messages[mesh.rank()] = message_of<ResourceError>([&] {
      while (!background.poll()) std::this_thread::yield();
    });
  });
  for (const std::string& message : messages) {
    EXPECT_THAT(message, AllOf(HasSubstr("rank 1"), HasSubstr("earlier ones are untouched")));
  }
  EXPECT_EQ(entries(run.path()), std::vector<std::string>{"step_000004"});
}

TEST(Checkpoint, AnAbandonedSaveLeavesNothing) {
  const TemporaryFolder run;
  on_ranks({{"dp", 2}}, [&](const Mesh& mesh) {
    BackgroundSave background(mesh.world());
    background.begin(run.path(), kInfo, invariant_pieces({{"w", at::ones({1 << 20})}}, mesh));
  });
  EXPECT_THAT(entries(run.path()), ::testing::IsEmpty());
}

TEST(Checkpoint, AFolderThatCannotBeCreatedIsAnErrorOnEveryRank) {
  const TemporaryFolder folder;
  write_file(folder / "file", "");
  std::vector<std::string> messages(3);
  on_ranks({{"dp", 3}}, [&](const Mesh& mesh) {
    messages[mesh.rank()] = message_of<ResourceError>([&] {
      save_checkpoint(folder / "file", kInfo, invariant_pieces({{"w", at::ones({3})}}, mesh), mesh.world(), 0);
    });
  });
  for (const std::string& message : messages) EXPECT_THAT(message, HasSubstr("rank 0"));
}

TEST(Checkpoint, ListsWhatIsMissingUnexpectedAndOfAnotherShape) {
  const TemporaryFolder run;
  Whole saved{{"same", at::ones({2})}, {"other", at::ones({2, 3})}};
  for (int i = 0; i < 7; ++i) saved["extra." + std::to_string(i)] = at::ones({1});
  save(run.path(), 5, saved, 0);
  CheckpointReader reader(run / "step_000005");
  const std::string message = message_of<DataError>([&] {
    reader.check({{"same", {2}}, {"other", {3, 2}}, {"gone", {4}}});
  });
  EXPECT_THAT(message, HasSubstr("lacks gone"));
  EXPECT_THAT(message, HasSubstr("unexpected, extra.0, extra.1, extra.2, extra.3, extra.4 and 2 more"));
  EXPECT_THAT(message, HasSubstr("other [2, 3] (wanted [3, 2])"));
  EXPECT_THAT(message, ::testing::Not(HasSubstr("same")));
}

}  // namespace
}  // namespace caravan::testing::checkpoint_test
