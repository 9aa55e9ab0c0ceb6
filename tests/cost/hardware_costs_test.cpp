// The time of kernels and calls against values computed by hand, and against measured all-reduces.
#include "caravan/cost/hardware_costs.h"

#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/base/error.h"

namespace caravan::testing::hardware_costs_test {
namespace {

KernelWork product(const char* dtype, int64_t m, int64_t n, int64_t k, int64_t batch = 1) {
  return {.kind = KernelWork::Kind::product, .what = "mm", .dtype = dtype, .batch = batch, .m = m, .n = n, .k = k};
}

std::vector<int> first_ranks(int count) {
  std::vector<int> ranks(static_cast<size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// Four cores, as `doctor` may measure them.
Hardware cores() {
  return {.name = "cores",
          .source = "here",
          .devices = {{.name = "core",
                       .units = 4,
                       .products = {{.dtype = "fp32", .flops = 4e11, .tile_m = 64, .tile_n = 32, .ramp_k = 10}},
                       .attention_fraction = 0.25,
                       .memory_bytes = int64_t{1} << 34,
                       .memory_bytes_per_second = 1e10,
                       .launch_seconds = 3e-6,
                       .is_processor = true}},
          .hosts = {{.count = 1, .device = "core", .devices = 4}},
          .levels = {{.name = "host", .devices = 4, .bytes_per_second = 2e9, .latency_seconds = 1e-6}}};
}

class A100Costs : public ::testing::Test {
 protected:
  static Hardware hosts(int64_t count) { return preset_hardware({.device = "a100-80", .per_host = 8, .hosts = count}); }
  HardwareCosts costs_{hosts(1)};
  const HardwareDevice& device_ = costs_.hardware().devices.front();
  double rate_ = device_.product("bf16")->flops;
  double launch_ = device_.launch_seconds;
};

TEST(ProcessorCosts, ProductsRunInWavesOfTheMeasuredTile) {
  const HardwareCosts costs(cores());
  // 2 x 3 tiles on 4 units: two waves.
  EXPECT_NEAR(costs.seconds(product("fp32", 100, 70, 50000), 0), 2 * 2.0 * 64 * 32 * 50010 / 1e11 + 3e-6, 1e-12);
  // Three in a batch: 18 tiles, five waves; no penalty for odd sizes.
  EXPECT_NEAR(costs.seconds(product("fp32", 100, 70, 50000, 3), 0), 5 * 2.0 * 64 * 32 * 50010 / 1e11 + 3e-6, 1e-12);
  // Bound by memory: 4 bytes of (1 x 4096 + 4096 x 4096 + 1 x 4096).
  EXPECT_NEAR(costs.seconds(product("fp32", 1, 4096, 4096), 0), 4 * (4096.0 * 4096 + 2 * 4096) / 1e10 + 3e-6, 1e-12);
  EXPECT_NEAR(costs.seconds({.bytes = 1'000'000}, 0), 1e-4 + 3e-6, 1e-12);
  const KernelWork attention{
      .kind = KernelWork::Kind::attention, .dtype = "fp32", .batch = 2, .m = 64, .n = 128, .k = 32, .products = 2};
  EXPECT_NEAR(costs.seconds(attention, 3), 2 * 2 * 2.0 * 64 * 128 * 32 / 1e11 + 3e-6, 1e-12);
}

TEST(ProcessorCosts, OperandsAndRowsOfAttentionTakeWhatWasMeasured) {
  Hardware hardware = cores();
  ProductRate& rate = hardware.devices[0].products[0];
  rate.operand_bytes_per_second = 5e9;
  rate.attention = {.flops = 1e11, .row_seconds = 2e-7};
  rate.attention_backward = {.flops = 2e11, .row_seconds = 1e-6};
  const HardwareCosts costs(hardware);
  const double computes = 2 * 2.0 * 64 * 32 * 50010 / 1e11, bytes = 4.0 * (100 + 70) * 50000 + 4 * 100 * 70;
  EXPECT_NEAR(costs.seconds(product("fp32", 100, 70, 50000), 0), computes + bytes / 5e9 + 3e-6, 1e-12);
  KernelWork attention{
      .kind = KernelWork::Kind::attention, .dtype = "fp32", .batch = 2, .m = 64, .n = 128, .k = 32, .products = 2};
  const double product_flops = 2 * 2.0 * 64 * 128 * 32;
  EXPECT_NEAR(costs.seconds(attention, 3), 2 * product_flops / 1e11 + 128 * 2e-7 + 3e-6, 1e-12);
  attention.products = 5;
  EXPECT_NEAR(costs.seconds(attention, 3), 5 * product_flops / 2e11 + 128 * 1e-6 + 3e-6, 1e-12);
}

TEST(ProcessorCosts, CollectivesTakeTheTimeOfTheCores) {
  const HardwareCosts costs(cores());
  const std::vector<int> all = first_ranks(4);
  // 3/4 of 8 MB twice, and 6 messages.
  const auto time = costs.seconds({.axis = "world", .verb = Verb::all_reduce, .sent_bytes = 12e6}, all);
  EXPECT_NEAR(time.seconds, 12e6 / 2e9 + 6e-6, 1e-9);
  EXPECT_EQ(time.of_device, time.seconds);
  const auto message = costs.seconds({.axis = "pp", .verb = Verb::send, .sent_bytes = 1e6, .peer = 1}, first_ranks(2));
  EXPECT_NEAR(message.seconds, 1e6 / 2e9 + 1e-6, 1e-9);
  EXPECT_EQ(costs.seconds({.axis = "dp", .verb = Verb::all_reduce}, first_ranks(1)).seconds, 0);
  // All ranks of a stage send outwards at once.
  Hardware narrow = cores();
  narrow.levels[0].oversubscription = 4;
  const auto shared =
      HardwareCosts(narrow).seconds({.axis = "pp", .verb = Verb::send, .sent_bytes = 1e6, .peer = 1}, first_ranks(2));
  EXPECT_NEAR(shared.seconds, 4 * 1e6 / 2e9 + 1e-6, 1e-9);
}

TEST_F(A100Costs, SmallProductsChooseATile) {
  // 256 x 256 x 256: 16 tiles of 64 x 64 at 0.6 of the rate of a unit are faster than 2 of 256 x 128.
  const double unit = rate_ * 0.945 / 108;
  const auto by_tile = [&](double m, double n, double share) { return 2 * m * n * (256 + 160) / (unit * share); };
  EXPECT_NEAR(costs_.seconds(product("bf16", 256, 256, 256), 0), by_tile(64, 64, 0.6) + launch_, 1e-12);
  EXPECT_LT(by_tile(64, 64, 0.6), std::min({by_tile(256, 128, 1), by_tile(128, 128, 0.95), by_tile(128, 64, 0.8)}));
}

TEST_F(A100Costs, ATileBeginsAndEndsInTheSameTimeInEachDtype) {
  const auto begins = [&](const char* dtype) {
    const ProductRate& rate = *device_.product(dtype);
    return static_cast<double>(rate.ramp_k) / rate.flops;
  };
  EXPECT_NEAR(begins("fp32") / begins("bf16"), 1, 0.01);
  EXPECT_NEAR(begins("tf32") / begins("bf16"), 1, 0.01);
}

TEST_F(A100Costs, LargeProductsAreBoundByPower) {
  const double flops = 2.0 * 32768 * 32768 * 8192;
  EXPECT_NEAR(costs_.seconds(product("bf16", 32768, 32768, 8192), 0), flops / (rate_ * 0.849) + launch_, 1e-9);
  EXPECT_NEAR(costs_.seconds(product("bf16", 32768, 32768, 8192), 0) / (flops / 312e12), 312 / 271.2 / 0.849, 1e-3);
}

TEST_F(A100Costs, OddSizesAndBatchesAreSlow) {
  const auto seconds = [&](const KernelWork& work) { return costs_.seconds(work, 0) - launch_; };
  const auto head = [](const char* dtype, bool is_unaligned) {
    KernelWork work = product(dtype, 8192, 50257, 2048);
    work.is_unaligned = is_unaligned;
    return work;
  };
  EXPECT_NEAR(seconds(head("fp16", true)) / seconds(head("fp16", false)), 1 / 0.34, 1e-9);
  EXPECT_EQ(seconds(head("fp32", true)), seconds(head("fp32", false)));
  EXPECT_NEAR(seconds(product("fp16", 1024, 1024, 1024, 216)) / seconds(product("fp16", 8 * 1024, 27 * 1024, 1024)),
              1 / 0.66, 0.05);
}

TEST_F(A100Costs, SomeKernelsMoveTheirBytesSlowly) {
  const auto seconds = [&](const char* what) {
    return costs_.seconds(KernelWork{.what = what, .bytes = int64_t{1} << 30}, 0) - launch_;
  };
  EXPECT_NEAR(seconds("add") / seconds("native_layer_norm_backward"), 0.69, 1e-9);
  EXPECT_NEAR(seconds("add") / seconds("_softmax"), 0.44, 1e-9);
  const HardwareCosts processor(cores());
  EXPECT_EQ(processor.seconds(KernelWork{.what = "_softmax", .bytes = 1'000'000}, 0),
            processor.seconds(KernelWork{.what = "add", .bytes = 1'000'000}, 0));
}

/// Products of a vocabulary of 50257, and kernels that move bytes, as they were measured on an H100 with torch.
TEST(H100Costs, AreNearMeasuredKernels) {
  const HardwareCosts costs(preset_hardware({.device = "h100-80", .per_host = 1, .hosts = 1}));
  KernelWork head = product("bf16", 2048, 50257, 2048);
  head.is_unaligned = true;
  EXPECT_NEAR(costs.seconds(head, 0) / 4.0298e-3, 1, 0.02);
  EXPECT_NEAR(costs.seconds(product("bf16", 2049, 4096, 4096), 0) / 93.1e-6, 1.3, 0.1) << "in a long run, not alone";
  EXPECT_NEAR(costs.seconds(KernelWork{.what = "native_layer_norm", .bytes = 4 * 268435456L}, 0) / 529.1e-6, 1, 0.02);
  EXPECT_NEAR(costs.seconds(KernelWork{.what = "_softmax", .bytes = 4 * 268435456L}, 0) / 844.3e-6, 1, 0.02);
  const KernelWork attention{.kind = KernelWork::Kind::attention,
                             .dtype = "bf16",
                             .batch = 64,
                             .m = 4096,
                             .n = 4096,
                             .k = 128,
                             .products = 2,
                             .is_causal = true};
  // The device keeps 0.825 of its rate in a long run.
  EXPECT_NEAR(0.825 * costs.seconds(attention, 0) / 475.1e-6, 1, 0.05);
  KernelWork backward = attention;
  backward.products = 5;
  EXPECT_NEAR(0.825 * costs.seconds(backward, 0) / 1594.7e-6, 1, 0.12);
}

TEST_F(A100Costs, ThinProductsMoveTheirBytes) {
  const double bytes = 2 * (8192.0 * 8192 + 8 * 8192 + 8 * 8192);
  EXPECT_NEAR(costs_.seconds(product("bf16", 8, 8192, 8192), 0), bytes / (0.865 * 2039e9) + launch_, 1e-9);
  EXPECT_NEAR(costs_.seconds({.bytes = int64_t{1} << 30}, 0), 1073741824 / (0.865 * 2039e9) + launch_, 1e-9);
}

TEST_F(A100Costs, AttentionHasARateOfItsOwn) {
  // 32 heads of 4096 tokens, half of the scores: 4 b s^2 h / 2, and 2.5 times as much backward.
  const KernelWork forward{.kind = KernelWork::Kind::attention,
                           .dtype = "bf16",
                           .batch = 32,
                           .m = 4096,
                           .n = 4096,
                           .k = 128,
                           .products = 2,
                           .is_causal = true};
  KernelWork backward = forward;
  backward.products = 5;
  const double flops = 4.0 * 32 * 4096 * 4096 * 128 / 2;
  const double reached = rate_ * 0.849 * 4096 / (4096 + 512);
  EXPECT_NEAR(costs_.seconds(forward, 0), flops / (0.7 * reached) + 3 * launch_, 1e-9) << "of the preset";
  const HardwareCosts own(hosts(1), {.forward = 0.5, .backward = 0.4});
  EXPECT_NEAR(own.seconds(forward, 0), flops / (0.5 * reached) + 3 * launch_, 1e-9);
  EXPECT_NEAR(own.seconds(backward, 0), 2.5 * flops / (0.4 * reached) + 3 * launch_, 1e-9);
}

TEST_F(A100Costs, ADtypeWithoutUnitsUsesOthers) {
  EXPECT_EQ(HardwareCosts::rate_of(device_, "fp8").dtype, "bf16");
  EXPECT_EQ(HardwareCosts::rate_of(*preset_device("v100-32"), "bf16").dtype, "fp16");
  EXPECT_EQ(HardwareCosts::rate_of(*preset_device("v100-32"), "tf32").dtype, "fp32");
  EXPECT_EQ(HardwareCosts::rate_of(*preset_device("tpu-v4"), "fp16").dtype, "bf16");
  EXPECT_THROW(HardwareCosts::rate_of({.name = "none"}, "fp16"), UsageError);
  EXPECT_THROW(HardwareCosts(Hardware{}), UsageError);
}

TEST_F(A100Costs, RingsShareTheLinksOfTheirHost) {
  const HardwareCosts two(hosts(2));
  const LinkLevel& network = two.hardware().levels.back();
  // 16 ranks: what crosses hosts goes over the 8 network cards of each; one rank of each host has one.
  const double sent = 2 * 15.0 / 16 * 1e9;
  const double ramp = 1 + 0.5 * 40e6 / (1e9 + 40e6);
  const double rate = network.bytes_per_second * 0.95 / 1.03;
  EXPECT_NEAR(two.collective_seconds(Verb::all_reduce, sent, two.group_of(first_ranks(16))),
              sent / (8 * rate) * ramp + 60e-6 + 6e-6, 1e-9);
  const double sent_by_two = 1e9;
  EXPECT_NEAR(two.collective_seconds(Verb::all_reduce, sent_by_two, two.group_of(2, 8)),
              sent_by_two / rate * ramp + 60e-6 + 6e-6, 1e-9);
  EXPECT_EQ(two.group_of(2, 8).in_domain, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(two.group_of(first_ranks(16)).in_domain, two.group_of(16, 1).in_domain);
  EXPECT_EQ(two.group_of(4, 4).in_domain, (std::vector<int64_t>{2, 4}));
  // A reduce-scatter and an all-gather are an all-reduce.
  const auto of = [&](Verb verb) {
    return costs_.collective_seconds(verb, ring_bytes(verb, 1e9, 8), costs_.group_of(8, 1));
  };
  EXPECT_NEAR((of(Verb::all_gather) + of(Verb::reduce_scatter)) / of(Verb::all_reduce), 1, 0.01);
  EXPECT_NEAR(of(Verb::all_to_all) / of(Verb::all_gather), 1.0 / 8, 0.02);
}

TEST_F(A100Costs, CallsOfAStepWaitForTheLastRank) {
  const StepTimeline::Call call{.axis = "tp", .verb = Verb::all_gather, .what = "", .sent_bytes = 1e6};
  const auto time = costs_.seconds(call, first_ranks(8));
  EXPECT_NEAR(time.seconds - costs_.collective_seconds(Verb::all_gather, 1e6, costs_.group_of(8, 1)), 3 * 8e-6, 1e-12);
  EXPECT_EQ(time.of_device, 0);
  const HardwareCosts two(hosts(2));
  const auto message = [&](std::vector<int> ranks) {
    return two.seconds({.axis = "pp", .verb = Verb::send, .sent_bytes = 1e8, .peer = 1}, ranks).seconds;
  };
  EXPECT_NEAR(message({0, 7}), 1e8 / (300e9 * 0.72) + 15e-6, 1e-9);
  EXPECT_NEAR(message({7, 8}), 1e8 / (25e9 * 0.95) + 15e-6, 1e-9);
}

TEST(Straggling, GrowsWithTheHostsThatAreUsed) {
  const HardwareCosts many(preset_hardware({.device = "a100-80", .per_host = 8, .hosts = 16}));
  EXPECT_EQ(many.straggling(8), 0);
  EXPECT_NEAR(many.straggling(9), 0.004, 1e-12);
  EXPECT_NEAR(many.straggling(128), 4 * 0.004, 1e-12);
  EXPECT_EQ(HardwareCosts(cores()).straggling(4), 0);
}

TEST(Contention, CallsLoadTheLevelsThatTheyUse) {
  const HardwareCosts two(preset_hardware({.device = "a100-80", .per_host = 8, .hosts = 2}));
  const auto loads = [&](Verb verb, const std::vector<int>& ranks, double bytes) {
    return two.seconds({.axis = "x", .verb = verb, .sent_bytes = bytes, .peer = 1}, ranks).loads;
  };
  const std::vector<double> inside = loads(Verb::all_reduce, first_ranks(8), 1e9);
  ASSERT_EQ(inside.size(), 1U);
  EXPECT_NEAR(inside[0], 1, 0.05) << "but for the time of a call";
  EXPECT_LT(loads(Verb::all_reduce, first_ranks(8), 1e4)[0], 0.01) << "of small ones that is all";
  const std::vector<double> across = loads(Verb::all_reduce, {0, 8}, 1e9);
  ASSERT_EQ(across.size(), 2U);
  EXPECT_EQ(across[0], 0);
  EXPECT_NEAR(across[1], 1, 0.05);
  // Eight neighbours carry a ring to the other host: 8 x 25 GB/s, beside 216 GB/s inside.
  const std::vector<double> whole = loads(Verb::all_reduce, first_ranks(16), 1e9);
  ASSERT_EQ(whole.size(), 2U);
  EXPECT_NEAR(whole[0] / whole[1], 8 * 25 * 0.95 / 1.03 / (300 * 0.72) / 1.035, 2e-3) << "1.035: the ramp of 533 MB";
  EXPECT_NEAR(loads(Verb::send, {7, 8}, 1e9)[1], 1, 0.05);
  EXPECT_TRUE(
      HardwareCosts(cores()).seconds({.verb = Verb::all_reduce, .sent_bytes = 1e9}, first_ranks(4)).loads.empty());
}

/// The ranks of a host that send at once, in one group or in several, share what it has to other hosts.
TEST(Contention, GroupsOfAnAxisShareTheirHostAlready) {
  const HardwareCosts four(preset_hardware({.device = "a100-80", .per_host = 8, .hosts = 4}));
  const double of_rank = 1e9;
  const auto busy = [&](int64_t size, int64_t stride) {
    std::vector<double> of_level;
    four.collective_seconds(Verb::all_gather, of_rank * static_cast<double>(size - 1), four.group_of(size, stride),
                            &of_level);
    return of_level.back();
  };
  // Each of 8 groups sends 3 parts from each host; one group of all sends 31, over 8 network cards.
  EXPECT_NEAR(busy(4, 8) / 3, 8 * busy(32, 1) / 31, 0.02 * busy(4, 8) / 3);
  EXPECT_NEAR(busy(8, 4) / 7, 4 * busy(32, 1) / 31, 0.02 * busy(8, 4) / 7) << "4 groups of 2 in each host";
}

/// A product, an all-reduce behind another one.
TEST(SimulatedCosts, ProcessorsPayForTheirCallsAndAcceleratorsHideThem) {
  TimelineBuilder builder;
  builder.begin_event("step");
  builder.add(product("fp32", 512, 512, 65536));
  const int32_t call = builder.begin({.axis = "dp", .verb = Verb::all_reduce, .what = "gradient", .sent_bytes = 1e6});
  builder.add(product("fp32", 512, 512, 65536));
  builder.end(call);
  const StepTimeline timeline = builder.take();
  const std::vector<int> pair{0, 1};
  const std::map<std::string, std::vector<int>> axes{{"dp", pair}};
  const auto seconds = [&](const HardwareCosts& costs) {
    const std::vector<RankTimeline> ranks{{0, &timeline, &axes}, {1, &timeline, &axes}};
    return simulate(ranks, costs).seconds;
  };
  const HardwareCosts processor(cores());
  const HardwareCosts accelerator(preset_hardware({.device = "a100-80", .per_host = 8, .hosts = 1}));
  const double slow = processor.seconds(timeline.kernels[0], 0), fast = accelerator.seconds(timeline.kernels[0], 0);
  const double call_seconds = accelerator.seconds(timeline.calls[0], pair).seconds;
  EXPECT_NEAR(seconds(processor), 2 * slow + processor.seconds(timeline.calls[0], pair).seconds, 1e-9);
  EXPECT_LT(call_seconds, fast);
  // The launch of the first product, and what the call takes of the second.
  EXPECT_NEAR(seconds(accelerator), 20e-6 + 2 * fast + (1 - 1 / 1.1) * call_seconds, 1e-9);
}

TEST(RingBytes, AreThoseOfTraffic) {
  EXPECT_EQ(ring_bytes(Verb::all_reduce, 800, 8), 1400);
  EXPECT_EQ(ring_bytes(Verb::all_gather, 800, 8), 700);
  EXPECT_EQ(ring_bytes(Verb::reduce_scatter, 800, 8), 700);
  EXPECT_EQ(ring_bytes(Verb::all_to_all, 800, 8), 87.5);
  EXPECT_EQ(ring_bytes(Verb::broadcast, 800, 8), 800);
  EXPECT_EQ(ring_bytes(Verb::all_reduce, 800, 1), 0);
}

/// All-reduces of nccl-tests: table of vTrain (arXiv 2312.12391) for A100 and V100, documents of NVIDIA and AWS for
/// H100 and B200. Small ones depend on the algorithm and protocol that NCCL chooses.
struct Measured {
  const char* device;
  int hosts, ranks;
  int64_t mib;
  double us, tolerance;
};
class MeasuredAllReduce : public ::testing::TestWithParam<Measured> {};

TEST_P(MeasuredAllReduce, IsNear) {
  const Measured& row = GetParam();
  const HardwareCosts costs(preset_hardware({.device = row.device, .per_host = 8, .hosts = row.hosts}));
  const double sent = ring_bytes(Verb::all_reduce, static_cast<double>(row.mib << 20), row.ranks);
  const double us = 1e6 * costs.collective_seconds(Verb::all_reduce, sent, costs.group_of(first_ranks(row.ranks)));
  EXPECT_NEAR(us / row.us, 1, row.tolerance);
}

INSTANTIATE_TEST_SUITE_P(
    Table, MeasuredAllReduce,
    ::testing::Values(Measured{"a100-80", 1, 8, 1, 92.79, 0.2}, Measured{"a100-80", 1, 8, 64, 579.9, 0.1},
                      Measured{"a100-80", 1, 8, 1024, 8193, 0.1}, Measured{"a100-80", 1, 4, 64, 543.8, 0.1},
                      Measured{"a100-80", 1, 4, 1024, 7259.4, 0.1}, Measured{"a100-80", 1, 2, 1024, 5442.8, 0.1},
                      Measured{"v100-32", 1, 2, 1024, 47610, 0.1}, Measured{"v100-32", 1, 4, 1024, 18869, 0.1},
                      Measured{"v100-32", 1, 8, 1, 79.93, 0.2}, Measured{"v100-32", 1, 8, 1024, 13969, 0.1},
                      Measured{"h100-80", 1, 8, 1, 27.37, 0.1}, Measured{"h100-80", 1, 8, 64, 324.7, 0.1},
                      Measured{"h100-80", 1, 8, 1024, 4029.4, 0.1}, Measured{"b200", 1, 8, 1, 50.89, 0.2},
                      Measured{"b200", 1, 8, 1024, 2597.74, 0.1}, Measured{"b200", 4, 32, 1024, 5747.05, 0.1}));

}  // namespace
}  // namespace caravan::testing::hardware_costs_test
