/// Activations on host or disk change no bit, and what is moved is what the device has less.

#include "caravan/engine/activations.h"

#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include "caravan/base/error.h"
#include "caravan/base/memory/memory_counter.h"
#include "caravan/base/trace/path_log.h"
#include "caravan/engine/stages/stage_runner.h"
#include "caravan/models/model.h"
#include "caravan/module/adapter.h"
#include "caravan/redistribute/redistribute.h"
#include "caravan/techniques/data/ddp.h"
#include "caravan/techniques/make_strategy.h"
#include "caravan/techniques/technique_body.h"
#include "tests/data/support.h"
#include "tests/redistribute/denote.h"
#include "tests/techniques/together/technique.h"

namespace caravan::testing::activations_test {
namespace {

using ::testing::HasSubstr;

constexpr auto kStore = "activations: store";
constexpr auto kLoad = "activations: load";
constexpr auto kUnpack = "activations: unpack";
constexpr auto kLate = "activations: load late";

ModelConfig gpt2(int64_t layers = 4) {
  return {.layers = layers, .width = 32, .heads = 4, .context = 32, .vocabulary = 61, .dropout = 0.1};
}
ModelConfig llama(int64_t layers = 4) {
  return {.kind = ModelKind::llama,
          .layers = layers,
          .width = 32,
          .heads = 4,
          .kv_heads = 2,
          .context = 32,
          .vocabulary = 61,
          .tie_embeddings = false,
          .dropout = 0.1};
}
ModelConfig experts() {
  ModelConfig config = llama();
  config.hidden = 48;
  config.moe = {.experts = 4, .top_k = 2};
  return config;
}

struct Case {
  ModelConfig model = gpt2();
  StrategyChoice choice{.data_parallel = technique_of("ddp")};
  Axes axes{{"dp", 1}};
  int num_micro_batches = 1;
  int64_t sequences = 2;  ///< of a micro-batch
  at::Device device = at::kCPU;
  bool has_table = true;  ///< false: begin_step() and finish_step()
  bool protects_host = true;
};

/// Of one rank.
struct Found {
  std::vector<double> losses;
  std::vector<at::Tensor> gradients;  ///< sharded, of every step
  PathCounts paths;
  TierTraffic traffic;          ///< of the last step
  int64_t peak = 0, host = 0;   ///< of the last step, on device and host
  int64_t left = 0;             ///< bytes on the device after the last step beyond those before it
};

Case with_pipeline(Case of, const std::string& schedule, int stages, int per_rank = 0) {
  of.choice.pipeline = pipeline_of(schedule, stages, per_rank);
  of.axes = {{"dp", 1}, {"pp", stages}};
  of.num_micro_batches = 4;
  return of;
}

/// `steps` steps of `what` on this rank with its activations in `tier`.
Found run_rank(const Case& what, Tier tier, const Mesh& given, const std::filesystem::path& folder, int steps = 2) {
  Found found;
  Mesh mesh = given;
  Model model(what.model);
  StrategyChoice choice = what.choice;
  choice.sequences = what.sequences;
  Strategy strategy = make_strategy(choice, model, mesh);
  const bool is_meta = what.device.is_meta();
  const auto tiers = std::make_shared<Tiers>(Tiers::Options{.disk_dirs = {folder},
                                                            .owner = fmt::format("rank_{}", mesh.rank()),
                                                            .is_meta = is_meta,
                                                            .protects_host = what.protects_host && !is_meta});
  if (tier != Tier::device) {
    strategy.tiers = tiers;
    move_activations(strategy, tier);
  }
  Engine engine(model, mesh, strategy, {.seed = 5, .device = what.device});
  StageRunner runner(engine);
  MemoryCounter& counter = MemoryCounter::current();
  PathLog log;
  const PathScope scope(&log);
  for (int step = 0; step < steps; ++step) {
    const auto source = [&](int micro) {
      const int seed = 100 * step + 10 * micro + (mesh.has("dp") ? mesh["dp"].coord() : 0);
      const at::Tensor all = (at::arange(what.sequences * (what.model.context + 1)) * 7 + seed * 13)
                                 .remainder(what.model.vocabulary)
                                 .view({what.sequences, what.model.context + 1});
      MicroBatch batch{.ids = all.narrow(1, 0, what.model.context).contiguous(),
                       .labels = all.narrow(1, 1, what.model.context).contiguous()};
      if (is_meta) batch.ids = at::empty_like(batch.ids, what.device), batch.labels = at::empty_like(batch.ids);
      batch.context = {.step = step, .micro_batch = micro, .loss_scale = 1e-2};
      return batch;
    };
    engine.table(what.num_micro_batches);
    log.clear();
    const TierTraffic before = tiers->traffic();
    const int64_t live = counter.live_bytes();
    counter.reset_peak();
    double loss = 0;
    if (what.has_table) {
      loss = runner.run_step(what.num_micro_batches, source);
    } else {
      engine.begin_step(what.num_micro_batches);
      for (int micro = 0; micro < what.num_micro_batches; ++micro) {
        const MicroBatch batch = source(micro);
        const at::Tensor one = model.run({batch.ids, batch.labels}, batch.context)[0];
        backward(one, engine.strategy().loss_layout);
        loss += one.item<double>();
      }
      engine.finish_step();
    }
    found.peak = counter.peak_bytes() - live;
    found.host = counter.peak_bytes(Tier::host);
    found.left = counter.live_bytes() - live;
    found.traffic = tiers->traffic();
    found.traffic.to_host -= before.to_host;
    found.traffic.from_host -= before.from_host;
    found.traffic.to_disk -= before.to_disk;
    found.traffic.from_disk -= before.from_disk;
    found.losses.push_back(loss);
    if (is_meta) continue;
    for (const at::Tensor& parameter : engine.parameters()) found.gradients.push_back(parameter.grad().clone());
  }
  found.paths = log.counts();
  return found;
}

std::vector<Found> run(const Case& what, Tier tier) {
  const TemporaryFolder folder;
  std::vector<Found> ranks(static_cast<size_t>(num_ranks(what.axes)));
  on_mesh(what.axes, [&](const Mesh& mesh) {
    ranks[static_cast<size_t>(mesh.rank())] = run_rank(what, tier, mesh, folder.path());
  });
  return ranks;
}

int64_t count(const Found& found, const char* path) {
  const auto at = found.paths.find(path);
  return at == found.paths.end() ? 0 : at->second;
}

void expect_same_bits(const Found& got, const Found& want) {
  EXPECT_EQ(got.losses, want.losses);
  ASSERT_EQ(got.gradients.size(), want.gradients.size());
  for (size_t i = 0; i < got.gradients.size(); ++i) EXPECT_TRUE(at::equal(got.gradients[i], want.gradients[i])) << i;
}

/// Every rank moves something, and computes what it computes without.
void changes_no_bit(const Case& what, std::initializer_list<Tier> tiers = {Tier::host, Tier::disk}) {
  const std::vector<Found> want = run(what, Tier::device);
  for (const Tier tier : tiers) {
    SCOPED_TRACE(name(tier));
    const std::vector<Found> got = run(what, tier);
    for (size_t rank = 0; rank < got.size(); ++rank) {
      SCOPED_TRACE(rank);
      expect_same_bits(got[rank], want[rank]);
      EXPECT_EQ(count(want[rank], kStore), 0);
      EXPECT_GT(count(got[rank], kStore), 0);
      EXPECT_EQ(count(got[rank], kLoad), count(got[rank], kStore));
      EXPECT_GE(count(got[rank], kUnpack), count(got[rank], kLoad));
      EXPECT_EQ(count(got[rank], kLate), 0);
      const TierTraffic& moved = got[rank].traffic;
      EXPECT_GT(moved.to_host, 0);
      EXPECT_EQ(moved.from_host, moved.to_host);
      EXPECT_EQ(moved.to_disk, tier == Tier::disk ? moved.to_host : 0);
      EXPECT_EQ(moved.from_disk, moved.to_disk);
      EXPECT_EQ(got[rank].left, want[rank].left) << "bytes are left";
    }
  }
}

TEST(Activations, ChangeNoBit) {
  for (const ModelConfig& model : {gpt2(), llama(), experts()}) {
    for (const int num_micro_batches : {1, 3}) {
      changes_no_bit({.model = model, .num_micro_batches = num_micro_batches});
    }
  }
}

TEST(Activations, ChangeNoBitInBf16) {
  for (const ModelConfig& model : {gpt2(), llama()}) {
    Case what{.model = model, .sequences = 4};
    what.choice.compute_dtype = at::kBFloat16;
    changes_no_bit(what, {Tier::host});
  }
}

TEST(Activations, ChangeNoBitOnTwoRanks) {
  for (const std::string technique : {"ddp", "zero3"}) {
    Case what{.axes = {{"dp", 2}}, .num_micro_batches = 2, .protects_host = false};
    what.choice.data_parallel = technique_of(technique);
    changes_no_bit(what);
  }
}

TEST(Activations, ChangeNoBitBesideRecompute) {
  for (const std::string recomputed : {"selective", "full"}) {
    Case what{.num_micro_batches = 2, .sequences = 4};
    what.choice.recompute = recompute_of(recomputed);
    changes_no_bit(what);
  }
}

TEST(Activations, ChangeNoBitInAPipeline) {
  for (const std::string schedule : {"1f1b", "zb-h1"}) {
    SCOPED_TRACE(schedule);
    changes_no_bit(with_pipeline({}, schedule, 2));
  }
}

/// The first step has no table: units are evicted when their forward ends, and fetched when their backward begins.
TEST(Activations, ChangeNoBitInRecordedSteps) {
  changes_no_bit({.model = llama(), .num_micro_batches = 2, .has_table = false});
}

}  // namespace
}  // namespace caravan::testing::activations_test
