// The sums of docs/known_sums.md: by hand, by rehearsals and predictions, and as published.
#include <cmath>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/cost/hardware.h"
#include "caravan/cost/hardware_costs.h"
#include "caravan/cost/published/predict.h"
#include "caravan/module/meta/accelerator_scope.h"
#include "caravan/plan/predict.h"
#include "caravan/recipe/recipe.h"
#include "caravan/train/model/rehearse.h"
#include "tests/needs.h"

namespace caravan::testing::known_sums_test {
namespace {

using Keys = std::vector<std::string>;

Recipe recipe_of(Keys keys, const Keys& more = {}) {
  keys.insert(keys.end(), more.begin(), more.end());
  needs_chosen(keys);
  return load_recipe("", keys);
}

double num_parameters(const Recipe& recipe) { return static_cast<double>(recipe.model.num_parameters()); }

// 65 B parameters by ZeRO-3 over 10 Gbit/s

Keys llama65() {
  return {"model.kind=llama",        "model.layers=80",
          "model.width=8192",        "model.heads=64",
          "model.hidden=22016",      "model.context=2048",
          "model.vocabulary=32000",  "model.tie_embeddings=false",
          "data.tokenizer=bytes",    "train.global_batch=64",
          "train.micro_batch=1",     "memory.recompute=full",
          "data_parallel.share=off", "data_parallel.technique=zero3"};
}

/// Parameters are gathered twice and gradients reduced once: 195 G elements, which are 156 s at one byte each.
TEST(KnownSums, Zero3Of65BOver10Gbit) {
  const double link = 10e9 / 8, ring = 63.0 / 64;  // a rank has its own part already
  const auto sent = [&](const Keys& precision) {
    const Recipe recipe = recipe_of(llama65(), precision);
    return std::pair(num_parameters(recipe), rehearse(recipe, 0, 64, 0).bytes_sent("dp"));
  };
  const auto [parameters, halves] = sent({"precision.compute=bf16", "precision.gradients=bf16"});
  EXPECT_NEAR(3 * parameters, 195e9, 0.01 * 195e9);
  EXPECT_NEAR(3 * parameters / link, 156, 0.01 * 156) << "at one byte an element";
  EXPECT_NEAR(halves, ring * 3 * 2 * parameters, 1e-3 * halves);
  EXPECT_NEAR(halves / link, 312, 0.03 * 312);
  const double mixed = sent({"precision.compute=bf16"}).second;  // gradients are reduced in fp32
  EXPECT_NEAR(mixed, ring * (2 * 2 + 4) * parameters, 1e-3 * mixed);
  const double words = sent({"precision.compute=fp32"}).second;
  EXPECT_NEAR(words, ring * 3 * 4 * parameters, 1e-3 * words);
  EXPECT_NEAR(words / link, 624, 0.03 * 624);
}

/// The step of `caravan plan` is these bytes over the link: computation hides in them.
TEST(KnownSums, Zero3Of65BTakesAsLongAsItsLink) {
  const Recipe recipe = recipe_of(llama65(), {"precision.compute=bf16", "precision.gradients=bf16"});
  const Hardware hardware = preset_hardware({.device = "a100-80", .hosts = 64, .link = "10Gb"});
  const HardwareCosts costs(hardware);
  const Prediction one = Predictor(hardware, costs, 64, 0).estimate(recipe);
  const LinkLevel& cluster = hardware.levels.back();
  const double reached = 1.25e9 * cluster.fraction / (1 + cluster.congestion * std::log2(64));
  EXPECT_NEAR(one.seconds, 63.0 / 64 * 6 * num_parameters(recipe) / reached, 0.05 * one.seconds);
  EXPECT_GT(one.waits.at("dp"), 0.9 * one.seconds);
}

// Bytes of a parameter

/// The states of one rank of 64, by the parameters of the model.
double state_bytes(const Keys& keys) {
  const Recipe recipe =
      recipe_of({"model.layers=36", "model.width=4096", "model.heads=32", "model.context=128", "model.vocabulary=50304",
                 "model.dropout=0", "data.tokenizer=bytes", "train.global_batch=64", "train.micro_batch=1"},
                keys);
  EXPECT_NEAR(num_parameters(recipe), 7.5e9, 0.01 * 7.5e9);
  return static_cast<double>(rehearse(recipe, 0, 64, 0).peak.state()) / num_parameters(recipe);
}

/// Rajbhandari et al., arXiv 1910.02054, figure 1, and Narayanan et al.: what each parameter takes.
TEST(KnownSums, BytesOfAParameter) {
  const std::string bf16 = "precision.compute=bf16", short_gradients = "precision.gradients=bf16";
  const std::string zero = "data_parallel.technique=zero";
  struct Case {
    Keys keys;
    double bytes;
  };
  const double n = 64;
  for (const auto& [keys, bytes] : std::vector<Case>{
           {{"data_parallel.technique=ddp"}, 4 + 4 + 8},                          // fp32
           {{"data_parallel.technique=ddp", bf16, short_gradients}, 2 + 2 + 12},  // ZeRO's mixed precision
           {{"data_parallel.technique=ddp", bf16}, 2 + 4 + 12},                   // Megatron: sums in fp32
           {{zero + "1", bf16, short_gradients}, 4 + 12 / n},
           {{zero + "1", bf16}, 6 + 12 / n},  // Megatron's distributed optimizer
           {{zero + "2", bf16, short_gradients}, 2 + 14 / n},
           // Not the paper's 16 / N: what is gathered is rounded from the fp32 shard, so that no 16-bit shard rests.
           {{zero + "3", bf16, short_gradients}, 14 / n}}) {
    EXPECT_NEAR(state_bytes(keys), bytes, 0.01 * bytes) << keys.front();
  }
}

// 530 B on 2,240 to 3,360 A100: Smith et al., arXiv 2201.11990

Keys mt_nlg(int64_t micro_batches) {
  const std::string batch = std::to_string(8 * micro_batches);
  return {"model.layers=105",
          "model.width=20480",
          "model.heads=128",
          "model.context=2048",
          "model.vocabulary=51200",
          "model.dropout=0",
          "data.tokenizer=bytes",
          "mesh.tp=8",
          "mesh.pp=35",
          "pipeline.schedule=1f1b",
          "train.global_batch=" + batch,
          "pipeline.micro_batches=" + std::to_string(micro_batches),
          "precision.compute=bf16",
          "memory.recompute=full"};
}

/// Memory: 20 bytes for each parameter are "over 10 TB"; activations of the whole batch 16.9 TB, of which a device
/// keeps those of the micro-batches in flight.
TEST(KnownSums, MtNlgFitsItsDevices) {
  const double s = 2048, h = 20480, layers = 105, pp = 35, tp = 8;
  const Recipe recipe = recipe_of(mt_nlg(40));
  EXPECT_NEAR(num_parameters(recipe), 530e9, 0.002 * 530e9);
  EXPECT_NEAR(20 * num_parameters(recipe), 10.6e12, 0.01 * 10.6e12);
  EXPECT_NEAR(1920 * layers * s * h * 2, 16.9e12, 0.01 * 16.9e12);
  const AcceleratorScope accelerator(true);
  const Rehearsal first = rehearse(recipe, 0, 2240, 0);
  // Three layers and the embedding: the fp32 copy, the 16-bit one, sums in fp32 and two moments.
  const double own = (layers / pp * 12 * h * h + 51200 * h) / tp;
  const auto states = static_cast<double>(first.peak.state());
  EXPECT_NEAR(states, 18 * own, 0.02 * states);
  // Inputs of three layers and the output of the last, of as many micro-batches as there are stages.
  const double kept = (layers / pp + 1) * 2 * s * h * pp;
  const auto activations = static_cast<double>(first.peak[MemoryKind::other]);
  EXPECT_GT(activations, kept);
  EXPECT_LT(activations - kept, 34 * s * h * 2) << "beside them one layer is computed again";
  EXPECT_LT(static_cast<double>(first.peak.total()), 80e9);
}

/// Stages that never wait, and the bubble of 1F1B: m micro-batches of the slowest stage, p - 1 of the others.
TEST(KnownSums, MtNlgTakesAMinute) {
  const double pp = 35, micro_batches = 240;
  const Hardware hardware = preset_hardware({.device = "a100-80", .per_host = 8, .hosts = 280});
  const HardwareCosts costs(hardware);
  const AcceleratorScope accelerator(true);
  const double s = 2048, h = 20480, layers = 105, vocabulary = 51200;
  const Recipe few = recipe_of(mt_nlg(36)), more = recipe_of(mt_nlg(40));
  /// Seconds of a micro-batch, FLOPs of a step.
  struct Stage {
    double seconds, once, flops;
  };
  const auto stage = [&](int rank) {
    const auto simulated = [&](const Recipe& recipe) {
      const Rehearsal one = rehearse(recipe, 0, 2240, rank);
      const RankTimeline alone{rank, &one.timeline, &one.ranks_of_axis};
      return std::pair(simulate(std::span(&alone, 1), costs).seconds, one.timeline.flops());
    };
    const auto [short_step, flops] = simulated(few);
    const double of_one = (simulated(more).first - short_step) / 4;
    return Stage{of_one, short_step - 36 * of_one, flops};
  };
  const Stage middle = stage(17 * 64), last = stage(34 * 64);
  // Four products of 12 h^2 weights for each token, and attention over half of the keys, which computes its scores
  // once more; the last stage also has the head.
  const double of_layers = s * (4 * 24 * h * h + (2 + 2 + 5) * 2 * s * h / 2) * layers / pp / 8;
  EXPECT_NEAR(middle.flops, 36 * of_layers, 0.01 * middle.flops);
  EXPECT_NEAR(last.flops - middle.flops, 36 * 3 * 2 * s * h * vocabulary / 8, 1e-6 * middle.flops);
  // By hand: 96 B s L h^2 (1 + s / 6 h + V / 16 L h) FLOPs, at the 126 TFLOP/s a device that were measured.
  const double flops = 96 * 1920 * s * layers * h * h * (1 + s / (6 * h) + vocabulary / (16 * layers * h));
  EXPECT_NEAR(flops / 2240 / 126e12, 60.1, 0.03 * 60.1);
  EXPECT_NEAR((micro_batches + pp - 1) / micro_batches, 1.142, 1e-3);
  // This program has fused attention, that one had not.
  const double step = micro_batches * last.seconds + (pp - 1) * middle.seconds + last.once;
  EXPECT_LT(step, 60.1);
  EXPECT_GT(step, 0.8 * 60.1);
}

/// The model of published runs, for the framework of that run, which was not fitted to it: up to 13 % too fast.
TEST(KnownSums, MtNlgAsPublished) {
  const std::vector<std::tuple<int, int, double>> runs{{2240, 8, 60.1}, {2800, 10, 50.2}, {3360, 12, 44.4}};
  for (const auto& [devices, dp, seconds] : runs) {
    const published::Row row(
        std::map<std::string, std::string, std::less<>>{{"framework", "Megatron-DeepSpeed"},
                                                        {"arch", "gpt"},
                                                        {"mlp", "gelu"},
                                                        {"tied_embeddings", "Y"},
                                                        {"layers", "105"},
                                                        {"hidden", "20480"},
                                                        {"heads", "128"},
                                                        {"vocab", "51200"},
                                                        {"seq", "2048"},
                                                        {"hw", "a100-80"},
                                                        {"gpus_per_node", "8"},
                                                        {"inter_gbps_per_gpu", "25"},
                                                        {"precision", "bf16"},
                                                        {"num_gpus", std::to_string(devices)},
                                                        {"dp", std::to_string(dp)},
                                                        {"tp", "8"},
                                                        {"pp", "35"},
                                                        {"schedule", "1F1B"},
                                                        {"micro_batch", "1"},
                                                        {"num_microbatches", std::to_string(1920 / dp)},
                                                        {"global_batch", "1920"},
                                                        {"recompute", "full"},
                                                        {"flash_attn", "N"}});
    EXPECT_NEAR(published::predict(row).step_seconds, seconds, 0.15 * seconds) << devices;
  }
}

// 175 B on 1,024 A100: Narayanan et al., arXiv 2104.04473, section 5.1

/// 300 G tokens in 34 days at 140 TFLOP/s a device.
TEST(KnownSums, Gpt3Takes34Days) {
  const Recipe recipe = recipe_of({"model.layers=96", "model.width=12288", "model.heads=96", "model.context=2048",
                                   "model.vocabulary=51200", "model.dropout=0", "data.tokenizer=bytes",
                                   "train.global_batch=1536", "mesh.tp=8", "mesh.pp=8", "pipeline.schedule=1f1b",
                                   "pipeline.micro_batches=96", "precision.compute=bf16", "memory.recompute=full"});
  const double day = 86400, tokens = 300e9, batch = 1536.0 * 2048;
  const double days = 8 * tokens * 175e9 / (1024 * 140e12) / day;
  EXPECT_NEAR(days, 34, 0.5);
  const Hardware hardware = preset_hardware({.device = "a100-80", .per_host = 8, .hosts = 128});
  const HardwareCosts costs(hardware);
  const Prediction one = Predictor(hardware, costs, 1024, 0).estimate(recipe);
  EXPECT_TRUE(one.fits());
  EXPECT_NEAR(one.seconds * tokens / batch / day, 34, 0.1 * 34);
}

// One, two, two and a half and three dimensions

/// Bytes that a rank sends for one layer of GPT in one micro-batch, forward and backward.
double layer_bytes(Keys keys, int num_ranks) {
  keys.insert(keys.end(), {"mesh.tp=" + std::to_string(num_ranks), "model.dropout=0", "model.vocabulary=50304",
                           "data.tokenizer=bytes", "precision.compute=bf16"});
  const auto sent = [&](const char* layers) {
    const Rehearsal one = rehearse(recipe_of(keys, {layers}), 0, num_ranks, 0);
    return one.bytes_sent() - one.bytes_sent("depth");  // the sum over depth is that of data parallelism
  };
  return sent("model.layers=3") - sent("model.layers=2");
}

/// 2D sends less than 1D where 3 (q - 1) / q^2 (7 b s h + 12 h^2) < 8 (q^2 - 1) / q^2 b s h.
TEST(KnownSums, TwoDimensionsPayFromSomeRanksOn) {
  const double h = 1152;
  for (const auto& [tokens, q, pays] : {std::tuple{2, 3, false}, {2, 4, true}, {4, 2, false}, {4, 3, true}}) {
    const double bsh = tokens * h * h, t = q * q;
    const double one = 2 * 8 * (t - 1) / t * bsh, two = 2 * 3 * (q - 1) / t * (7 * bsh + 12 * h * h);
    EXPECT_EQ(two < one, pays);
    const Keys keys{"model.width=1152", "model.heads=144", "model.context=" + std::to_string(32 * tokens),
                    "train.global_batch=36", "train.micro_batch=36"};
    Keys grid = keys;
    grid.emplace_back("tensor_parallel.kind=2d");
    const double rehearsed_one = layer_bytes(keys, q * q), rehearsed_two = layer_bytes(grid, q * q);
    EXPECT_NEAR(rehearsed_one, one, 0.01 * one) << q;
    EXPECT_NEAR(rehearsed_two, two, 0.03 * two) << q;  // and statistics of norms, in fp64
    EXPECT_EQ(rehearsed_two < rehearsed_one, pays) << tokens << " h tokens, " << t << " ranks";
  }
}

/// The table of docs/tensor_parallel_2d.md: a layer of 175 B, 64 sequences.
TEST(KnownSums, TheKindOf175B) {
  const Keys keys{"model.width=12288", "model.heads=96", "model.context=2048", "train.global_batch=64",
                  "train.micro_batch=64"};
  const auto of_kind = [&](Keys kind, int ranks) {
    kind.insert(kind.end(), keys.begin(), keys.end());
    return layer_bytes(kind, ranks) / 1e9;
  };
  const double h = 12288, bsh = 64 * 2048 * h, weights = 12 * h * h;
  const double one = of_kind({}, 32), two = of_kind({"tensor_parallel.kind=2d"}, 64);
  const double deep = of_kind({"tensor_parallel.kind=2.5d", "tensor_parallel.depth=4"}, 64);
  const double three = of_kind({"tensor_parallel.kind=3d"}, 64);
  EXPECT_NEAR(one, 2 * 8 * 31.0 / 32 * bsh / 1e9, 0.01 * one);
  EXPECT_NEAR(two, 2 * 3 * 7.0 / 64 * (7 * bsh + weights) / 1e9, 0.01 * two);
  EXPECT_NEAR(deep, 2 * 3 * 3.0 / 16 * (7 * bsh / 4 + weights) / 1e9, 0.01 * deep);
  EXPECT_NEAR(three, 2 * 3.0 / 64 * (39 * bsh + 3 * weights) / 1e9, 0.01 * three);
  // With the sum of the gradients of a square over its depth, as in the table.
  EXPECT_LT(deep + 2 * 2 * 3.0 / 4 * weights / 16 / 1e9, three);
  EXPECT_LT(three, two);
  EXPECT_LT(two, one);
}

}  // namespace
}  // namespace caravan::testing::known_sums_test
