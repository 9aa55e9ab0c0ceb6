#include <algorithm>
#include <bit>
#include <cstdlib>
#include <fstream>
#include <gmock/gmock.h>
#include <map>
#include <regex>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/base/trace/path_log.h"
#include "caravan/recipe/recipe.h"
#include "tests/mesh/refusal.h"
#include "tests/techniques/product.h"
#include "tests/train/tiny_run.h"

namespace caravan::testing::offload_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Keys = std::vector<std::string>;

class OffloadTest : public ::testing::Test {
 protected:
  // Host memory may be touched by copies and the optimizer only: else the process dies.
  OffloadTest() { setenv("CARAVAN_PROTECT_HOST", "1", 1); }
  ~OffloadTest() override { unsetenv("CARAVAN_PROTECT_HOST"); }

  Keys tiers(const Keys& kinds, const std::string& tier) const {
    Keys keys;
    for (const std::string& kind : kinds) keys.push_back("offload." + kind + "=" + tier);
    if (tier == "disk") keys.push_back("offload.disk_dirs=" + (runs_ / "tiers").string());
    return keys;
  }

  std::filesystem::path train(const std::string& name, int ranks, const Keys& keys, Architecture kind) {
    Keys all = together({{"train.steps=3", "checkpoint.every=0", "train.eval_every=0", "sample.tokens=0",
                          "comm.backend=thread", "comm.threads_per_rank=1"},
                         keys});
    const Recipe recipe = runs_.recipe(kind, name, all);
    paths_.clear();
    run_thread_ranks(ranks,
                     [&](const std::shared_ptr<Communicator>& world) {
                       const PathScope counted(&paths_);
                       caravan::train({.recipe = recipe, .folders = runs_.folders()}, world);
                     },
                     {.timeout = std::chrono::seconds(20)});
    return runs_ / name;
  }

  /// Losses, norms and every tensor of the checkpoint have the same bits as without offload.
  void expect_same(int ranks, const Keys& technique, const Keys& offload, Architecture kind = Architecture::gpt2()) {
    expect_as(train("without" + std::to_string(count_++), ranks, technique, kind), ranks, technique, offload, kind);
  }
  void expect_as(const std::filesystem::path& without, int ranks, const Keys& technique, const Keys& offload,
                 Architecture kind) {
    SCOPED_TRACE(::testing::PrintToString(technique) + ::testing::PrintToString(offload));
    const auto with = train("with" + std::to_string(count_++), ranks, together({technique, offload}), kind);
    EXPECT_EQ(number_lines(with), number_lines(without));
    EXPECT_EQ(first_difference(checkpoint_tensors(with), checkpoint_tensors(without)), "");
  }
  /// The last run has moved what it was told to.
  void expect_moved(const std::string& kind, const std::string& tier) const {
    const PathCounts paths = paths_.counts();
    const auto expect_any = [&](const std::vector<std::string>& any) {
      EXPECT_TRUE(std::ranges::any_of(any, [&](const std::string& path) { return paths.contains(path); })) << any[0];
    };
    if (kind == "parameters") expect_any({"parameters loaded from " + tier});
    if (kind == "gradients") expect_any({"gradients stored on " + tier, "schedule: step of a group"});
    if (kind == "optimizer") expect_any({"optimizer on the host"});
    if (kind == "activations") {
      expect_any({"activations: store"});
      expect_any({"activations: load"});
    }
  }
  void remove(const std::string& name) const { std::filesystem::remove_all(runs_ / name); }

  TinyRuns runs_;
  PathLog paths_;  ///< of the last run
  int count_ = 0;
};

const Keys kAll{"optimizer", "gradients", "parameters", "activations"};
const Keys kState{"optimizer", "gradients", "parameters"};

TEST_F(OffloadTest, EveryKindOnEachTierUnderEachTechnique) {
  int ranks = 1;
  for (const char* technique : {"ddp", "zero1", "zero2", "zero3"}) {
    for (const std::string& kind : kAll) {
      for (const char* tier : {"host", "disk"}) {
        expect_same(ranks, {std::string("data_parallel.technique=") + technique, micro_batch(ranks, 3)},
                    tiers({kind}, tier));
        ranks = ranks % 3 + 1;
      }
    }
  }
}

TEST_F(OffloadTest, AllKindsBesideOtherTechniques) {
  const std::vector<Keys> others{
      {"data_parallel.technique=zero3", "memory.recompute=full"},
      {"data_parallel.technique=zero1", "precision.compute=bf16", "precision.gradients=bf16"},
      {"data_parallel.technique=zero2", "precision.compute=fp16"},
      {"data_parallel.technique=zero2", "data_parallel.accumulate=full"},
      {"data_parallel.technique=zero3", "moe.experts=4"},
      {"data_parallel.technique=zero3", "lora.rank=2"},
      {"mesh.tp=2"},
      {"mesh.cp=2", "model.dropout=0"},
      {"mesh.pp=2", "pipeline.micro_batches=4", "model.tie_embeddings=true"},
      {"mesh.pp=2", "pipeline.schedule=zb-h1", "pipeline.micro_batches=4"},
      {"optimizer.kind=sgd", "optimizer.momentum=0.9"},
      {"optimizer.kind=lion", "optimizer.lr=1e-4"},
      {"optimizer.groups=[{parameters = [\"*.bias\"], lr_factor = 3, weight_decay = 0.5}]"}};
  bool on_disk = false;
  for (const Keys& other : others) {
    const bool has_pipeline = other.front() == "mesh.pp=2";
    expect_same(2, together({other, has_pipeline ? Keys() : Keys{"train.micro_batch=6"}}),
                tiers(kAll, on_disk ? "disk" : "host"), on_disk ? Architecture::llama() : Architecture::gpt2());
    on_disk = !on_disk;
  }
  expect_same(3, {"data_parallel.technique=param_server", "data_parallel.servers=2"}, tiers(kAll, "host"));
  expect_same(2, {"data_parallel.technique=replicas"}, tiers(kAll, "disk"));
  expect_same(4, {"data_parallel.technique=hsdp", "data_parallel.shard=2", "train.micro_batch=3"}, tiers(kAll, "host"));
}

/// What an attack has found: a loss deposits gradients in its forward; with one data-parallel rank nothing is reduced,
/// nor rounded; weight gradients are put off while sums are rounded.
TEST_F(OffloadTest, SumsComeBackWhereverTheyAreUsed) {
  expect_same(2, {"data_parallel.technique=ddp", "train.micro_batch=6"},
              together({tiers({"gradients", "optimizer"}, "host"), {"offload.prefetch=0"}}));
  expect_same(2, {"data_parallel.technique=zero3", "data_parallel.accumulate=full", "train.micro_batch=6"},
              together({tiers({"gradients"}, "disk"), {"offload.prefetch=0"}}));
  expect_same(1, {"precision.reduce=bf16", "train.micro_batch=12"}, tiers({"gradients"}, "host"));
  expect_same(2, {"mesh.pp=2", "pipeline.schedule=zb-h2", "pipeline.micro_batches=6", "precision.gradients=bf16"},
              tiers({"gradients"}, "host"));
  expect_same(2,
              {"mesh.pp=2", "pipeline.schedule=zb-v", "model.layers=4", "pipeline.micro_batches=4", "tiling.tiles=3"},
              tiers({"gradients"}, "disk"));
  for (const char* technique : {"ddp", "zero2", "zero3"}) {  // one rank reduces in place, whatever the technique
    expect_same(1,
                {std::string("data_parallel.technique=") + technique, "memory.recompute=full", "train.micro_batch=6",
                 "model.layers=6"},
                tiers(kState, "host"));
    EXPECT_TRUE(paths_.counts().contains("gradients moved between micro-batches")) << technique;
  }
}

/// Without protection the host steps on a thread of its own, beside the next forward; checkpoints, evaluations and what
/// else reads the state wait for it.
TEST_F(OffloadTest, TheHostStepsBesideTheNextForward) {
  unsetenv("CARAVAN_PROTECT_HOST");
  const Keys reads{"checkpoint.every=1", "train.eval_every=1", "train.micro_batch=6"};
  for (const char* technique : {"ddp", "zero1", "zero3"}) {
    for (const char* tier : {"host", "disk"}) {
      const std::string name = std::string("data_parallel.technique=") + technique;
      expect_same(2, together({reads, {name}}), tiers(kState, tier));
      expect_same(2, {name, "train.micro_batch=3", "precision.compute=bf16"}, tiers({"optimizer"}, tier));
      expect_same(2, {name, "train.micro_batch=6", "optimizer.clip_norm=0"}, tiers(kState, tier));
    }
  }
  expect_same(2, {"mesh.pp=2", "pipeline.micro_batches=4", "model.tie_embeddings=true"}, tiers(kState, "host"));
  expect_same(2, {"data_parallel.technique=zero1", "optimizer.kind=sgd", "train.micro_batch=6"}, tiers(kState, "host"));
}

/// Without clipping each group steps as soon as its gradients are complete.
TEST_F(OffloadTest, GroupsStepEarlyWhereNothingWaitsForTheNorm) {
  for (const char* technique : {"ddp", "zero3"}) {
    const Keys keys{std::string("data_parallel.technique=") + technique, "optimizer.clip_norm=0",
                    "train.micro_batch=9"};
    expect_same(1, keys, tiers(kState, "host"));
    EXPECT_TRUE(paths_.counts().contains("schedule: step of a group"));
    expect_same(2, keys, tiers(kState, "disk"));
    expect_same(2, keys, tiers({"gradients", "parameters"}, "host"));
  }
  // The owner of a tied embedding steps it; the other stage has nothing of it.
  expect_same(2, {"mesh.pp=2", "pipeline.micro_batches=4", "model.tie_embeddings=true", "optimizer.clip_norm=0"},
              tiers(kState, "host"));
}

/// One unit, the tied embedding, is larger than all others, and micro-batches follow each other: what the device holds
/// does not depend on the speed of links, so that a rehearsal knows it.
TEST_F(OffloadTest, TheDeviceHoldsWhatIsPredicted) {
  unsetenv("CARAVAN_PROTECT_HOST");
  const auto number = [](const std::string& line, const std::string& key) {
    std::smatch found;
    EXPECT_TRUE(std::regex_search(line, found, std::regex("\"" + key + "\":([0-9]+)"))) << line;
    return std::stod(found[1]);
  };
  const Keys keys{"data_parallel.technique=zero3", "train.micro_batch=2", "model.vocabulary=3000",
                  "model.tie_embeddings=true"};
  for (const char* tier : {"host", "disk"}) {
    const auto run = train(std::string("wide_") + tier, 2, together({keys, tiers(kState, tier)}), Architecture::gpt2());
    std::ifstream log(run / "train.log");
    for (std::string line; std::getline(log, line);) {
      if (line.find("predicted_memory_bytes") == std::string::npos) continue;
      const double predicted = number(line, "predicted_memory_bytes");
      const double measured = number(line, "peak_memory_bytes");
      EXPECT_LE(measured, predicted) << tier;
      EXPECT_GE(measured, 0.92 * predicted) << tier;
    }
  }
}

TEST_F(OffloadTest, TiersOfKindsMayDiffer) {
  const Keys folder{"offload.disk_dirs=" + (runs_ / "tiers").string()};
  expect_same(2, {"data_parallel.technique=zero3", "train.micro_batch=6"},
              together({{"offload.optimizer=disk", "offload.parameters=host", "offload.gradients=host"}, folder}));
  expect_same(2, {"data_parallel.technique=zero2", "precision.compute=bf16"},
              together({{"offload.optimizer=host", "offload.parameters=disk", "offload.prefetch=3"}, folder}));
  expect_same(1, {"data_parallel.technique=ddp"}, together({{"offload.optimizer=disk", "offload.prefetch=0"}, folder}));
}

/// A checkpoint does not depend on tiers: a run continues on other ranks with other tiers.
TEST_F(OffloadTest, ResumesBetweenTiersAndLayouts) {
  const Keys common{"checkpoint.every=2", "train.steps=4",           "train.eval_every=0",
                    "sample.tokens=0",    "comm.threads_per_rank=1", "model.dropout=0"};
  const auto recipe = [&](const std::string& name, const Keys& keys) {
    return runs_.recipe(Architecture::gpt2(), name, together({common, keys}));
  };
  const Keys zero3{"data_parallel.technique=zero3", "train.micro_batch=9"};
  train_on(2, {.recipe = recipe("whole", zero3), .folders = runs_.folders()});
  const std::vector<std::pair<Keys, Keys>> changes{
      {tiers(kState, "disk"), {}}, {{}, tiers(kAll, "disk")}, {tiers(kState, "host"), tiers(kState, "disk")}};
  for (size_t i = 0; i < changes.size(); ++i) {
    const std::string name = "resumed" + std::to_string(i);
    train_on(
        2, {.recipe = recipe(name, together({zero3, changes[i].first})), .folders = runs_.folders(), .stop_after = 2});
    train_on(
        2, {.recipe = recipe(name, together({zero3, changes[i].second})), .folders = runs_.folders(), .resume = true});
    EXPECT_EQ(first_difference(checkpoint_tensors(runs_ / name), checkpoint_tensors(runs_ / "whole")), "") << i;
  }
}

TEST_F(OffloadTest, AutoMovesTheLeastThatFits) {
  const Keys automatic{"offload.optimizer=auto", "offload.gradients=auto", "offload.parameters=auto",
                       "offload.activations=auto", "train.micro_batch=6"};
  const auto kept = [&](const std::string& name, const std::string& budget) {
    train(name, 1, together({automatic, {"offload.device_budget=" + budget}}), Architecture::gpt2());
    return load_recipe(runs_ / name / "recipe.toml", {}).offload;
  };
  EXPECT_EQ(kept("wide", "1G").text("optimizer"), "none");
  const std::string error = refusal<ResourceError>([&] { kept("narrow", "100K"); });
  EXPECT_THAT(error, AllOf(HasSubstr("offload.device_budget"), HasSubstr("rank 0 needs"), HasSubstr("100 KiB")));
}

TEST_F(OffloadTest, ErrorsNameTheWayOut) {
  const auto error_of = [&](const Keys& keys) {
    return refusal<UsageError>([&] { train("bad", 2, keys, Architecture::gpt2()); });
  };
  EXPECT_THAT(error_of({"offload.optimizer=disk"}), AllOf(HasSubstr("offload.disk_dirs"), HasSubstr("local disks")));
  EXPECT_THAT(error_of({"offload.optimizer=hots"}), HasSubstr("nearest is 'host'"));
  EXPECT_THAT(error_of({"offload.device_budget=much"}), HasSubstr("1.5G"));
  EXPECT_THAT(error_of({"offload.optimizer=host", "offload.disk_dirs=x"}), HasSubstr("\"disk\" or \"auto\""));
  EXPECT_THAT(error_of({"offload.optimizer=host", "data_parallel.technique=param_server", "data_parallel.mode=async",
                        "optimizer.clip_norm=0"}),
              HasSubstr("cannot rest outside of the device"));
  EXPECT_THAT(error_of({"offload.optimizer=auto"}), HasSubstr("offload.device_budget"));
  EXPECT_THAT(error_of({"offload.parameters=host", "data_parallel.technique=zero3", "data_parallel.share=on"}),
              HasSubstr("data_parallel.share"));
  EXPECT_THAT(error_of({"offload.parameters=host", "data_parallel.technique=zero3",
                        "data_parallel.reshard_after_forward=false"}),
              HasSubstr("gathered again for backward"));
}

/// One arrangement without offload, beside which each kind is offloaded to each tier.
struct Arrangement {
  Keys keys;
  Architecture arch;
  int ranks;
};

/// On two data-parallel ranks. Of two that differ in one choice, one clips, and the other steps early.
std::vector<Arrangement> arrangements() {
  std::vector<Arrangement> all;
  for (const char* technique : {"ddp", "zero1", "zero2", "zero3"}) {
    for (const char* model : {"gpt2", "llama", "experts"}) {
      for (int choice = 0; choice < 16; ++choice) {
        const bool accumulates = choice & 1, recomputes = choice & 2, has_stages = choice & 4, is_split = choice & 8;
        Arrangement one{.keys = {std::string("data_parallel.technique=") + technique},
                        .arch = std::string(model) == "gpt2" ? Architecture::gpt2() : Architecture::llama(),
                        .ranks = 2 * (has_stages ? 2 : 1) * (is_split ? 2 : 1)};
        if (std::string(model) == "experts") one.keys.emplace_back("moe.experts=4");
        if (recomputes) one.keys.emplace_back("memory.recompute=full");
        if (has_stages) one.keys.emplace_back("mesh.pp=2");
        if (is_split) one.keys.emplace_back("mesh.tp=2");
        one.keys.emplace_back(has_stages ? accumulates ? "pipeline.micro_batches=6" : "pipeline.micro_batches=3"
                                         : micro_batch(2, accumulates ? 3 : 1));
        if (std::popcount(all.size()) % 2 == 0) one.keys.emplace_back("optimizer.clip_norm=0");
        all.push_back(std::move(one));
      }
    }
  }
  return all;
}

/// What the program says no to, in as many combinations.
using Refusals = std::map<std::string, int64_t>;

void count_refusal(Refusals& refusals, const UsageError& error, int64_t count) {
  EXPECT_NE(error.text().fact, "");
  EXPECT_NE(error.text().action, "") << error.what();
  refusals[error.text().subject + ": " + error.text().fact] += count;
}

/// Each tier of each kind, and of all, beside every arrangement. Takes minutes: `ctest -L product` runs it.
TEST_F(OffloadTest, DISABLED_EveryCombination) {
  int64_t ran = 0, total = 0;
  Refusals refusals;
  Keys kinds = kAll;
  kinds.emplace_back("all");
  for (const Arrangement& one : arrangements()) {
    // Large enough that activations move.
    const Keys keys = together({one.keys, {"train.steps=2", "model.width=32", "model.context=16"}});
    total += static_cast<int64_t>(2 * kinds.size());
    std::filesystem::path without;
    try {
      without = train("without", one.ranks, keys, one.arch);
    } catch (const UsageError& error) {  // nor does it run without offload
      count_refusal(refusals, error, static_cast<int64_t>(2 * kinds.size()));
      continue;
    }
    for (const std::string& kind : kinds) {
      for (const char* tier : {"host", "disk"}) {
        try {
          // Protected memory makes the host step on the rank's thread: half of them without.
          std::popcount(static_cast<uint64_t>(ran)) % 2 == 0 ? setenv("CARAVAN_PROTECT_HOST", "1", 1)
                                                             : unsetenv("CARAVAN_PROTECT_HOST");
          expect_as(without, one.ranks, keys, tiers(kind == "all" ? kAll : Keys{kind}, tier), one.arch);
          SCOPED_TRACE(::testing::PrintToString(one.keys) + kind + " on " + tier);
          for (const std::string& each : kind == "all" ? kAll : Keys{kind}) expect_moved(each, tier);
          ++ran;
        } catch (const UsageError& error) {
          count_refusal(refusals, error, 1);
        }
        remove("with" + std::to_string(count_ - 1));
      }
    }
    remove("without");
  }
  const int64_t refused = print_product(refusals, total, ran);
  EXPECT_EQ(ran + refused, total);
  EXPECT_EQ(refused, 0) << "all of these work together";
}

}  // namespace
}  // namespace caravan::testing::offload_test
