// What guides to training large models say about one card, one host and many hosts with fast and slow links
// (huggingface.co/docs/transformers/perf_train_gpu_many), as predictions.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/techniques/offload/kinds.h"
#include "tests/plan/place.h"

namespace caravan::testing::guide_test {
namespace {

bool offloads(const Recipe& recipe) { return is_offload_used(recipe.offload); }

// One card

TEST(Guide, OneCardThatFitsNeedsNothing) {
  const Recipe recipe = recipe_of({"model.layers=12", "model.width=768", "model.heads=12", "model.context=1024",
                                   "model.vocabulary=50304", "train.global_batch=8"});
  const PlannedLayout best = Place({.device = "rtx-4090"}).best(recipe);
  EXPECT_TRUE(best.recipe.memory.recompute.is_none()) << best.text;
  EXPECT_FALSE(offloads(best.recipe)) << best.text;
}

/// Recomputation or offload if the activations of one sequence are too much, offload if states are.
TEST(Guide, OneCardThatIsTooSmall) {
  const Place card({.device = "rtx-4090"});
  const double room = 23.0 * (1 << 30);
  const Keys keys = llama(21, 2048, 16, 5504, 8);
  const Recipe one = recipe_of(keys, {"train.micro_batch=1"});
  const auto parameters = static_cast<double>(one.model.num_parameters());
  // Of a layer: 8 tensors as wide as the model, 4 as wide as the MLP, 16-bit.
  const double states = 18 * parameters, activations = 21 * 2048 * 2.0 * (8 * 2048 + 4 * 5504);
  EXPECT_LT(states, room);
  EXPECT_GT(states + activations, room);
  EXPECT_FALSE(card.estimate(one).fits());
  const Prediction again = card.estimate(recipe_of(keys, {"train.micro_batch=1", "memory.recompute=full"}));
  EXPECT_TRUE(again.fits());
  const PlannedLayout best = card.best(one);
  EXPECT_TRUE(offloads(best.recipe) || !best.recipe.memory.recompute.is_none()) << best.text;
  EXPECT_LE(best.prediction.seconds, again.seconds);
  // 18 bytes are too many for any recomputation.
  const Recipe three = recipe_of(llama(26, 3072, 24, 8192, 8), {"train.micro_batch=1"});
  EXPECT_GT(18 * static_cast<double>(three.model.num_parameters()), room);
  const PlannedLayout large = card.best(three);
  EXPECT_TRUE(offloads(large.recipe)) << large.text;
}

// One host: a model that fits no card

struct ThreeWays {
  Prediction zero3, pipeline, tensor;
};
ThreeWays three_ways(const Place& host) {
  const Keys keys = llama7(64), full{"memory.recompute=full"};
  const auto with = [&](Keys more) {
    more.insert(more.end(), full.begin(), full.end());
    return host.estimate(recipe_of(keys, more));
  };
  return {with({"data_parallel.technique=zero3", "train.micro_batch=1"}),
          with({"mesh.pp=8", "pipeline.schedule=1f1b", "pipeline.micro_batches=64"}),
          with({"mesh.tp=8", "train.micro_batch=4"})};
}

/// "With fast links all three are mostly on par; without, a pipeline is faster than ZeRO or tensor parallelism."
TEST(Guide, OneHost) {
  const ThreeWays fast = three_ways(Place({.device = "a100-80", .per_host = 8}));
  const ThreeWays slow = three_ways(Place({.device = "rtx-4090", .per_host = 8}));
  for (const ThreeWays& ways : {fast, slow}) {
    for (const Prediction& one : {ways.zero3, ways.pipeline, ways.tensor}) EXPECT_TRUE(one.fits());
  }
  const auto [least, most] = std::minmax({fast.zero3.seconds, fast.pipeline.seconds, fast.tensor.seconds});
  EXPECT_LT(most, 2 * least);
  EXPECT_LT(2 * slow.pipeline.seconds, slow.zero3.seconds);
  EXPECT_LT(2 * slow.pipeline.seconds, slow.tensor.seconds);
}

/// But ZeRO gathers once for all sequences of a micro-batch: with large ones the slow link hides. By hand: 8 bytes for
/// each parameter over a link, beside 8 FLOPs for each and token.
TEST(Guide, ZeroHidesSlowLinksBehindLargeMicroBatches) {
  const Hardware cards = preset_hardware({.device = "rtx-4090", .per_host = 8});
  Hardware linked = cards;
  linked.levels.front().bytes_per_second *= 100;
  const Place slow(cards), fast(linked);
  const auto recipe = [&](const char* micro_batch) {
    return recipe_of(llama7(64), {"data_parallel.technique=zero3", "memory.recompute=full", micro_batch});
  };
  const double parameters = 6.74e9, tokens = 8 * 2048;
  const LinkLevel& link = cards.levels.front();
  const double sends = 7.0 / 8 * (2 + 2 + 4) * parameters / (link.bytes_per_second * link.fraction);
  const double computes = 8 * parameters * tokens / cards.devices.front().product("bf16")->flops;
  EXPECT_LT(sends, computes);
  const Recipe once = recipe("train.micro_batch=8"), often = recipe("train.micro_batch=1");
  EXPECT_LT(slow.estimate(once).seconds, 1.15 * fast.estimate(once).seconds);
  EXPECT_GT(8 * sends, computes);
  EXPECT_NEAR(slow.estimate(often).seconds, 8 * sends, 0.2 * 8 * sends);
}

// Many hosts

Recipe zero3_of_7b() {
  return recipe_of(llama7(128), {"data_parallel.technique=zero3", "memory.recompute=full", "train.micro_batch=4"});
}
Recipe stages_of_7b(const Keys& more = {"mesh.dp=8"}) {
  Keys keys{"mesh.pp=4", "data_parallel.technique=zero1", "memory.recompute=full", "pipeline.schedule=1f1b"};
  keys.insert(keys.end(), more.begin(), more.end());
  return recipe_of(llama7(128), keys);
}

/// "Fast links: ZeRO, or stages with tensor and data parallelism. Slow links: all of them with ZeRO-1."
TEST(Guide, ManyHosts) {
  const auto hosts = [](const std::string& link) {
    return Place({.device = "a100-80", .per_host = 8, .hosts = 4, .link = link});
  };
  const Place fast = hosts("200Gb"), slow = hosts("1Gb");
  const Recipe all = stages_of_7b({"mesh.tp=2", "mesh.dp=4"});
  EXPECT_FALSE(fast.estimate(recipe_of(llama7(128), {"train.micro_batch=4", "data_parallel.technique=ddp"})).fits());
  EXPECT_LT(fast.estimate(zero3_of_7b()).seconds, fast.estimate(all).seconds);
  EXPECT_LT(fast.estimate(all).seconds, 2 * fast.estimate(zero3_of_7b()).seconds);
  EXPECT_LT(4 * slow.estimate(all).seconds, slow.estimate(zero3_of_7b()).seconds);
  const Recipe across = recipe_of(
      llama7(128), {"mesh.tp=8", "data_parallel.technique=zero1", "memory.recompute=full", "train.micro_batch=8"});
  EXPECT_LT(3 * slow.estimate(all).seconds, slow.estimate(across).seconds) << "gradients cross, if stages do not";
}

/// The rate of links between hosts from which on ZeRO-3 is faster than stages. By hand: its bytes take as long as the
/// bubble makes computation.
TEST(Guide, LinksBetweenHostsTurnTheChoice) {
  const Recipe zero3 = zero3_of_7b(), stages = stages_of_7b();
  const auto place = [](double gbit) {
    return Place({.device = "a100-80", .per_host = 8, .hosts = 4, .link = std::to_string(gbit) + "Gb"});
  };
  const auto prefers_zero3 = [&](double gbit) {
    const Place hosts = place(gbit);
    return hosts.estimate(zero3).seconds < hosts.estimate(stages).seconds;
  };
  const double parameters = 6.74e9, tokens = 128.0 * 2048, ranks = 32, bubble = 3.0 / 16;
  const double head = 6.0 * 4096 * 32000 / (8 * parameters / 4);  // which the last of four stages has beside layers
  const double computes = 8 * parameters * tokens / ranks / (312e12 * 0.87 * 0.85);
  const double bytes = 31.0 / 32 * (2 + 2 + 4) * parameters;
  const double gbit = 8 * bytes / 8 / (computes * (1 + bubble) * (1 + head)) / 1e9;  // 8 cards of a host carry the ring
  int flips = 0;
  double turn = 0;
  bool before = prefers_zero3(1);
  EXPECT_FALSE(before);
  for (double rate = std::sqrt(2); rate < 260; rate *= std::sqrt(2)) {
    const bool now = prefers_zero3(rate);
    if (now != before) turn = rate / std::pow(2, 0.25);
    flips += now != before ? 1 : 0;
    before = now;
  }
  EXPECT_EQ(flips, 1);
  EXPECT_GT(turn, gbit / 1.6);
  EXPECT_LT(turn, gbit * 1.6);
}

}  // namespace
}  // namespace caravan::testing::guide_test
