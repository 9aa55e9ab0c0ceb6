// Which rank writes which piece: for all layouts, every element is in the files exactly once.
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/formats/checkpoint/checkpoint.h"
#include "caravan/formats/safetensors/tensor_file.h"
#include "tests/data/support.h"
#include "tests/formats/pieces.h"

namespace caravan::testing::shares_test {
namespace {

namespace fs = std::filesystem;

const CheckpointInfo kInfo{.step = 5, .model = "{}"};

struct Laid {
  std::string name;
  Layout layout;
};

/// [12, 6] splits evenly over 1, 2 and 3 ranks on both dims. All elements of all tensors differ.
Whole tensors_of(const std::vector<Laid>& laid) {
  Whole all;
  for (const Laid& one : laid) {
    all[one.name] = at::arange(72, at::kFloat).view({12, 6}).add(72.0 * static_cast<double>(all.size()));
  }
  return all;
}

std::vector<CheckpointPiece> pieces_of(const std::vector<Laid>& laid, const Whole& whole, const Mesh& mesh) {
  std::vector<CheckpointPiece> pieces;
  for (const auto& [name, layout] : laid) pieces.push_back(piece_of(name, whole.at(name), layout, mesh));
  return pieces;
}

/// Reads the files, not the manifest: each element of each tensor is stored exactly once.
void expect_each_element_once(const fs::path& folder, const Whole& whole) {
  std::map<std::string, std::vector<at::Tensor>> stored;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    const SafetensorsFile file(entry.path());
    EXPECT_FALSE(file.tensors().empty()) << entry.path();
    for (const auto& [name, listed] : file.tensors()) {
      stored[name].push_back(read_tensor(file, name).flatten());
      EXPECT_GT(stored[name].back().numel(), 0) << name << " in " << entry.path();
    }
  }
  EXPECT_EQ(stored.size(), whole.size());
  for (const auto& [name, tensor] : whole) {
    ASSERT_TRUE(stored.contains(name)) << name;
    EXPECT_TRUE(at::equal(std::get<0>(at::sort(at::cat(stored[name]))), tensor.flatten())) << name;
  }
}

void expect_read_back(const fs::path& folder, const Whole& whole) {
  for (const int ranks : {1, 2, 3}) {
    on_ranks({{"dp", ranks}}, [&](const Mesh& mesh) {
      CheckpointReader reader(folder);
      reader.verify(mesh.world());
      reader.check(names_and_shapes(whole));
      const std::vector<Layout> layouts{
          {}, {{"dp", Shard{0}}}, {{"dp", Shard{1}}}, {{"dp", Shard{.dim = 0, .owner = ranks - 1}}}};
      for (const auto& [name, tensor] : whole) {
        for (const Layout& layout : layouts) {
          const CheckpointPiece wanted = piece_of(name, tensor, layout, mesh);
          at::Tensor out = at::full_like(wanted.tensor, -7);
          reader.read(name, wanted.boxes, out);
          EXPECT_TRUE(at::equal(out, wanted.tensor)) << name << " as " << layout.to_string() << ", " << mesh.where();
        }
      }
    });
  }
}

/// Two axes of the same size, and ranks with different numbers of rows. A rank that counts its own bytes, or mistakes a
/// replica over one axis for one over the other, gets another assignment than the others.
TEST(Shares, EveryElementIsWrittenOnceWhateverCutsTheTensors) {
  const auto uneven = [](int64_t first, int64_t second) { return Shard{.dim = 0, .sizes = {first, second}}; };
  const std::vector<Laid> laid{{"uneven over tp", {{"tp", uneven(9, 3)}}},
                               {"over dp", {{"dp", Shard{1}}}},
                               {"over dp again", {{"dp", Shard{0}}}},
                               {"over tp", {{"tp", Shard{1}}}},
                               {"over neither", {}},
                               {"over both", {{"dp", Shard{0}}, {"tp", Shard{1}}}},
                               {"no rows on dp=0", {{"dp", uneven(0, 12)}}},
                               {"no rows on tp=1", {{"tp", uneven(12, 0)}}},
                               {"on dp=1 alone", {{"dp", Shard{.dim = 0, .owner = 1}}}},
                               {"rows on one rank", {{"dp", uneven(0, 12)}, {"tp", Shard{.dim = 0, .owner = 0}}}},
                               {"over dp, uneven over tp", {{"dp", Shard{1}}, {"tp", uneven(2, 10)}}},
                               {"the last over dp", {{"dp", Shard{0}}}},
                               {"the last over tp", {{"tp", Shard{0}}}},
                               {"the last over neither", {}}};
  // The order of the pieces changes the assignment.
  for (size_t turn = 0; turn < laid.size(); ++turn) {
    std::vector<Laid> turned = laid;
    std::rotate(turned.begin(), turned.begin() + static_cast<std::ptrdiff_t>(turn), turned.end());
    const TemporaryFolder run;
    const Whole whole = tensors_of(turned);
    on_ranks({{"dp", 2}, {"tp", 2}}, [&](const Mesh& mesh) {
      save_checkpoint(run.path(), kInfo, pieces_of(turned, whole, mesh), mesh.world(), 0);
    });
    SCOPED_TRACE("first " + turned.front().name);
    expect_each_element_once(run / "step_000005", whole);
    if (turn == 0) expect_read_back(run / "step_000005", whole);
  }
}

TEST(Shares, LayoutsMayNameAFactoredAxisOrItsParts) {
  const std::vector<Laid> laid{{"dp", {{"dp", Shard{0}}}},
                               {"shard", {{"shard", Shard{0}}}},
                               {"replicate", {{"replicate", Shard{1}}}},
                               {"copies on dp", {{"dp", Invariant{}}}},
                               {"copies", {}},
                               {"joined", {{"rt", Shard{0}}}}};
  const TemporaryFolder run;
  const Whole whole = tensors_of(laid);
  on_ranks({{"dp", 4}, {"tp", 2}}, [&](const Mesh& mesh) {
    const Mesh derived = mesh.factor("dp", {{"replicate", 2}, {"shard", 2}}).join("rt", {"replicate", "tp"});
    save_checkpoint(run.path(), kInfo, pieces_of(laid, whole, derived), mesh.world(), 0);
  });
  expect_each_element_once(run / "step_000005", whole);
  expect_read_back(run / "step_000005", whole);
}

/// Ranks have different tensors: each stage its own, and the first and the last the same one.
TEST(Shares, ATensorOfSomeRanksIsWrittenByOneOfThem) {
  const std::vector<Laid> laid{{"own 0", {{"pp{0}", Invariant{}}}},
                               {"own 1", {{"pp{1}", Invariant{}}, {"dp", Shard{0}}}},
                               {"tied", {{"pp{0,2}", Invariant{}}}},
                               {"tied and cut", {{"pp{0,2}", Invariant{}}, {"dp", Shard{1}}}},
                               {"own 2", {{"pp{2}", Invariant{}}}}};
  const TemporaryFolder run;
  const Whole whole = tensors_of(laid);
  on_ranks({{"pp", 3}, {"dp", 2}}, [&](const Mesh& mesh) {
    const Mesh stages = mesh.part("pp", {0}).part("pp", {1}).part("pp", {2}).part("pp", {0, 2});
    std::vector<Laid> here;
    for (const Laid& one : laid) {
      if (stages.has(one.layout.entries().front().first)) here.push_back(one);
    }
    save_checkpoint(run.path(), kInfo, pieces_of(here, whole, stages), mesh.world(), 0);
  });
  expect_each_element_once(run / "step_000005", whole);
  expect_read_back(run / "step_000005", whole);
}

}  // namespace
}  // namespace caravan::testing::shares_test
