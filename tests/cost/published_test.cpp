// Predictions of published runs: the formulas of papers, quoted runs, and rows that say little or nothing sensible.
#include <cmath>
#include <fstream>
#include <gmock/gmock.h>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/cost/published/errors.h"
#include "caravan/cost/published/operations.h"
#include "caravan/cost/published/pipeline_time.h"
#include "caravan/cost/published/predict.h"
#include "tests/data/support.h"
#include "tests/needs.h"

namespace caravan::testing::published_test {
namespace {

using published::Row;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Texts = std::map<std::string, std::string, std::less<>>;

/// `more` in place of what `row` says.
Texts with(Texts row, const Texts& more) {
  for (const auto& [column, text] : more) row[column] = text;
  return row;
}

Texts gpt(const std::string& layers, const std::string& width, const std::string& heads) {
  return {{"arch", "gpt"},   {"mlp", "gelu"},        {"tied_embeddings", "Y"}, {"layers", layers},
          {"hidden", width}, {"heads", heads},       {"vocab", "51200"},       {"seq", "2048"},
          {"hw", "a100-80"}, {"gpus_per_node", "8"}, {"flash_attn", "N"},      {"precision", "fp16"}};
}

// Pipelines: closed forms for equal stages.

std::vector<StageCost> equal_stages(int count, double forward, double backward, double weight) {
  return std::vector<StageCost>(static_cast<size_t>(count),
                                {.forward = forward, .backward = backward, .weight = weight});
}

TEST(PublishedPipeline, HasTheBubbleOfItsSchedule) {
  needs({"gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2"});
  const auto seconds = [](const char* name, int p, int chunks, int m, double f, double b, double w) {
    return published::pipeline_time({name, p, chunks, m}, equal_stages(p * chunks, f / chunks, b / chunks, w / chunks))
        .seconds;
  };
  for (const int m : {8, 32, 512}) {  // the last is extrapolated
    EXPECT_NEAR(seconds("gpipe", 8, 1, m, 1, 1, 1), (m + 7) * 3, 1e-6) << m;
    EXPECT_NEAR(seconds("1f1b", 8, 1, m, 1, 1, 1), (m + 7) * 3, 1e-6) << m;
    EXPECT_NEAR(seconds("interleaved", 8, 2, m, 1, 1, 1), m * 3 + 7 * 3 / 2.0, 1e-6) << m;
    EXPECT_NEAR(seconds("interleaved", 8, 4, m, 1, 1, 1), m * 3 + 7 * 3 / 4.0, 1e-6) << m;
  }
  EXPECT_NEAR(seconds("zb-h1", 8, 1, 512, 1, 1, 1), 512 * 3 + 7, 1e-6);
  EXPECT_NEAR(seconds("zb-h2", 8, 1, 512, 1, 1, 1), 512 * 3 + 7, 1e-6) << "none but where the last rank waits to begin";
  EXPECT_NEAR(seconds("", 8, 1, 32, 1, 1, 1), (32 + 7) * 3, 1e-6);
  EXPECT_EQ(seconds("", 1, 1, 5, 1, 2, 3), 30);
}

TEST(PublishedPipeline, IsExtrapolatedToWhatAWholeSimulationTakes) {
  needs({"1f1b", "zb-h1", "interleaved"});
  std::mt19937 random(7);
  std::uniform_real_distribution<> size(0.8, 1.2);
  struct Case {
    const char* name;
    int chunks;
    double tolerance;
  };
  for (const auto& [name, chunks, tolerance] :
       {Case{"1f1b", 1, 1e-6}, Case{"zb-h1", 1, 0.01}, Case{"interleaved", 3, 0.01}}) {
    std::vector<StageCost> stages;
    for (int i = 0; i < 6 * chunks; ++i) {
      stages.push_back({.forward = size(random), .backward = size(random), .weight = size(random), .send = 0.05});
    }
    PipelineChoice choice{.degree = 6, .schedule = Setting("pipeline", name)};
    if (chunks > 1) choice.schedule.set("stages_per_rank", int64_t{chunks});
    const double whole = simulate(pipeline_order(choice, 120), stages).total;
    EXPECT_NEAR(published::pipeline_time({name, 6, chunks, 120}, stages).seconds / whole, 1, tolerance) << name;
  }
}

TEST(PublishedPipeline, IsAFormulaForHundredsOfRanks) {
  const auto seconds = [](int p, int chunks, int m) {
    return published::pipeline_time({"", p, chunks, m}, equal_stages(p * chunks, 1, 1, 1)).seconds;
  };
  EXPECT_NEAR(seconds(512, 1, 4096), (4096 + 511) * 3, 1e-6);
  EXPECT_NEAR(seconds(512, 2, 4096), 4096 * 6 + 511 * 3, 1e-6);
}

TEST(PublishedPipeline, TakesAnyNumberOfMicroBatches) {
  needs({"interleaved"});
  // Of 9 micro-batches on 4 ranks, interleaved orders have 12: the last 3 are taken off.
  const auto seconds = [](int m) {
    return published::pipeline_time({"interleaved", 4, 2, m}, equal_stages(8, 0.5, 0.5, 0.5)).seconds;
  };
  EXPECT_NEAR(seconds(9), seconds(12) - 9, 1e-6);
  EXPECT_GT(seconds(1), 3);
}

TEST(PublishedPipeline, HoldsActivations) {
  needs({"gpipe", "1f1b", "interleaved", "zb-h2"});
  const auto held = [](const char* name, int chunks, int m) {
    return published::pipeline_time({name, 4, chunks, m}, equal_stages(4 * chunks, 1, 1, 1)).held;
  };
  EXPECT_THAT(held("1f1b", 1, 64), ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(held("1f1b", 1, 2), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(held("gpipe", 1, 64), ElementsAre(64, 64, 64, 64)) << "extrapolated too";
  EXPECT_THAT(held("interleaved", 2, 64), ElementsAre(11, 9, 7, 5)) << "2 (p - i - 1) + (v - 1) p + 1";
  EXPECT_THAT(held("zb-h2", 1, 64), ElementsAre(7, 7, 7, 7)) << "2 p - 1";
}

// Memory

/// Table 2 of Korthikanti et al.: bytes of a layer, with s b h = tokens x width.
TEST(PublishedMemory, ActivationsOfALayerAreThoseOfThePaper) {
  const Texts row =
      with(gpt("96", "12288", "96"), {{"framework", "Megatron-LM"}, {"micro_batch", "2"}, {"num_gpus", "8"}});
  const double sbh = 2048.0 * 2 * 12288, scores = 5.0 * 96 * 2048 / 12288, t = 8;
  const auto layer = [&](const Texts& more) { return published::layer_memory(published::describe(with(row, more))); };
  EXPECT_DOUBLE_EQ(layer({}).all, sbh * (34 + scores));
  EXPECT_DOUBLE_EQ(layer({{"tp", "8"}}).all, sbh * (10 + 24 / t + scores / t));
  EXPECT_DOUBLE_EQ(layer({{"tp", "8"}, {"seq_parallel", "Y"}}).all, sbh / t * (34 + scores));
  EXPECT_DOUBLE_EQ(layer({{"tp", "8"}, {"recompute", "selective"}}).kept, sbh * (10 + 24 / t));
  EXPECT_DOUBLE_EQ(layer({{"tp", "8"}, {"seq_parallel", "Y"}, {"recompute", "selective"}}).kept, sbh * 34 / t);
  EXPECT_DOUBLE_EQ(layer({{"tp", "8"}, {"recompute", "full"}}).kept, sbh * 2);
  const double half = layer({{"recompute", "full"}, {"recompute_detail", "48 of 96 layers"}}).kept;
  EXPECT_DOUBLE_EQ(half, sbh * 2 + 0.5 * (sbh * (34 + scores) - sbh * 2));
  EXPECT_DOUBLE_EQ(layer({{"precision", "fp32"}}).all, 2 * sbh * (34 + scores));
}

/// Rajbhandari et al., arXiv 1910.02054, figure 1: 7.5 B parameters on 64 devices take 120, 31.4, 16.6 and 1.9 GB.
TEST(PublishedMemory, StatesAreCutAsZeroSays) {
  const Texts row = with(gpt("72", "3072", "24"), {{"framework", "DeepSpeed"}, {"num_gpus", "64"}, {"vocab", "32768"}});
  const auto weights = published::describe(row).weights;
  const auto bytes = [&](const char* zero) {
    const published::Run run = published::describe(with(row, {{"zero_stage", zero}}));
    return published::stage_memory(run, 0, 1).states / weights;
  };
  EXPECT_DOUBLE_EQ(bytes("0"), 16);
  EXPECT_NEAR(bytes("1"), 4 + 12 / 64.0, 1e9 / weights);     // and a bucket
  EXPECT_NEAR(bytes("2"), 2 + 14 / 64.0, 2.01e9 / weights);  // and two
  EXPECT_NEAR(bytes("3"), 16 / 64.0, 1.5e9 / weights);       // and units that are gathered
  EXPECT_LT(bytes("3"), bytes("2"));
}

TEST(PublishedMemory, CountsWhatTheRowCounts) {
  const Texts row = with(gpt("24", "2048", "16"), {{"framework", "Megatron-LM"}, {"num_gpus", "8"}, {"dp", "8"}});
  const auto bytes = [&](const char* kind) { return published::predict(with(row, {{"mem_kind", kind}})).memory_bytes; };
  EXPECT_NEAR(bytes("PyTorch reserved peak") / bytes("torch max_memory_allocated"), 1.10, 1e-9);
  EXPECT_NEAR(bytes("nvidia-smi") - bytes("reserved"), 1 << 30, 1);
  EXPECT_LT(bytes("model states at rest"), bytes("torch max_memory_allocated"));
}

// Operations

/// Narayanan et al., arXiv 2104.04473, appendix: a forward of a layer has 24 b s h^2 (1 + s / 6 h) FLOPs.
TEST(PublishedOperations, HaveTheFlopsOfThePaper) {
  const published::Run run = published::describe(
      with(gpt("48", "8192", "64"), {{"framework", "Megatron-LM"}, {"micro_batch", "4"}, {"recompute", "full"}}));
  const auto flops = [](const published::Pass& pass) {
    double sum = 0;
    for (const published::Compute& compute : pass.computes) sum += compute.work.flops();
    return sum;
  };
  const double b = 4, s = 2048, h = 8192, forward = 24 * b * s * h * h * (1 + s / (6 * h));
  const published::Passes layer = published::layer_passes(run);
  EXPECT_DOUBLE_EQ(flops(layer.forward), forward);
  EXPECT_DOUBLE_EQ(flops(layer.recompute), forward);
  EXPECT_DOUBLE_EQ(flops(layer.backward) + flops(layer.weights), 2 * forward);
  const published::Passes head = published::head_passes(run);
  EXPECT_DOUBLE_EQ(flops(head.forward) + flops(head.backward) + flops(head.weights), 6 * b * s * h * 51200);
}

TEST(PublishedOperations, SendWhatTensorParallelismSends) {
  const Texts row = with(gpt("48", "8192", "64"),
                         {{"framework", "Megatron-LM"}, {"micro_batch", "4"}, {"tp", "8"}, {"num_gpus", "8"}});
  const auto sent = [&](const Texts& more) {
    const published::Passes layer = published::layer_passes(published::describe(with(row, more)));
    double sum = 0;
    for (const published::Pass* pass : {&layer.forward, &layer.backward}) {
      for (const published::Communication& one : pass->calls) sum += one.call.sent_bytes;
    }
    return sum;
  };
  const double activations = 2.0 * 4 * 2048 * 8192;
  EXPECT_DOUBLE_EQ(sent({}), 4 * 2 * 7 / 8.0 * activations) << "four all-reduces";
  EXPECT_DOUBLE_EQ(sent({{"seq_parallel", "Y"}}), (2 * 2 + 2 * 3) * 7 / 8.0 * activations);
}

// Runs

struct Published {
  const char* name;
  Texts row;
  double step_seconds;
  double memory_gib = 0;  ///< 0: not published
};

std::vector<Published> published_runs() {
  const Texts megatron = {{"framework", "Megatron-LM"}, {"inter_gbps_per_gpu", "25"}};
  const Texts sc21 = {{"framework", "Megatron-LM @6985e58"}, {"inter_gbps_per_gpu", "25"}, {"recompute", "full"}};
  const Texts mpt = with(gpt("32", "4096", "32"), {{"framework", "Composer + PyTorch 1.13/2.0 FSDP"},
                                                   {"arch", "mpt"},
                                                   {"vocab", "50368"},
                                                   {"hw", "a100-40"},
                                                   {"precision", "bf16"},
                                                   {"zero_stage", "3"},
                                                   {"flash_attn", "Y"},
                                                   {"sharding", "FULL_SHARD, mixed_precision=PURE"},
                                                   {"recompute", "full"}});
  const Texts llama = {
      {"arch", "llama"},     {"mlp", "gated"},   {"tied_embeddings", "N"}, {"kv_heads", "8"},
      {"vocab", "128256"},   {"seq", "8192"},    {"gpus_per_node", "8"},   {"inter_gbps_per_gpu", "50"},
      {"precision", "bf16"}, {"flash_attn", "Y"}};
  const Texts llama8 = with(llama, {{"layers", "32"}, {"hidden", "4096"}, {"heads", "32"}, {"ffn", "14336"}});
  const Texts llama70 = with(llama, {{"layers", "80"}, {"hidden", "8192"}, {"heads", "64"}, {"ffn", "28672"}});
  return {
      {"Narayanan et al., 530 B",
       with(with(gpt("105", "20480", "128"), sc21), {{"num_gpus", "2520"},
                                                     {"dp", "9"},
                                                     {"tp", "8"},
                                                     {"pp", "35"},
                                                     {"vpp", "3"},
                                                     {"schedule", "interleaved-1F1B"},
                                                     {"micro_batch", "1"},
                                                     {"num_microbatches", "280"},
                                                     {"global_batch", "2520"}}),
       54.085},
      {"Narayanan et al., 1.7 B",
       with(with(gpt("24", "2304", "24"), sc21),
            {{"num_gpus", "32"}, {"dp", "32"}, {"micro_batch", "16"}, {"global_batch", "512"}}),
       3.528},
      {"Korthikanti et al., 22 B, selective",
       with(with(gpt("48", "6144", "64"), megatron), {{"num_gpus", "8"},
                                                      {"dp", "1"},
                                                      {"tp", "8"},
                                                      {"seq_parallel", "Y"},
                                                      {"micro_batch", "4"},
                                                      {"num_microbatches", "1"},
                                                      {"recompute", "selective"}}),
       1.1},
      {"Korthikanti et al., 175 B, full",
       with(with(gpt("96", "12288", "96"), megatron), {{"num_gpus", "64"},
                                                       {"dp", "1"},
                                                       {"tp", "8"},
                                                       {"pp", "8"},
                                                       {"vpp", "3"},
                                                       {"schedule", "interleaved-1F1B"},
                                                       {"micro_batch", "1"},
                                                       {"num_microbatches", "64"},
                                                       {"recompute", "full"}}),
       18.13},
      {"MosaicML, 7 B",
       with(mpt, {{"seq", "4096"},
                  {"num_gpus", "8"},
                  {"micro_batch", "6"},
                  {"num_microbatches", "4"},
                  {"global_batch", "192"}}),
       29.2028},
      {"MosaicML, 70 B",
       with(mpt, {{"layers", "80"},
                  {"hidden", "8192"},
                  {"heads", "64"},
                  {"inter_gbps_per_gpu", "25"},
                  {"num_gpus", "128"},
                  {"dp", "128"},
                  {"micro_batch", "4"},
                  {"num_microbatches", "1"},
                  {"global_batch", "512"}}),
       21.7574},
      {"torchtitan, 8 B, compiled",
       with(llama8, {{"framework", "torchtitan + torch.compile"},
                     {"hw", "h100-96"},
                     {"precision", "bf16 (fp32 params/reduce)"},
                     {"num_gpus", "128"},
                     {"zero_stage", "3"},
                     {"sharding", "FSDP2"},
                     {"micro_batch", "2"},
                     {"global_batch", "256"},
                     {"recompute", "selective"},
                     {"recompute_detail", "selective (op)"},
                     {"mem_kind", "PyTorch reserved peak"}}),
       2.5152, 62},
      {"NeMo, 70 B",
       with(llama70, {{"framework", "NeMo Megatron"},
                      {"hw", "h100-80"},
                      {"num_gpus", "64"},
                      {"dp", "2"},
                      {"zero_stage", "1"},
                      {"sharding", "distributed optimizer"},
                      {"tp", "4"},
                      {"seq_parallel", "Y"},
                      {"pp", "4"},
                      {"vpp", "5"},
                      {"cp", "2"},
                      {"schedule", "interleaved 1F1B"},
                      {"micro_batch", "1"},
                      {"num_microbatches", "64"},
                      {"global_batch", "128"}}),
       14.61},
      {"vTrain, one host",
       with(gpt("20", "1024", "16"), {{"table", "vTrain single node"},
                                      {"framework", "Megatron-DeepSpeed"},
                                      {"vocab", "50257"},
                                      {"seq", "1024"},
                                      {"num_gpus", "2"},
                                      {"pp", "2"},
                                      {"schedule", "1F1B"},
                                      {"micro_batch", "2"},
                                      {"num_microbatches", "4"},
                                      {"recompute", "full"}}),
       0.20366},
      {"Qi et al., ZB-2p of 14.6 B",
       with(gpt("46", "5120", "40"), {{"framework", "Megatron-LM fork"},
                                      {"vocab", "50000"},
                                      {"seq", "1024"},
                                      {"num_gpus", "16"},
                                      {"pp", "16"},
                                      {"schedule", "ZB-2p"},
                                      {"micro_batch", "1"},
                                      {"num_microbatches", "64"},
                                      {"flash_attn", ""},
                                      {"note", "first and last stage carry one layer less"}}),
       2.1858, 51},
      {"Megatron-LM on V100, 52 B, partitioned checkpoints",
       with(gpt("64", "8192", "32"), {{"framework", "Megatron-LM v1.1.5 + DeepSpeed 3D (old branch)"},
                                      {"vocab", "50688"},
                                      {"seq", "1024"},
                                      {"hw", "v100-32"},
                                      {"gpus_per_node", "4"},
                                      {"inter_gbps_per_gpu", "12.5"},
                                      {"num_gpus", "64"},
                                      {"tp", "4"},
                                      {"pp", "16"},
                                      {"schedule", "1F1B"},
                                      {"micro_batch", "4"},
                                      {"num_microbatches", "256"},
                                      {"recompute", "full"},
                                      {"recompute_detail", "full, partitioned over TP"},
                                      {"stage", "0"},
                                      {"mem_kind", "torch max_memory_allocated"}}),
       147.84, 19.508},
  };
}

TEST(PublishedRuns, ArePredictedWithin15Percent) {
  needs({"1f1b", "interleaved", "zb-h2"});
  for (const Published& one : published_runs()) {
    const published::Prediction prediction = published::predict(one.row);
    EXPECT_EQ(prediction.failure, "") << one.name;
    EXPECT_NEAR(prediction.step_seconds / one.step_seconds, 1, 0.15) << one.name;
    if (one.memory_gib > 0) {
      EXPECT_NEAR(prediction.memory_bytes / (1 << 30) / one.memory_gib, 1, 0.15) << one.name;
    }
  }
}

TEST(PublishedRuns, AreDescribedByWhatTheirRowsSay) {
  const published::Run run = published::describe(with(gpt("105", "20480", "128"), {{"framework", "Megatron-LM"},
                                                                                   {"tp", "8"},
                                                                                   {"pp", "35"},
                                                                                   {"num_gpus", "280"},
                                                                                   {"schedule", "interleaved-1F1B"},
                                                                                   {"vpp", "3"},
                                                                                   {"global_batch", "280"}}));
  EXPECT_EQ(run.dp, 1);
  EXPECT_EQ(run.micro_batches, 280);
  EXPECT_EQ(run.mlp_width, 4 * 20480);
  EXPECT_EQ(run.kv_heads, 128);
  EXPECT_EQ(run.layers_on(0), 3);
  EXPECT_EQ(run.hardware.num_devices(), 280);
  EXPECT_NEAR(run.weights, 530e9, 5e9);
  const published::Run ends =
      published::describe(with(gpt("22", "2304", "24"), {{"pp", "8"},
                                                         {"num_gpus", "8"},
                                                         {"schedule", "1F1B-I"},
                                                         {"vpp", "max (interleaved)"},
                                                         {"note", "first and last stage carry one layer less"}}));
  EXPECT_EQ(ends.chunks, 3);
  EXPECT_EQ(ends.layers_of.front(), (std::vector<int64_t>{0, 1, 1}));
  EXPECT_EQ(ends.layers_of.back(), (std::vector<int64_t>{1, 1, 0}));
  const published::Run padded =
      published::describe(with(gpt("24", "1024", "16"), {{"vocab", "50257"}, {"tp", "8"}, {"num_gpus", "8"}}));
  EXPECT_EQ(padded.vocabulary, 51200);
  EXPECT_EQ(published::describe(Texts{{"model", "Mixtral-8x7B"}, {"arch", "llama"}}).experts, 8);
  EXPECT_EQ(published::describe(Texts{{"hw", "V100 SXM3 32GB DGX-2"}}).hardware.devices.front().alias, "v100-32-dgx2");
  const auto device = [](const char* hw) {
    return published::describe(Texts{{"hw", hw}}).hardware.devices.front().alias;
  };
  EXPECT_EQ(device("NVIDIA A100-SXM4-40GB"), "a100-40");
  EXPECT_EQ(device("A100 PCIe 80GB"), "a100-80-pcie");
  EXPECT_EQ(device("H100 SXM 80GB HBM3"), "h100-80");
  EXPECT_EQ(device("GH200 141GB"), "gh200-141");
  EXPECT_EQ(device("V100_16GB"), "v100-16");
  EXPECT_EQ(device("TPU v5p"), "tpu-v5p");
  EXPECT_EQ(device("MI250X"), "mi250x");
  EXPECT_EQ(device("something new"), "a100-80");
  EXPECT_EQ(published::describe(Texts{{"sharding", "2.5D"}, {"tp", "4"}}).tensor_cube, 2);
  EXPECT_EQ(published::describe(Texts{{"sharding", "3D parallel"}, {"tp", "8"}}).tensor_cube, 0);
}

/// What is known to make a step longer, or a device fuller, does so.
TEST(PublishedRuns, ReactToTheirDescription) {
  needs({"gpipe", "1f1b", "zb-h1", "zb-h2"});
  const Texts row = with(gpt("48", "8192", "64"), {{"framework", "Megatron-LM"},
                                                   {"tp", "8"},
                                                   {"pp", "4"},
                                                   {"num_gpus", "64"},
                                                   {"dp", "2"},
                                                   {"micro_batch", "1"},
                                                   {"global_batch", "64"},
                                                   {"recompute", "full"},
                                                   {"inter_gbps_per_gpu", "25"}});
  const auto of = [&](const Texts& more) { return published::predict(with(row, more)); };
  const published::Prediction base = of({});
  EXPECT_GT(of({{"global_batch", "128"}}).step_seconds, 1.5 * base.step_seconds);
  EXPECT_GT(of({{"inter_gbps_per_gpu", "1"}}).step_seconds, base.step_seconds);
  EXPECT_LT(of({{"recompute", "none"}}).step_seconds, base.step_seconds);
  EXPECT_GT(of({{"recompute", "none"}}).uncapped_bytes, base.uncapped_bytes);
  EXPECT_LT(of({{"hw", "h100-80"}}).step_seconds, base.step_seconds);
  EXPECT_GT(of({{"hw", "v100-32"}}).step_seconds, base.step_seconds);
  EXPECT_LT(of({{"seq_parallel", "Y"}, {"recompute", "none"}}).uncapped_bytes,
            of({{"recompute", "none"}}).uncapped_bytes);
  EXPECT_GT(of({{"schedule", "gpipe"}}).uncapped_bytes, base.uncapped_bytes);
  EXPECT_LT(of({{"schedule", "ZB-V"}}).uncapped_bytes, of({{"schedule", "ZB-2p"}}).uncapped_bytes);
  EXPECT_LT(of({{"schedule", "V-Half"}}).uncapped_bytes, of({{"schedule", "ZB-1p"}}).uncapped_bytes);
  EXPECT_LT(of({{"zero_stage", "1"}}).uncapped_bytes, base.uncapped_bytes);
  EXPECT_GT(of({{"zero_stage", "2"}, {"offload", "cpu optimizer"}}).step_seconds, base.step_seconds);
  EXPECT_LE(of({{"hw", "v100-16"}}).memory_bytes, 0.97 * 16160 * (1 << 20)) << "a run that was published has fitted";
}

TEST(PublishedRuns, AreNeverBlank) {
  const auto check = [](const Texts& row) {
    const published::Prediction prediction = published::predict(row);
    const bool is_usable = std::isfinite(prediction.step_seconds) && prediction.step_seconds > 0 &&
                           std::isfinite(prediction.memory_bytes) && prediction.memory_bytes > 0;
    std::string text;
    for (const auto& [column, value] : row) text += column + "=" + value.substr(0, 40) + " ";
    EXPECT_TRUE(is_usable) << text << prediction.failure;
  };
  check({});
  std::vector<Texts> rows;
  for (const Published& one : published_runs()) rows.push_back(one.row);
  for (const Texts& row : rows) {
    for (const auto& [column, text] : row) check(with(row, {{column, ""}}));
  }
  std::mt19937 random(1);
  const auto pick = [&](size_t count) { return std::uniform_int_distribution<size_t>(0, count - 1)(random); };
  const std::vector<std::string> garbage{"",
                                         "-1",
                                         "0",
                                         "1e999",
                                         "nan",
                                         "0x10",
                                         "1e9",
                                         "7",
                                         "3.7",
                                         "abc",
                                         "\xff\xfe",
                                         "1,024",
                                         "9 of 3",
                                         "0/0",
                                         std::string(100000, '9'),
                                         std::string(100000, 'x'),
                                         "TPUv4",
                                         "MI300X",
                                         "H100 PCIe",
                                         "GB200",
                                         "A64FX",
                                         "rtx 4090",
                                         "ZB-V",
                                         "V-Half",
                                         "Chimera",
                                         "interleaved max",
                                         "gpipe",
                                         "cpu param",
                                         "nvme",
                                         "fp8",
                                         "int4?",
                                         "2.5D",
                                         "HSDP",
                                         "ZeRO-3",
                                         "MaxText",
                                         "8x7B",
                                         "ulysses"};
  for (int i = 0; i < 400; ++i) {
    Texts row = rows[pick(rows.size())];
    for (size_t k = 0; k < 1 + pick(8); ++k) {
      row[published::described_columns()[pick(published::described_columns().size())]] = garbage[pick(garbage.size())];
    }
    check(row);
  }
}

// Tables

TEST(PublishedTable, IsReadWithQuotesBlanksAndLineEnds) {
  const std::vector<Row> rows = published::parse_table(
      "\xEF\xBB\xBFtarget_id, layers ,hidden,color\r\n\"a,\"\"b\"\"\", 12 "
      ",\"1,024\",red\r\n\r\nc,,\"two\nlines\"\nd,1,2,3,4,5",
      "t.csv");
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0].text("target_id"), "a,\"b\"");
  EXPECT_EQ(rows[0].whole("layers"), 12);
  EXPECT_EQ(rows[0].number("hidden"), 1024);
  EXPECT_EQ(rows[0].text("none"), "");
  EXPECT_EQ(rows[1].number("layers"), std::nullopt);
  EXPECT_EQ(rows[1].text("hidden"), "two\nlines");
  EXPECT_EQ(rows[2].number("hidden"), 2);
  EXPECT_EQ(published::csv_field(rows[0].text("target_id")), "\"a,\"\"b\"\"\"");
  const Row odd(Texts{{"a", "nan"}, {"b", "0x10"}, {"c", "2.5 GB"}, {"d", "-3"}, {"e", "1e400"}, {"f", "0.2"}});
  EXPECT_EQ(odd.number("a"), std::nullopt);
  EXPECT_EQ(odd.number("b"), 0);
  EXPECT_EQ(odd.number("c"), 2.5);
  EXPECT_EQ(odd.number("d"), -3);
  EXPECT_EQ(odd.whole("d"), std::nullopt);
  EXPECT_EQ(odd.number("e"), std::nullopt);
  EXPECT_EQ(odd.whole("f"), std::nullopt);
}

TEST(PublishedTable, ThatCannotBeUsedIsSaid) {
  const auto error_of = [](const std::string& text) -> std::string {
    try {
      published::parse_table(text, "t.csv");
    } catch (const DataError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(error_of(""), AllOf(HasSubstr("t.csv"), HasSubstr("is empty"), HasSubstr("write a header")));
  EXPECT_THAT(error_of(" \n\n"), HasSubstr("is empty"));
  EXPECT_THAT(error_of("layers,hidden\n"), HasSubstr("has a header and no row"));
  EXPECT_THAT(error_of("12,1024\n13,1025\n"),
              AllOf(HasSubstr("none of the columns that describe a run"), HasSubstr("layers, hidden")));
  EXPECT_EQ(error_of("color,layers\nred,2\n"), "no error");
  const TemporaryFolder folder;
  EXPECT_THROW(published::read_table(folder / "none.csv"), DataError);
}

// Errors

TEST(PublishedErrors, AreThoseOfTheirDefinitions) {
  std::vector<Row> rows;
  std::vector<published::Prediction> predictions;
  const auto add = [&](const char* file, double predicted, const char* measured, const char* memory,
                       const char* layout) {
    rows.emplace_back(Texts{{"file", file}, {"tier", "A"}, {"step_s", measured}, {"mem_gb", memory}, {"model", "m"}});
    published::Prediction& one = predictions.emplace_back();
    one.step_seconds = predicted;
    one.memory_bytes = 11.0 * (1 << 30);
    one.executed_flops = predicted < 3 ? 1 : 4;
    one.peak_flops = 1;
    one.layout = layout;
  };
  add("one", 1.1, "1", "10", "a");
  add("one", 2.0, "2.5", "", "b");  // chosen by nobody
  add("one", 1.0, "1.25", "11", "c");
  add("two", 3, "", "", "a");
  add("two", 3, "", "22", "a");
  const std::vector<published::SourceErrors> errors = published::errors_of(rows, predictions);
  ASSERT_EQ(errors.size(), 2U);
  EXPECT_EQ(errors[0].name, "A one");
  EXPECT_EQ(errors[0].step.count, 3);
  EXPECT_NEAR(errors[0].step.median, 0.2, 1e-12);
  EXPECT_NEAR(errors[0].step.ninth_decile, 0.2, 1e-12);
  EXPECT_NEAR(errors[0].bias, 0.8, 1e-12);
  // Fractions of the peak 1, 0.4, 0.8: by 1 the errors are 0, 60 % and 20 %.
  EXPECT_NEAR(errors[0].best_fraction, 1, 1e-12);
  EXPECT_NEAR(errors[0].best_constant.median, 0.2, 1e-12);
  EXPECT_EQ(errors[0].memory.count, 2);
  EXPECT_NEAR(errors[0].memory.median, 0.05, 1e-12);
  // Places of predictions 2, 3, 1 and of answers 1, 3, 2: 1 - 6 (1 + 0 + 1) / 24. The third is chosen: 1.25 of 1.
  EXPECT_EQ(errors[0].choices.groups, 1);
  EXPECT_NEAR(errors[0].choices.median_spearman, 0.5, 1e-12);
  EXPECT_NEAR(errors[0].choices.mean_loss, 0.25, 1e-12);
  EXPECT_EQ(errors[0].choices.within, 0);
  EXPECT_EQ(errors[1].step.count, 0);
  EXPECT_NEAR(errors[1].memory.median, 0.5, 1e-12);
  EXPECT_THAT(published::to_text(errors),
              AllOf(HasSubstr("A one"), HasSubstr("20.0%"), HasSubstr("choice of a layout")));
  EXPECT_EQ(published::to_text(published::errors_of({Row()}, {{}})), "");
}

}  // namespace
}  // namespace caravan::testing::published_test
