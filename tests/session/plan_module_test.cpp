// plan() of modules of one's own.
#include "caravan/session/plan_module.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include "caravan/base/divisors.h"
#include "caravan/base/error.h"
#include "caravan/cost/hardware_costs.h"
#include "caravan/models/model.h"
#include "caravan/optim/optimizer.h"
#include "caravan/plan/predict_rehearsed.h"
#include "caravan/session/plan_search.h"
#include "tests/mesh/refusal.h"
#include "tests/needs.h"

namespace caravan::testing::plan_module_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kFlops = 1e10;
constexpr int64_t kRows = 24, kWidth = 64;

/// Products at a rate, whatever their shape, everything else at once; links of `rate`.
Hardware plain_hosts(int64_t hosts, int64_t per_host, double rate, int64_t memory_bytes = int64_t{1} << 30) {
  Hardware hardware;
  hardware.name = "hosts of a test";
  HardwareDevice device{.name = "device", .memory_bytes = memory_bytes, .memory_bytes_per_second = 1e18};
  device.products = {{.dtype = "fp32", .peak_flops = kFlops, .flops = kFlops, .tile_m = 1, .tile_n = 1, .ramp_k = 0}};
  device.is_processor = true;
  hardware.devices = {device};
  hardware.hosts = {{.count = hosts, .device = "device", .devices = per_host}};
  hardware.levels = {{.name = "host", .devices = per_host, .bytes_per_second = 10 * rate},
                     {.name = "cluster", .devices = hosts * per_host, .bytes_per_second = rate}};
  return hardware;
}

torch::nn::Sequential deep_net() {
  torch::nn::Sequential net;
  for (int i = 0; i < 4; ++i) {
    net->push_back(torch::nn::Linear(kWidth, kWidth));
    net->push_back(torch::nn::Tanh());
  }
  return net;
}

StepData batch_of(int64_t rows = kRows, int64_t width = kWidth) {
  return {at::zeros({rows, width}, at::kMeta), at::zeros({rows, kWidth}, at::kMeta),
          [](const at::Tensor& out, const at::Tensor& y) { return (out - y).square().sum() / kRows; }};
}

MakeOptimizer adamw() {
  return [](FlatState& state) { return std::make_unique<AdamW>(state); };
}

/// The whole rehearsals of a layout, without anything of the search.
std::vector<Rehearsal> rehearsals_of(const Trainable& net, const PlannedModule& one, int per_host) {
  std::vector<Rehearsal> all;
  for (int stage = 0; stage < one.pp; ++stage) {
    all.push_back(rehearse(
        net, {.dp = one.dp, .pp = one.pp, .tp = one.tp, .rank = stage * one.dp * one.tp, .ranks_per_host = per_host},
        one.techniques, batch_of(kRows / one.dp), adamw(), one.options));
  }
  return all;
}

TEST(PlanModule, OneRankTakesTheSumOfItsProducts) {
  torch::nn::Sequential net(torch::nn::Linear(96, 160), torch::nn::Linear(160, kWidth));
  const ModulePlan found = plan(net, batch_of(kRows, 96), {.hardware = plain_hosts(1, 1, 1e9)});
  ASSERT_TRUE(found.fits());
  const PlannedModule& best = found.best.front();
  // y = x w, dw = dy x and, but for the first layer, dx = dy w, each 2 m n k.
  const double flops = 2.0 * kRows * (2 * 96 * 160 + 3 * 160 * kWidth);
  EXPECT_NEAR(best.prediction.seconds, flops / kFlops, 1e-6 * flops / kFlops);
  EXPECT_NEAR(best.prediction.utilisation, 1, 1e-6);
  EXPECT_NEAR(best.prediction.rows_per_second, kRows * kFlops / flops, 1e-3);
  EXPECT_EQ(best.text, "dp 1, 1 x 24 rows");
  EXPECT_THAT(found.to_string(), AllOf(HasSubstr("rows/s"), HasSubstr("25.82 k parameters in 2 units, 24 rows a step"),
                                       HasSubstr("auto model = parallelize(net, session, {});")));
}

TEST(PlanModule, MemoryIsThatOfTheWholeRehearsal) {
  needs({"ddp", "zero1", "1f1b"});
  const torch::nn::Sequential net = deep_net();
  const ModulePlan found =
      plan(net, batch_of(), {.hardware = plain_hosts(2, 2, 1e7), .optimizer = adamw(), .seconds = 60});
  ASSERT_GE(found.best.size(), 3U);
  bool has_many = false;
  for (const PlannedModule& one : found.best) {
    int64_t peak = 0;
    for (const Rehearsal& rank : rehearsals_of(net, one, 2)) peak = std::max(peak, rank.peak.total());
    EXPECT_EQ(one.prediction.memory.total(), peak) << one.text;
    has_many |= one.options.micro_batches > 1;
  }
  EXPECT_TRUE(has_many) << found.to_string();
}

/// Layouts of four ranks by a few techniques: all that there are.
std::vector<PlannedModule> all_layouts() {
  std::vector<PlannedModule> all;
  const auto add = [&](int pp, const std::vector<Technique>& techniques) {
    for (const bool recomputes : {false, true}) {
      for (const int64_t micro_batches : divisors(kRows * pp / 4)) {
        PlannedModule& one = all.emplace_back();
        one.dp = 4 / pp;
        one.pp = pp;
        one.techniques = techniques;
        if (recomputes) one.techniques.emplace_back(recompute());
        one.options.micro_batches = micro_batches;
      }
    }
  };
  const std::vector<Setting> shards{ddp(), zero({.stage = 1}), zero({.stage = 2}), fsdp()};
  for (const Setting& data : shards) {
    add(1, {data});
    for (const char* schedule : {"1f1b", "gpipe"}) add(2, {data, pipeline({.schedule = schedule})});
  }
  for (const char* schedule : {"1f1b", "gpipe"}) add(4, {pipeline({.schedule = schedule})});
  return all;
}

TEST(PlanModule, TheBestIsTheBestOfAll) {
  needs({"ddp", "zero1", "zero2", "zero3", "1f1b", "gpipe", "full"});
  const torch::nn::Sequential net = deep_net();
  std::set<std::string> chosen;
  for (const double rate : {1e6, 1e12}) {
    const Hardware hardware = plain_hosts(2, 2, rate);
    const HardwareCosts costs(hardware);
    const auto seconds_of = [&](const PlannedModule& one) {
      return predict_rehearsed(rehearsals_of(net, one, 2), costs).seconds;
    };
    double least = std::numeric_limits<double>::max();
    for (const PlannedModule& one : all_layouts()) least = std::min(least, seconds_of(one));
    const ModulePlan found = plan(net, batch_of(), {.hardware = hardware, .optimizer = adamw(), .seconds = 120});
    EXPECT_TRUE(found.is_complete);
    const PlannedModule& best = found.best.front();
    EXPECT_LE(best.prediction.seconds, 1.01 * least) << rate << "\n" << found.to_string();
    EXPECT_NEAR(seconds_of(best) / best.prediction.seconds, 1, 1e-9);
    chosen.insert(best.text);
  }
  EXPECT_EQ(chosen.size(), 2U) << "the link decides";
}

TEST(PlanModule, WhatDoesNotFitSaysByHowMuch) {
  const torch::nn::Sequential net = deep_net();
  const ModulePlan found = plan(net, batch_of(), {.hardware = plain_hosts(1, 2, 1e9, 10'000)});
  EXPECT_FALSE(found.fits());
  EXPECT_THAT(found.to_string(), AllOf(HasSubstr("fits 2 ranks: the least needs"), HasSubstr("9.8 KiB of a device")));
}

TEST(PlanModule, WhatIsFixedIsInAllLayouts) {
  needs({"zero1"});
  const torch::nn::Linear layer(kWidth, kWidth);
  const Trainable net = in_units(layer, {unit("layer", {layer.ptr()}, [own = layer.ptr()](const at::Tensor& x) {
                                   return own->forward(x.to(own->weight.scalar_type()));
                                 })});
  const ModulePlan found = plan(net, batch_of(),
                                {.hardware = preset_hardware({.device = "rtx-4090", .per_host = 2}),
                                 .fixed = {zero({.stage = 1}), mixed_precision()},
                                 .most_rows = 4});
  EXPECT_THAT(found.to_string(), HasSubstr("bf16"));
  for (const PlannedModule& one : found.best) {
    EXPECT_THAT(one.to_code(), AllOf(HasSubstr("zero({.stage = 1})"), HasSubstr("mixed_precision()")));
  }
}

TEST(PlanModule, AnOptimizerOfWholeParametersSplitsNoLayer) {
  needs({"ddp", "zero3"});
  const auto make = [](std::vector<at::Tensor> whole) { return std::make_unique<torch::optim::AdamW>(whole); };
  const torch::nn::Sequential net(torch::nn::Linear(kWidth, kWidth), torch::nn::Linear(kWidth, kWidth));
  for (const bool is_whole : {false, true}) {
    const ModulePlan found = plan(net, batch_of(),
                                  {.hardware = plain_hosts(1, 2, 1e9),
                                   .optimizer = is_whole ? MakeOptimizer::of_whole(make) : MakeOptimizer(make),
                                   .most_rows = 100});
    EXPECT_EQ(std::ranges::any_of(found.best, [](const PlannedModule& one) { return one.tp > 1; }), !is_whole);
  }
}

TEST(PlanModule, RowsThatLeaveOutLayoutsAreNamed) {
  needs({"1f1b"});
  const ModulePlan found =
      plan(deep_net(), batch_of(7), {.hardware = plain_hosts(1, 2, 1e9), .splits_layers = false, .most_rows = 1});
  EXPECT_EQ(found.best.front().pp, 2);
  EXPECT_THAT(found.to_string(), HasSubstr("- 7 rows cannot be dealt evenly to 2 ranks: layouts of 2 stages alone"));
}

TEST(PlanModule, LeavesTheNetAsItWas) {
  const torch::nn::Sequential net = deep_net();
  std::vector<void*> places;
  std::vector<at::Tensor> values;
  for (const at::Tensor& parameter : net->parameters()) {
    places.push_back(parameter.data_ptr());
    values.push_back(parameter.detach().clone());
  }
  plan(net, batch_of(), {.hardware = plain_hosts(1, 2, 1e9), .most_rows = 2});
  for (size_t i = 0; i < places.size(); ++i) {
    EXPECT_EQ(net->parameters()[i].data_ptr(), places[i]);
    EXPECT_TRUE(at::equal(net->parameters()[i], values[i]));
    EXPECT_TRUE(net->parameters()[i].requires_grad());
  }
}

/// What a search estimates from a few of many equal units, against the rehearsal of all.
TEST(PlanModule, FewUnitsTellOfAll) {
  needs({"ddp", "zero3", "1f1b", "full"});
  auto net = shapes_only([] {
    torch::nn::Sequential made(torch::nn::Linear(kWidth, 512));
    for (int i = 0; i < 24; ++i) made->push_back(torch::nn::Linear(512, 512));
    made->push_back(torch::nn::Linear(512, kWidth));
    return made;
  });
  const Hardware hardware = plain_hosts(2, 4, 1e7);
  const Mesh alone = Mesh::create(make_record_world(0, 1), {{"dp", 1}});
  const Trainable trained = net;
  const KeptTensors kept(*net);
  const StepData sample = batch_of(64);
  const Rehearsal one = rehearse(trained, {}, {}, sample);
  const UnitRepeats repeats = find_repeats(TrainableParts::units(trained, alone), one.timeline);
  EXPECT_EQ(repeats.period, 1U);
  EXPECT_GE(repeats.count, 22U) << "the first and the last of the equal ones may have others' kernels";
  const LayoutSpace space({.ranks = 8, .rows = 64, .num_units = 26});
  const MakeOptimizer optimizer = adamw();
  const ParallelOptions options;
  const PlannedStep step{trained, sample, optimizer, options, hardware, {.rows = 64, .dtype = "fp32"}, repeats};
  const LayoutPredictor predictor(step, space, kept);
  for (const int pp : {1, 2, 4}) {
    for (const Setting& data : {Setting(ddp()), Setting(fsdp())}) {
      for (const bool recomputes : {false, true}) {
        StepLayout layout{.dp = 8 / pp, .pp = pp, .micro_batches = pp == 1 ? 8 : 8 * pp};
        layout.micro_batches = std::min<int64_t>(layout.micro_batches, 64 / layout.dp);
        layout.data_parallel = data;
        if (recomputes) layout.recompute = recompute();
        SCOPED_TRACE(space.text(layout));
        const Prediction few = predictor.estimate(layout), all = predictor.predict(layout);
        EXPECT_NEAR(few.seconds / all.seconds, 1, 0.01);
        EXPECT_NEAR(few.computes / all.computes, 1, 1e-3);
        EXPECT_NEAR(static_cast<double>(few.memory.total()) / static_cast<double>(all.memory.total()), 1, 0.02);
      }
    }
  }
}

/// 26 G parameters in 104 GB.
TEST(PlanModule, ANetLargerThanThisMachineHasShapesOnly) {
  static constexpr int64_t kWide = 1 << 16;
  const auto net = shapes_only([] {
    torch::nn::Sequential made;
    for (int i = 0; i < 6; ++i) made->push_back(torch::nn::Linear(kWide, kWide));
    made->push_back(torch::nn::BatchNorm1d(kWide));
    made->push_back(torch::nn::Linear(kWide, kWidth));
    return made;
  });
  EXPECT_TRUE(net->parameters().front().is_meta());
  const Hardware cards = preset_hardware({.device = "h100-80", .per_host = 8});
  const ModulePlan found = plan(net, batch_of(kRows, kWide), {.hardware = cards, .seconds = 1, .most_rows = 1});
  EXPECT_THAT(found.to_string(), HasSubstr("25.77 B parameters in 8 units"));
  EXPECT_FALSE(at::zeros({2}).is_meta()) << "the scope is over";
}

TEST(PlanModule, WhatCannotBePlannedIsSaid) {
  const torch::nn::Sequential net = deep_net();
  const PlanOptions options{.hardware = plain_hosts(1, 2, 1e9)};
  const auto with_loss = [](const ParallelModel::Loss& loss) {
    StepData data = batch_of();
    data.loss = loss;
    return data;
  };
  const auto refused = [&](const StepData& data, const PlanOptions& of) {
    return refusal<UsageError>([&] { plan(net, data, of); });
  };
  EXPECT_THAT(
      refused(with_loss([](const at::Tensor& out, const at::Tensor&) { return out.index({out > 0}).sum(); }), options),
      AllOf(HasSubstr("aten::nonzero"), HasSubstr("without values")));
  EXPECT_THAT(refused(with_loss([](const at::Tensor& out, const at::Tensor&) {
                        return out.sum() * out.detach().max().item<double>();
                      }),
                      options),
              HasSubstr("without values"));
  EXPECT_THAT(refused(with_loss([](const at::Tensor& out, const at::Tensor&) { return out; }), options),
              HasSubstr("return one number"));
  EXPECT_THAT(refused(with_loss({}), options), HasSubstr("loss: is no function"));
  EXPECT_THAT(refusal<UsageError>([&] {
                plan(torch::nn::Linear(kWidth, kWidth), batch_of(7),
                     {.hardware = options.hardware, .splits_layers = false});
              }),
              AllOf(HasSubstr("7 rows cannot be dealt evenly to 2 ranks"), HasSubstr("6 or 8")));
  EXPECT_THAT(refused(batch_of(), {}), AllOf(HasSubstr("hardware: is not given"), HasSubstr("rtx-4090")));
  EXPECT_THAT(refused(batch_of(), {.hardware = options.hardware, .ranks = 3}), HasSubstr("3 do not fit 2 devices"));
  EXPECT_THAT(refused(batch_of(), {.hardware = options.hardware, .fixed = {ddp(), fsdp()}}),
              HasSubstr("data_parallel: is fixed twice"));
  EXPECT_THAT(refused(batch_of(), {.hardware = options.hardware, .seconds = 0}), HasSubstr("seconds"));
  ModelConfig config;
  config.vocabulary = 16;
  Model model(config);
  EXPECT_THAT(refusal<UsageError>([&] { plan(model, batch_of(), options); }), HasSubstr("caravan plan"));
}

TEST(PlanModule, CodeIsWhatMakesTheTechnique) {
  needs({"ddp", "zero2", "zero3", "hsdp", "1f1b", "full", "powersgd"});
  EXPECT_EQ(to_code(ddp()), "ddp()");
  EXPECT_EQ(to_code(zero({.stage = 2})), "zero({.stage = 2})");
  EXPECT_EQ(to_code(fsdp({.units = {"a.*", "b"}, .reshard_after_forward = false})),
            "fsdp({.units = {\"a.*\", \"b\"}, .reshard_after_forward = false})");
  EXPECT_EQ(to_code(fsdp({.shard = 2})), "fsdp({.shard = 2})");
  EXPECT_EQ(to_code(pipeline()), "pipeline({.schedule = \"1f1b\"})");
  EXPECT_EQ(to_code(recompute()), "recompute()");
  EXPECT_EQ(to_code(recompute({.modules = {"blocks.*"}})), "recompute({.modules = {\"blocks.*\"}})");
  EXPECT_EQ(to_code(offload({.gradients = "host", .optimizer = "host"})),
            "offload({.gradients = \"host\", .optimizer = \"host\"})");
  EXPECT_EQ(to_code(mixed_precision()), "mixed_precision()");
  EXPECT_EQ(to_code(Setting("data_parallel", "zero3", {{"accumulate", std::string("full")}})),
            "Setting(\"data_parallel\", \"zero3\", {{\"accumulate\", \"full\"}})");
  EXPECT_EQ(to_code(Setting("hook", "powersgd", {{"hook_rank", 2}})),
            "Setting(\"hook\", \"powersgd\", {{\"hook_rank\", 2}})");
  PlannedModule one{.dp = 2, .pp = 2, .techniques = {pipeline({.schedule = "1f1b"}), fsdp()}};
  one.options = {.micro_batches = 8, .average = true};
  EXPECT_EQ(one.to_code(),
            "Session session({.pp = 2});\n"
            "auto model = parallelize(net, session, {pipeline({.schedule = \"1f1b\"}), fsdp()}, "
            "{.micro_batches = 8, .average = true});");
}

}  // namespace
}  // namespace caravan::testing::plan_module_test
