// ShardedSampler: rows dealt to ranks by a loader of torch::data.
#include <algorithm>
#include <gmock/gmock.h>
#include <mutex>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/data.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "caravan/base/error.h"
#include "caravan/session/parallelize.h"
#include "caravan/session/sharded_sampler.h"
#include "tests/data/support.h"
#include "tests/formats/pieces.h"
#include "tests/needs.h"

namespace caravan::testing::sampler_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using Rows = std::vector<int64_t>;

struct Numbers : torch::data::Dataset<Numbers> {
  explicit Numbers(size_t count) : count(count) {}
  torch::data::Example<> get(size_t i) override {
    return {at::scalar_tensor(static_cast<int64_t>(i), at::kLong), at::scalar_tensor(0)};
  }
  std::optional<size_t> size() const override { return count; }
  size_t count;
};

auto make_loader(const ShardedSampler& sampler, int64_t rows, int64_t batch, size_t workers) {
  return torch::data::make_data_loader(Numbers(static_cast<size_t>(rows)).map(torch::data::transforms::Stack<>()),
                                       sampler,
                                       torch::data::DataLoaderOptions(static_cast<size_t>(batch)).workers(workers));
}

/// The batches of a loop over `epochs` epochs, whole: those of all ranks, one rank's rows behind the other's. `from`:
/// the state of a sampler, "": its beginning. `most`: batches after which the loop is left; `to`: the state then.
std::vector<Rows> deal(int ranks, int64_t rows, int64_t batch, const SamplerOptions& options, int64_t epochs,
                       size_t workers = 0, const std::string& from = "", size_t most = 1000,
                       std::string* to = nullptr) {
  std::vector<std::vector<Rows>> all(static_cast<size_t>(ranks));
  on_ranks({{"dp", ranks}}, [&](const Mesh& mesh) {
    ShardedSampler sampler(rows, mesh["dp"], options);
    const auto loader = make_loader(sampler, rows, batch, workers);
    if (!from.empty()) sampler.load(from);
    std::vector<Rows>& own = all[static_cast<size_t>(mesh.rank())];
    while (sampler.epoch() < epochs && own.size() < most) {
      for (auto& [x, y] : sampler.over(*loader)) {
        own.emplace_back(x.template data_ptr<int64_t>(), x.template data_ptr<int64_t>() + x.numel());
        if (own.size() >= most) {
          if (to != nullptr && mesh.rank() == 0) *to = sampler.save();
          break;
        }
      }
    }
  });
  std::vector<Rows> batches;
  for (size_t i = 0; i < all[0].size(); ++i) {
    Rows& whole = batches.emplace_back();
    for (const auto& own : all) {
      EXPECT_EQ(own.size(), all[0].size()) << "ranks have as many batches";
      if (i < own.size()) whole.insert(whole.end(), own[i].begin(), own[i].end());
    }
  }
  return batches;
}

Rows sorted(const std::vector<Rows>& batches) {
  Rows all;
  for (const Rows& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
  std::ranges::sort(all);
  return all;
}

Rows each_once(int64_t rows, int64_t epochs = 1) {
  Rows all;
  for (int64_t i = 0; i < rows * epochs; ++i) all.push_back(i / epochs);
  return all;
}

TEST(ShardedSampler, EveryRowGoesToOneRankOnce) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const int64_t rows : {24, 25, 29}) {
      for (const int64_t batch : {1, 3, 50}) {
        for (const size_t workers : {0, 1}) {
          if (workers == 1 && (batch != 3 || ranks > 2)) continue;
          SCOPED_TRACE(fmt::format("{} ranks, {} rows, batches of {}, {} workers", ranks, rows, batch, workers));
          const auto batches = deal(ranks, rows, batch, {}, 1, workers);
          EXPECT_EQ(sorted(batches), each_once(rows));
          const auto dropped = deal(ranks, rows, batch, {.drop_last = true}, 1, workers);
          EXPECT_EQ(static_cast<int64_t>(dropped.size()), rows / (batch * ranks));
          for (const Rows& one : dropped) EXPECT_EQ(static_cast<int64_t>(one.size()), batch * ranks);
        }
      }
    }
  }
}

TEST(ShardedSampler, BatchesAreTheSameOnEveryNumberOfRanks) {
  const auto want = deal(1, 26, 12, {.seed = 5}, 2);
  EXPECT_EQ(deal(2, 26, 6, {.seed = 5}, 2), want);
  EXPECT_EQ(deal(3, 26, 4, {.seed = 5}, 2), want);
  EXPECT_NE(deal(1, 26, 12, {.seed = 6}, 2), want);
  ASSERT_EQ(want.size(), 4U);
  EXPECT_EQ(want[1].size(), 14U) << "a small rest goes with the last batch";
  EXPECT_NE(want[0], want[2]) << "another order in the next epoch";
  const auto plain = deal(2, 26, 6, {.shuffle = false}, 1);
  EXPECT_TRUE(std::ranges::is_sorted(plain[0]));
}

/// Where a loop was left, any number of ranks goes on: with workers the loader is ahead of the loop.
TEST(ShardedSampler, GoesOnWithoutRepeatsOrOmissions) {
  for (const size_t workers : {0, 2}) {
    for (const auto& [writer, reader] : std::vector<std::pair<int, int>>{{2, 2}, {2, 3}, {3, 1}, {1, 4}}) {
      for (const size_t most : {2, 5}) {  // in the first epoch, in the second
        SCOPED_TRACE(fmt::format("{} to {} ranks after {} batches, {} workers", writer, reader, most, workers));
        std::string state;
        const int64_t batch = 16 / (writer == 3 ? 4 : writer);
        std::vector<Rows> all = deal(writer, 48, batch, {}, 2, workers, "", most, &state);
        const auto rest = deal(reader, 48, reader == 3 ? 2 : 4, {}, 2, workers, state);
        all.insert(all.end(), rest.begin(), rest.end());
        EXPECT_EQ(sorted(all), each_once(48, 2));
      }
    }
  }
  // As many rows over all ranks: the same batches as without a stop.
  std::string state;
  auto all = deal(2, 26, 6, {}, 2, 1, "", 2, &state);
  const auto rest = deal(3, 26, 4, {}, 2, 1, state);
  all.insert(all.end(), rest.begin(), rest.end());
  EXPECT_EQ(all, deal(1, 26, 12, {}, 2));
}

TEST(ShardedSampler, IsKeptByCheckpoints) {
  needs({"ddp"});
  const TemporaryFolder folder;
  const auto train = [&](int ranks, size_t most) {
    std::vector<Rows> all(static_cast<size_t>(ranks));
    on_ranks({{"dp", ranks}}, [&](const Mesh& mesh) {
      ParallelModel model(torch::nn::Sequential(torch::nn::Linear(1, 1)), mesh, {});
      ShardedSampler sampler(24, mesh["dp"]);
      const auto loader = make_loader(sampler, 24, 12 / ranks, 1);
      model.attach("sampler", sampler);
      Progress now = model.load(folder / "run");
      while (now.step < static_cast<int64_t>(most)) {
        for (auto& [x, y] : sampler.over(*loader)) {
          for (int64_t i = 0; i < x.numel(); ++i) all[mesh.rank()].push_back(x[i].template item<int64_t>());
          if (++now.step == static_cast<int64_t>(most)) break;
        }
      }
      model.save(folder / "run", now);
    });
    return all;
  };
  std::vector<Rows> all = train(2, 1);
  for (const Rows& rows : train(3, 2)) all.push_back(rows);
  EXPECT_EQ(sorted(all), each_once(24));
  std::vector<Rows> second;  // taken to its end, in the loop or not: the next epoch
  for (const Rows& rows : train(1, 4)) second.push_back(rows);
  EXPECT_EQ(sorted(second), each_once(24));
}

TEST(ShardedSampler, RefusesWhatDoesNotFit) {
  const auto errors = [](int ranks, const std::function<void(const Mesh&)>& body) {
    std::vector<std::string> all(static_cast<size_t>(ranks));
    on_ranks({{"dp", ranks}}, [&](const Mesh& mesh) {
      try {
        body(mesh);
      } catch (const Error& error) {
        all[static_cast<size_t>(mesh.rank())] = error.what();
      }
      mesh.world().barrier("after it");
    });
    return all;
  };
  EXPECT_THAT(errors(3, [](const Mesh& mesh) { ShardedSampler(2, mesh["dp"]); }),
              Each(HasSubstr("rows: 2 are fewer than the 3 ranks of dp")));
  EXPECT_THAT(errors(2,
                     [](const Mesh& mesh) {
                       ShardedSampler(20, mesh["dp"], {.seed = 1U + static_cast<uint64_t>(mesh.rank())});
                     }),
              Each(HasSubstr("seed: is 1 on rank 0 and 2 on rank 1")));
  EXPECT_THAT(errors(2,
                     [](const Mesh& mesh) {
                       ShardedSampler sampler(20, mesh["dp"]);
                       sampler.next(static_cast<size_t>(3 + mesh.rank()));
                     }),
              Each(HasSubstr("batch size: is 3 on rank 0 and 4 on rank 1")));
  EXPECT_THAT(errors(1,
                     [](const Mesh& mesh) {
                       ShardedSampler sampler(20, mesh["dp"]);
                       const auto loader = make_loader(sampler, 20, 4, 0);
                       for (auto& unused : *loader) (void)unused;
                       sampler.save();
                     }),
              Each(AllOf(HasSubstr("fetched without over()"), HasSubstr("sampler.over(*loader)"))));
  const auto load = [&](int ranks, const std::string& state) {
    return errors(ranks, [&](const Mesh& mesh) { ShardedSampler(20, mesh["dp"]).load(state); });
  };
  EXPECT_THAT(load(1, "rows 21 seed 1 shuffle 1 epoch 0 position 4"), Each(HasSubstr("rows: was 21")));
  EXPECT_THAT(load(1, "rows 20 seed 2 shuffle 1 epoch 0 position 4"), Each(HasSubstr("seed: was 2")));
  EXPECT_THAT(load(1, "rows 20 seed 1 shuffle 0 epoch 0 position 4"), Each(HasSubstr("shuffle: was false")));
  EXPECT_THAT(load(1, "what"), Each(HasSubstr("is not that of a sampler")));
  EXPECT_THAT(load(1, "rows 20 seed 1 shuffle 1 epoch 0 position 24"), Each(HasSubstr("is not that of a sampler")));
  EXPECT_THAT(load(4, "rows 20 seed 1 shuffle 1 epoch 0 position 18"),
              Each(HasSubstr("2 of 20 rows of epoch 0 are left, fewer than 4 ranks")));
}

}  // namespace
}  // namespace caravan::testing::sampler_test
