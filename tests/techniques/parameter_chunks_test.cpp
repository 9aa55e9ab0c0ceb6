#include <cstdlib>
#include <gmock/gmock.h>
#include <regex>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/base/memory/memory_counter.h"
#include "caravan/comm/record.h"
#include "caravan/engine/chunk_report.h"
#include "caravan/engine/engine.h"
#include "caravan/engine/stages/stage_runner.h"
#include "caravan/models/model.h"
#include "caravan/recipe/recipe.h"
#include "caravan/redistribute/redistribute.h"
#include "caravan/techniques/make_strategy.h"
#include "caravan/train/model/offload_choice.h"
#include "caravan/train/model/rehearse.h"
#include "tests/mesh/refusal.h"
#include "tests/redistribute/denote.h"
#include "tests/train/tiny_run.h"

namespace caravan::testing::parameter_chunks_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Keys = std::vector<std::string>;

const Keys kAllAway{"offload.optimizer=host", "offload.gradients=host", "offload.parameters=host"};
const Keys kParametersAway{"offload.parameters=host"};

class ParameterChunksTest : public ::testing::Test {
 protected:
  // Host memory may be touched by copies and the optimizer only: else the process dies.
  ParameterChunksTest() { setenv("CARAVAN_PROTECT_HOST", "1", 1); }
  ~ParameterChunksTest() override { unsetenv("CARAVAN_PROTECT_HOST"); }

  Keys on_disk() const {
    return {"offload.optimizer=disk", "offload.gradients=disk", "offload.parameters=disk",
            "offload.disk_dirs=" + (runs_ / "tiers").string()};
  }

  Recipe recipe(const std::string& name, const Keys& keys, Architecture kind) const {
    return runs_.recipe(kind, name,
                        together({{"train.steps=3", "checkpoint.every=0", "train.eval_every=0", "sample.tokens=0",
                                   "comm.backend=thread", "comm.threads_per_rank=1"},
                                  keys}));
  }
  std::filesystem::path train(const std::string& name, int ranks, const Keys& keys, Architecture kind) {
    train_on(ranks, {.recipe = recipe(name, keys, kind), .folders = runs_.folders()});
    return runs_ / name;
  }

  /// Losses, norms and every tensor of the checkpoint have the same bits as in a run in which nothing is offloaded.
  void expect_same(int ranks, const Keys& technique, const Keys& chunks, Architecture kind = Architecture::gpt2()) {
    SCOPED_TRACE(::testing::PrintToString(technique) + ::testing::PrintToString(chunks));
    const std::string of = std::to_string(count_++);
    const auto without = train("without" + of, ranks, technique, kind);
    const auto with = train("with" + of, ranks, together({technique, chunks}), kind);
    EXPECT_EQ(number_lines(with), number_lines(without));
    EXPECT_EQ(first_difference(checkpoint_tensors(with), checkpoint_tensors(without)), "");
  }

  TinyRuns runs_;
  int count_ = 0;
};

TEST_F(ParameterChunksTest, GiveTheBitsOfARunWithoutThem) {
  const Keys automatic{"chunks.size=auto"};
  for (const int ranks : {1, 2, 3, 4}) {
    const std::string zero3 = "data_parallel.technique=zero3";
    expect_same(ranks, {zero3, micro_batch(ranks, ranks % 2 == 0 ? 3 : 2)}, together({kAllAway, automatic}));
  }
  expect_same(1, {"data_parallel.technique=ddp", micro_batch(1, 2)}, together({on_disk(), automatic}));
  expect_same(2, {"data_parallel.technique=ddp", micro_batch(2, 2)}, together({kAllAway, automatic}));
  expect_same(2, {"data_parallel.technique=zero1"}, together({kAllAway, automatic}));
  expect_same(3, {"data_parallel.technique=zero2", micro_batch(3, 3)}, together({on_disk(), automatic}));
  expect_same(4, {"data_parallel.technique=hsdp", "data_parallel.shard=2", "train.micro_batch=3"},
              together({kAllAway, automatic}));
}

TEST_F(ParameterChunksTest, StandBesideOtherTechniques) {
  const std::vector<Keys> others{
      {"data_parallel.technique=zero3", "memory.recompute=full", "train.micro_batch=6"},
      {"data_parallel.technique=zero3", "precision.compute=bf16", "model.tie_embeddings=true"},
      {"data_parallel.technique=zero3", "optimizer.clip_norm=0", "train.micro_batch=6"},
      {"data_parallel.technique=zero3", "tiling.tiles=3"},
      {"data_parallel.technique=zero3", "lora.rank=2"},
      {"data_parallel.technique=zero3", "moe.experts=4"},
      {"mesh.tp=2"},
      {"mesh.pp=2", "pipeline.micro_batches=4", "model.tie_embeddings=true"},
      {"mesh.pp=2", "pipeline.schedule=zb-h1", "pipeline.micro_batches=4"}};
  bool on_host = false;
  for (const Keys& other : others) {
    on_host = !on_host;
    expect_same(2, other, together({on_host ? kAllAway : on_disk(), {"chunks.size=auto"}}),
                on_host ? Architecture::gpt2() : Architecture::llama());
  }
  expect_same(3, {"data_parallel.technique=param_server", "data_parallel.servers=2"},
              together({kAllAway, {"chunks.size=auto"}}));
}

TEST_F(ParameterChunksTest, EveryPolicyRoomAndSize) {
  const Keys zero3{"data_parallel.technique=zero3", "train.micro_batch=9", "model.layers=4"};
  for (const Keys& chunks : {Keys{"chunks.policy=lru", "chunks.device=40K", "chunks.size=10K"},
                             Keys{"chunks.policy=latest", "chunks.device=64K", "chunks.size=16K"},
                             Keys{"chunks.policy=recorded", "chunks.device=1G", "chunks.size=20000"},
                             Keys{"offload.prefetch=0", "chunks.size=auto"},
                             Keys{"offload.prefetch=3", "chunks.size=auto", "chunks.policy=lru"}}) {
    expect_same(2, zero3, together({kParametersAway, chunks}));
  }
}

/// A run within its budget has the room of its recipe, and no less than a run that needs the least.
TEST_F(ParameterChunksTest, TheRoomIsWhatTheBudgetLeaves) {
  const Keys keys{"offload.parameters=host", "chunks.size=10K", "train.micro_batch=9", "model.layers=6",
                  "data_parallel.technique=zero3"};
  const auto peak_of = [&](const std::string& name) {
    std::smatch found;
    const std::string first = log_lines(train(name, 2, keys, Architecture::gpt2())).front();
    EXPECT_TRUE(std::regex_search(first, found, std::regex("\"predicted_memory_bytes\":([0-9]+)"))) << first;
    return std::stoll(found[1]);
  };
  const int64_t peak = peak_of("least");
  const auto room_of = [&](const std::string& name, int64_t budget) {
    train(name, 2, together({keys, {"offload.device_budget=" + std::to_string(budget)}}), Architecture::gpt2());
    return std::stoll(load_recipe(runs_ / name / "recipe.toml", {}).chunks.text("device"));
  };
  constexpr int64_t kChunk = 10 * 1024 / 128 * 128;  // whole alignments
  const int64_t least = room_of("tight", peak);
  EXPECT_EQ(least % kChunk, 0);
  EXPECT_EQ(room_of("narrow", peak + 2 * kChunk + 100), least + 2 * kChunk);
  EXPECT_GT(room_of("wide", peak + 1000 * kChunk), least + 2 * kChunk);
}

TEST_F(ParameterChunksTest, ErrorsNameTheWayOut) {
  const auto error_of = [&](const Keys& keys) {
    return refusal<UsageError>([&] { train("bad", 2, keys, Architecture::gpt2()); });
  };
  EXPECT_THAT(error_of({"chunks.size=auto"}), AllOf(HasSubstr("offload.parameters"), HasSubstr("host")));
  EXPECT_THAT(error_of(together({{"offload.parameters=auto", "offload.device_budget=1G"}, {"chunks.size=auto"}})),
              AllOf(HasSubstr("offload.parameters"), HasSubstr("chunks.size")));
  EXPECT_THAT(error_of(together({kParametersAway, {"chunks.size=1K", "data_parallel.technique=zero3"}})),
              AllOf(HasSubstr("chunks.size"), HasSubstr("weight"), HasSubstr("tiling.tiles")));
  EXPECT_THAT(error_of(together({kParametersAway, {"chunks.size=all"}})), HasSubstr("\"none\", \"auto\""));
  EXPECT_THAT(error_of(together({kParametersAway, {"chunks.size=auto", "chunks.policy=lur"}})),
              HasSubstr("nearest is 'lru'"));
  EXPECT_THAT(error_of(together({kParametersAway, {"chunks.policy=lru"}})), HasSubstr("chunks.size"));
  EXPECT_THAT(error_of(together({kParametersAway, {"chunks.size=64K", "chunks.device=10K"}})),
              AllOf(HasSubstr("chunks.device"), HasSubstr("room for 0 chunks"), HasSubstr("\"auto\"")));
}

// ---- one step ----

struct Case {
  int ranks = 1;
  std::string size = "auto", policy = "recorded", device = "auto";
  int num_micro_batches = 2;
  bool is_meta = false;
  bool has_table = true;  ///< false: begin_step() and finish_step()
};

/// Of rank 0.
struct Found {
  ChunkReport report;
  int64_t peak = 0;               ///< of the device
  std::vector<int64_t> loaded{};  ///< bytes, by step
  double squares = 0;             ///< of the gradients of the last step, of all ranks
};

const ModelConfig kModel{.layers = 6, .width = 32, .heads = 4, .context = 16, .vocabulary = 61, .dropout = 0};

MicroBatch batch_of(int micro, at::Device device) {
  const at::Tensor ids = at::empty({2, kModel.context}, at::TensorOptions(at::kLong).device(device));
  if (!device.is_meta()) ids.copy_(at::arange(2 * kModel.context).add(micro).remainder(61).view({2, kModel.context}));
  MicroBatch batch{.ids = ids, .labels = ids.clone()};
  batch.context = {.micro_batch = micro, .loss_scale = 1e-2};
  return batch;
}

/// Forwards and backwards of a program of its own: the first such step is recorded.
void run_own(Engine& engine, Model& model, int num_micro_batches) {
  engine.begin_step(num_micro_batches);
  for (int micro = 0; micro < num_micro_batches; ++micro) {
    const MicroBatch batch = batch_of(micro, at::kCPU);
    backward(model.run({batch.ids, batch.labels}, batch.context)[0], engine.strategy().loss_layout);
  }
  engine.finish_step();
}

Found run_rank(const Case& what, Mesh mesh) {
  Found found;
  auto* counter = new MemoryCounter;  // outlived by blocks that a library caches
  const MemoryScope charges(*counter);
  const at::Device device = what.is_meta ? at::kMeta : at::kCPU;
  Model model(kModel);
  StrategyChoice choice{.data_parallel = Setting("data_parallel", "zero3")};
  choice.sequences = 2;
  if (what.size != "none") choice.offload.set("parameters", "host");
  choice.chunks.set("size", what.size);
  choice.chunks.set("policy", what.policy);
  choice.chunks.set("device", what.device);
  Engine engine(model, mesh, make_strategy(choice, model, mesh), {.seed = 5, .device = device});
  StageRunner runner(engine);
  found.report = chunk_report(engine, what.num_micro_batches);
  for (int step = 0; step < 2; ++step) {
    const int64_t before = counter->moved().from_host;
    if (what.has_table) {
      runner.run_step(what.num_micro_batches, [&](int micro) { return batch_of(micro, device); });
    } else {
      run_own(engine, model, what.num_micro_batches);
    }
    found.loaded.push_back(counter->moved().from_host - before);
  }
  found.peak = counter->peak_bytes();
  if (what.is_meta) return found;
  for (const at::Tensor& parameter : engine.parameters())
    found.squares += parameter.grad().to(at::kDouble).square().sum().item<double>();
  return found;
}

Found run(const Case& what) {
  if (what.is_meta) return run_rank(what, Mesh::create(make_record_world(0, what.ranks), {{"dp", what.ranks}}));
  std::vector<Found> found(static_cast<size_t>(what.ranks));
  on_mesh({{"dp", what.ranks}},
          [&](const Mesh& mesh) { found[static_cast<size_t>(mesh.rank())] = run_rank(what, mesh); });
  for (int rank = 1; rank < what.ranks; ++rank) found.front().squares += found[static_cast<size_t>(rank)].squares;
  return found.front();
}

TEST(ParameterChunks, ARunLoadsWhatItsPlanSays) {
  for (const int ranks : {1, 2}) {
    for (const std::string room : {"auto", "192K", "320K"}) {
      for (const std::string policy : {"recorded", "latest", "lru"}) {
        SCOPED_TRACE(policy + " " + room);
        const Found found = run({.ranks = ranks, .size = "32K", .policy = policy, .device = room});
        const ChunkReport& report = found.report;
        EXPECT_GT(report.num_chunks, 3);
        EXPECT_EQ(report.policies.front().policy, policy);
        EXPECT_EQ(found.loaded.back(), report.policies.front().bytes);
        EXPECT_LE(report.least, report.policies.front().chunks);
        EXPECT_LE(policy == "lru" ? 0 : report.policies.front().chunks * 10, report.least * 11);
      }
    }
  }
}

TEST(ParameterChunks, ARehearsalFindsThePeakOfARun) {
  for (const int ranks : {1, 2}) {
    for (const std::string room : {"auto", "192K", "320K"}) {
      Case what{.ranks = ranks, .size = "32K", .device = room};
      const Found real = run(what);
      what.is_meta = true;
      const Found rehearsed = run(what);
      SCOPED_TRACE(room + std::to_string(ranks));
      // Between ranks, memory depends on the order of messages: a rehearsal has the most that it can be.
      EXPECT_LE(real.peak, rehearsed.peak);
      EXPECT_EQ(ranks == 1 ? rehearsed.peak : real.peak, real.peak);
      EXPECT_EQ(rehearsed.loaded, real.loaded);
    }
  }
}

/// The first step loads what each unit needs; what it records is the order of the next.
TEST(ParameterChunks, FollowARecordedStep) {
  for (const int ranks : {1, 2}) {
    const Case what{.ranks = ranks, .size = "32K", .device = "192K", .has_table = false};
    const Found found = run(what);
    EXPECT_EQ(found.loaded.back(), found.report.policies.front().bytes);
    EXPECT_GT(found.loaded.front(), found.loaded.back());
    const Found without = run({.ranks = ranks, .size = "none", .has_table = false});
    EXPECT_GT(without.squares, 0);
    EXPECT_NEAR(found.squares / without.squares, 1, 1e-12);  // sums of the same numbers in another order
  }
}

/// The largest models of PatrickStar: 18B on 8 ranks with 32 GB of device each and 240 GB of host in all, 68B with 40
/// GB and 1 TB. In the room that the budget leaves, a rank is within it.
TEST(ParameterChunks, TheLargestModelsFit) {
  struct Largest {
    Keys keys;
    double parameters, host_gib;
  };
  for (const Largest& of :
       {Largest{{}, 18.3e9, 240},
        {{"model.layers=66", "model.width=9216", "offload.gradients=host", "offload.device_budget=40G"},
         67.7e9,
         1024}}) {
    Recipe recipe = load_recipe(CARAVAN_SOURCE_DIR "/recipes/chunks.toml", of.keys);
    EXPECT_NEAR(static_cast<double>(recipe.model.num_parameters()) / of.parameters, 1, 0.01);
    const auto peak = [&] {
      return fullest_of([&] { return std::vector<Rehearsal>{rehearse(recipe, 0, /*num_ranks=*/8, /*rank=*/0, 8)}; });
    };
    const RankPeak least = peak();
    const std::optional<int64_t> room = chunk_room(recipe, least.peak.total(), least.chunks, device_budget(recipe));
    ASSERT_TRUE(room);
    recipe.chunks.set("device", std::to_string(*room));
    const RankPeak wide = peak();
    EXPECT_GT(wide.chunks.slots, least.chunks.slots);
    EXPECT_LT(wide.chunks.waste, 0.01);
    EXPECT_GT(wide.peak.total(), int64_t{1} << 34);
    EXPECT_LE(wide.peak.total(), device_budget(recipe));
    EXPECT_LT(8.0 * static_cast<double>(wide.host.total()), of.host_gib * (1 << 30));
    EXPECT_EQ(wide.chunks.policies.front().chunks, wide.chunks.least);
  }
}

/// What an attack has found: early steps of chunks that a rank has whole, several of which end with one event; fetches
/// far ahead under a policy that keeps what it does not need.
TEST_F(ParameterChunksTest, StepsAndFetchesWaitForSlots) {
  expect_same(1, {"optimizer.clip_norm=0", "train.micro_batch=12"},
              together({kParametersAway, {"offload.gradients=host", "chunks.size=auto"}}));
  expect_same(2, {"optimizer.clip_norm=0", "train.micro_batch=6"},
              together({kParametersAway, {"offload.gradients=host", "chunks.size=auto"}}));
  expect_same(2, {"data_parallel.technique=zero1", "tiling.tiles=3", "train.micro_batch=3"},
              together({kParametersAway, {"offload.prefetch=3", "chunks.size=auto", "chunks.policy=lru"}}));
}

}  // namespace
}  // namespace caravan::testing::parameter_chunks_test
