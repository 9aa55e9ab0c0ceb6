/// What sharding promises in addition to correct gradients (tests/prove): the same bits as ddp, bytes as the formulas
/// say, and errors for what is impossible.

#include "caravan/techniques/data/zero.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/record.h"
#include "caravan/optim/grad_norm.h"
#include "caravan/optim/optimizer.h"
#include "caravan/redistribute/redistribute.h"
#include "caravan/step/train_step.h"
#include "caravan/techniques/make_strategy.h"
#include "tests/cost/formulas/state.h"
#include "tests/engine/parameters.h"
#include "tests/mesh/refusal.h"
#include "tests/redistribute/denote.h"
#include "tests/techniques/together/one_process.h"
#include "tests/techniques/together/steps.h"
#include "tests/techniques/together/technique.h"

namespace caravan::testing::zero_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Strategy strategy_of(const Setting& choice, Model& model, Mesh& mesh, at::ScalarType compute = at::kFloat) {
  return make_strategy({.data_parallel = choice, .compute_dtype = compute}, model, mesh);
}

// ---- the same bits ----

struct Trained {
  Named first_gradients;
  Named values;
};

/// 20 steps of AdamW, in fp32; `clip` 0: without clipping.
Trained trained(const Setting& choice, int num_ranks, int num_micro_batches, at::ScalarType compute, double clip) {
  const Problem problem(Architecture::gpt2());
  Trained result;
  on_mesh({{"dp", num_ranks}}, [&](const Mesh& world) {
    Mesh mesh = world;
    Model model(problem.config);
    const Strategy strategy = strategy_of(choice, model, mesh, compute);
    Engine engine(model, mesh, strategy, {.seed = 5});
    AdamW optimizer(engine.state());
    for (int step = 0; step < 20; ++step) {
      run_passes(engine, model, problem, step, num_micro_batches);
      const at::NoGradGuard no_grad;
      for (const Parameter* parameter : model.parameters()) {
        if (step != 0) continue;
        const at::Tensor all = whole_of(parameter->sharded().grad(), *parameter, mesh);
        if (mesh.rank() == 0) result.first_gradients[parameter->name()] = all;
      }
      optimizer.step(0.01, clip_scale(clip > 0 ? grad_norm(engine.state(), mesh) : 0, clip));
    }
    const at::NoGradGuard no_grad;
    for (const Parameter* parameter : model.parameters()) {
      const at::Tensor all = whole_of(parameter->sharded().detach(), *parameter, mesh);
      if (mesh.rank() == 0) result.values[parameter->name()] = all;
    }
  });
  return result;
}

void expect_same(const Named& got, const Named& want) {
  for (const auto& [name, tensor] : want) EXPECT_TRUE(at::equal(got.at(name), tensor)) << name;
}

class SameBits : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Ranks, SameBits, ::testing::Values(1, 2, 3, 4));

TEST_P(SameBits, MatchDdp) {
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
    for (const int micros : {1, 3}) {
      const double clip = micros == 3 ? 0.05 : 0;
      const Trained want = trained(technique_of("ddp"), GetParam(), micros, compute, clip);
      const auto expect = [&](const Setting& given, const char* share) {
        SCOPED_TRACE(given.name() + std::to_string(given.whole("servers")) + ", share " + share + ", " +
                     std::to_string(micros));
        // Sums in the order of ddp: over micro-batches, then over ranks.
        const Setting choice = with(given, {{"accumulate", "full"}, {"share", share}});
        const Trained got = trained(choice, GetParam(), micros, compute, clip);
        expect_same(got.first_gradients, want.first_gradients);
        expect_same(got.values, want.values);
      };
      for (const char* technique : {"zero1", "zero2", "zero3"}) {
        for (const char* share : {"auto", "off"}) expect(technique_of(technique), share);
      }
      expect(technique_of("param_server", {{"servers", 1}}), "auto");
      expect(technique_of("param_server", {{"servers", std::min(GetParam(), 2)}}), "off");
      expect(technique_of("param_server", {{"servers", 1}, {"mode", "async"}}),
             "off");  // with collectives, by an Engine
      expect(technique_of("replicas"), "off");
    }
  }
}

// ---- bytes ----

StateShape shape_of(const Setting& choice, int ranks, at::ScalarType compute, bool shares) {
  StateShape shape{.choice = {choice, Setting("hook")},
                   .ranks = ranks,
                   .shares_memory = shares,
                   .compute_bytes = compute == at::kBFloat16 ? 2 : 4};
  shape.count(kLargerLlama);
  return shape;
}

/// This rank's allocated bytes match the formula within 3 %: alignment, and cuts at rows.
void expect_formula(const Engine& engine, const StateShape& shape, const std::string& what) {
  AdamW optimizer(const_cast<Engine&>(engine).state());
  double moments = 0;
  for (const auto& [name, flat] : optimizer.state()) moments += static_cast<double>(flat.to_tensor().nbytes());
  const StateBytes want = state_bytes(shape);
  const auto expect = [&](double found, double formula, const char* kind) {
    EXPECT_NEAR(found, formula, 0.03 * formula) << kind << " of " << what;
  };
  expect(static_cast<double>(engine.state().parameter_bytes), want.parameters, "parameters");
  expect(static_cast<double>(engine.state().gradient_bytes), want.gradients, "gradients");
  expect(moments, want.optimizer, "optimizer");
}

TEST(StateOfARank, IsTheFormula) {
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
    for (const char* technique : {"ddp", "zero1", "zero2", "zero3"}) {
      for (const int ranks : {1, 2, 3, 4}) {
        const Setting choice = technique_of(technique);
        for (int rank = 0; rank < ranks; ++rank) {  // nothing is shared
          Mesh mesh = Mesh::create(make_record_world(rank, ranks), {{"dp", ranks}});
          Model model(kLargerLlama);
          const Engine engine(model, mesh, strategy_of(choice, model, mesh, compute), {.device = at::kMeta});
          expect_formula(engine, shape_of(choice, ranks, compute, false), technique + std::to_string(ranks));
        }
        on_mesh({{"dp", ranks}}, [&](const Mesh& world) {  // threads share memory
          Mesh mesh = world;
          Model model(kLargerLlama);
          const Engine engine(model, mesh, strategy_of(choice, model, mesh, compute), {.initialise = false});
          expect_formula(engine, shape_of(choice, ranks, compute, true), technique + std::string(" shared"));
        });
      }
    }
  }
}

/// Servers and workers.
TEST(StateOfARank, OfServersIsTheFormula) {
  constexpr int kRanks = 4;
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
    for (const int servers : {0, 1, 3}) {
      for (const char* mode : {"sync", "async"}) {
        const RecipeValue holders = servers == 0 ? RecipeValue("all") : RecipeValue(int64_t{servers});
        const Setting choice = technique_of("param_server", {{"servers", holders}, {"mode", mode}});
        const auto of_rank = [&](int rank, bool shares) {
          StateShape shape = shape_of(choice, kRanks, compute, shares);
          shape.is_server = servers == 0 || rank < servers;
          return shape;
        };
        for (int rank = 0; rank < kRanks; ++rank) {
          Mesh mesh = Mesh::create(make_record_world(rank, kRanks), {{"dp", kRanks}});
          Model model(kLargerLlama);
          const Engine engine(model, mesh, strategy_of(choice, model, mesh, compute), {.device = at::kMeta});
          expect_formula(engine, of_rank(rank, false), mode + std::to_string(rank));
        }
        on_mesh({{"dp", kRanks}}, [&](const Mesh& world) {
          Mesh mesh = world;
          Model model(kLargerLlama);
          const Engine engine(model, mesh, strategy_of(choice, model, mesh, compute), {.initialise = false});
          expect_formula(engine, of_rank(mesh.rank(), true), mode + std::string(" shared"));
        });
      }
    }
  }
}

struct Sent {
  double bytes = 0;  ///< the mean over ranks
  double most = 0;   ///< by one rank
  int64_t elements = 0;
  Schedule table;
  Units units;
};

/// Bytes of one step, with meta tensors, without the two sums of the loss and the norm.
Sent sent_in_a_step(const Setting& choice, int ranks, int num_micro_batches, const ModelConfig& config,
                    at::ScalarType compute = at::kFloat, const std::vector<int>& of_ranks = {}) {
  std::vector<int> measured = of_ranks;
  for (int rank = 0; of_ranks.empty() && rank < ranks; ++rank) measured.push_back(rank);
  Sent sent;
  for (const int rank : measured) {
    const auto see = [&](Engine& engine) {
      sent.table = engine.table(num_micro_batches);
      sent.units = engine.state().layout.units();
      sent.elements = 0;
      for (const Bucket& bucket : engine.state().layout.buckets()) sent.elements += bucket.unsharded_count;
    };
    const double bytes = sent_by_recording({.data_parallel = choice, .compute_dtype = compute}, config, rank, ranks,
                                           num_micro_batches, see);
    sent.bytes += bytes / static_cast<double>(measured.size());
    sent.most = std::max(sent.most, bytes);
  }
  return sent;
}

TEST(BytesOfAStep, AreTheFormula) {
  for (const int ranks : {2, 3, 4}) {
    const double share = static_cast<double>(ranks - 1) / ranks;
    for (const int micros : {1, 3}) {
      const auto of = [&](const Setting& choice, at::ScalarType compute = at::kFloat) {
        const Sent sent = sent_in_a_step(choice, ranks, micros, kLargerLlama, compute);
        return sent.bytes / (share * static_cast<double>(sent.elements));
      };
      // Ring all-reduces round up to a chunk for each rank.
      EXPECT_NEAR(of(technique_of("ddp")), 8, 0.01);
      EXPECT_NEAR(of(technique_of("zero1")), 8, 1e-9);
      EXPECT_NEAR(of(technique_of("zero1"), at::kBFloat16), 6, 1e-9);
      EXPECT_NEAR(of(technique_of("zero2")), 4 * micros + 4, 1e-9);
      EXPECT_NEAR(of(technique_of("zero2", {{"accumulate", "full"}})), 8, 1e-9);
      EXPECT_NEAR(of(technique_of("zero3", {{"reshard_after_forward", false}, {"accumulate", "full"}})), 8, 1e-9);
      // All units are gathered twice in a micro-batch, except those that backward and the next forward need first.
      const double twice = of(technique_of("zero3", {{"prefetch", 0}}));
      EXPECT_LE(twice, 12 * micros);
      EXPECT_GT(twice, 12 * micros - 4 * micros * 0.5) << "the head and the embedding stay";
    }
  }
}

/// Together the ranks send as much as in zero2. The busiest is a server, or a worker that is not a server.
TEST(BytesOfAStep, OfServersAreTheFormula) {
  constexpr int kRanks = 4;
  for (const Setting& choice : {technique_of("param_server"), technique_of("param_server", {{"servers", 1}}),
                                technique_of("param_server", {{"servers", 3}}), technique_of("replicas")}) {
    for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(choice.name() + std::to_string(choice.whole("servers")));
      const Sent sent = sent_in_a_step(choice, kRanks, 1, kLargerLlama, compute);
      StateShape shape = shape_of(choice, kRanks, compute, false);
      shape.parameters = static_cast<double>(sent.elements);
      const StateTraffic want = state_traffic(shape);
      EXPECT_NEAR(sent.bytes / want.bytes, 1, 1e-9);
      EXPECT_NEAR(sent.most / want.busiest, 1, 0.01) << "shards are cut at rows";
    }
  }
}

/// Two replicas of two shards: gradients are summed between replicas once a step.
TEST(BytesOfAStep, OfReplicas) {
  for (const int micros : {1, 3}) {
    const Setting choice = technique_of("hsdp", {{"shard", 2}, {"reshard_after_forward", false}});
    const Sent sent = sent_in_a_step(choice, 4, micros, kLargerLlama);
    EXPECT_NEAR(sent.bytes / static_cast<double>(sent.elements), 2 * micros + 2 + 2, 0.01);
  }
}

TEST(BytesOfAStep, OfAThousandRanks) {
  const ModelConfig llama7b{.arch = Architecture::llama(),
                            .layers = 32,
                            .width = 4096,
                            .heads = 32,
                            .context = 2048,
                            .vocabulary = 32000,
                            .hidden = 11008,
                            .tie_embeddings = false};
  const double parameters = static_cast<double>(llama7b.num_parameters());
  EXPECT_NEAR(parameters, 6.74e9, 0.01e9);
  for (const Setting& choice : {technique_of("zero3"), technique_of("hsdp", {{"shard", 64}})}) {
    const Sent sent = sent_in_a_step(choice, 1024, 1, llama7b, at::kBFloat16, {17});
    StateShape shape{.choice = {choice, Setting("hook")}, .ranks = 1024, .compute_bytes = 2};
    shape.count(llama7b);
    const StateTraffic want = state_traffic(shape);
    EXPECT_NEAR(sent.bytes / want.bytes, 1, 0.05) << choice.name();  // shards are cut at rows; the head stays
  }
}

/// 65e9 parameters, one micro-batch: 3 x 65e9 elements a rank, in fp16 390 GB.
TEST(BytesOfAStep, MatchAPublishedExample) {
  const StateTraffic traffic = state_traffic(
      {.choice = {technique_of("zero3"), Setting("hook")}, .ranks = 1 << 20, .parameters = 65e9, .compute_bytes = 2});
  EXPECT_NEAR(traffic.gathered + traffic.reduced, 195e9, 1);
  EXPECT_NEAR(traffic.elements, 195e9, 1e6);
}

// ---- what is refused ----

TEST(ShardingRefuses, ImpossibleOptions) {
  needs({"zero1", "zero2", "zero3", "hsdp", "param_server"});
  on_mesh({{"dp", 2}}, [](const Mesh& world) {
    const Problem problem(Architecture::gpt2());
    const auto message = [&](const std::string& name, const Values& values = {}) {
      Mesh mesh = world;
      Model model(problem.config);
      return message_of<UsageError>([&] { strategy_of(technique_of(name, values), model, mesh); });
    };
    EXPECT_THAT(message_of<UsageError>([] { Setting("data_parallel", "zero4"); }), HasSubstr("the nearest is 'zero1'"));
    EXPECT_THAT(message("zero3", {{"unit", "blocks.*.mlp"}}), HasSubstr("the nearest is units"));
    EXPECT_THAT(message("zero1", {{"accumulate", "full"}}),
                HasSubstr("is used with data_parallel.technique = \"zero2\""));
    EXPECT_THAT(message("param_server", {{"servers", 3}}),
                AllOf(HasSubstr("3 servers among 2 data-parallel ranks"), HasSubstr("use 2")));
    EXPECT_THAT(message("param_server", {{"servers", -1}}), HasSubstr("at least 1"));
    EXPECT_THAT(message("param_server", {{"mode", "bound"}}), HasSubstr("the nearest is 'bounded'"));
    EXPECT_THAT(message("param_server", {{"mode", "bounded"}, {"staleness", -1}}),
                AllOf(HasSubstr("staleness: -1"), HasSubstr("at least 0")));
    EXPECT_THAT(message("param_server", {{"mode", "async"}, {"drain", 0}}), HasSubstr("at least 1"));
    EXPECT_THAT(message("zero3", {{"units", "blocks.*.mpl"}}),
                AllOf(HasSubstr("no module's name fits the pattern 'blocks.*.mpl'"), HasSubstr("blocks.*.mlp")));
    EXPECT_THAT(message("zero3", {{"prefetch", -1}}), HasSubstr("at least 0"));
    EXPECT_THAT(message("zero3", {{"prefetch", 3}}), HasSubstr("at most 2"));
    EXPECT_THAT(message("zero3", {{"units", std::vector<std::string>{"blocks.*.mlp", "blocks.1"}}}),
                HasSubstr("the pattern 'blocks.1' fits only modules that are units already"));
    EXPECT_THAT(message("zero3", {{"accumulate", "half"}}), HasSubstr("is not one of sharded, full"));
    EXPECT_THAT(message("hsdp", {{"shard", 2}}), AllOf(HasSubstr("groups of 2 of 2"), HasSubstr("use \"zero3\"")));
    Mesh mesh = world;
    Model model(problem.config);
    EXPECT_THAT(message_of<UsageError>([&] { zero(model, mesh, {.stage = 3}); }), HasSubstr("stage 3 is fsdp()"));
    EXPECT_THAT(message_of<UsageError>([&] { zero(model, mesh, {.stage = 1, .accumulate = Accumulate::sharded}); }),
                HasSubstr("use stage 2"));
    EXPECT_THAT(message_of<UsageError>([&] { fsdp(model, mesh, {.prefetch = 3}); }), HasSubstr("3 units\n  do: use 2"));
  });
}

/// Units of which most ranks hold nothing but a scalar: every rank starts the same collectives.
TEST(Sharding, RanksWithoutRowsTakePart) {
  for (const Share share : {Share::on, Share::off}) {
    for (const bool frees : {false, true}) {
      on_mesh({{"dp", 4}}, [&](const Mesh& mesh) {
        Chain model({{{"s", {}, false}, {"w", {1, 2}}}, {{"s", {}, false}, {"w", {1, 2}}}, {{"w", {3, 32}}}});
        Strategy strategy = frees ? fsdp(model, mesh, {.share = share}) : zero(model, mesh, {.share = share});
        Engine engine(model, mesh, std::move(strategy), {.seed = 3});
        AdamW optimizer(engine.state());
        for (int step = 0; step < 3; ++step) {
          engine.begin_step();
          model.run({at::full({}, mesh.rank() + 1.0F)}, {})[0].backward();
          EXPECT_NO_THROW(engine.finish_step());
          EXPECT_NO_THROW(optimizer.step(0.1));
          engine.begin_evaluation();
          EXPECT_THAT(message_of<UsageError>([&] { engine.begin_step(); }), HasSubstr("an evaluation is open"));
          engine.end_evaluation();
        }
      });
    }
  }
}

/// Bytes of buffers after each step of a hand-written loop, on one rank of four.
std::vector<int64_t> buffer_bytes_after_steps(const std::vector<std::vector<Parameters::Spec>>& units, int num_steps) {
  std::vector<int64_t> bytes;
  Mesh mesh = Mesh::create(make_record_world(1, 4), {{"dp", 4}});
  Chain model(units);
  Engine engine(model, mesh, fsdp(model, mesh, {.prefetch = 0}), {.seed = 3});
  for (int step = 0; step < num_steps; ++step) {
    engine.begin_step();
    model.run({at::full({}, 1.0F)}, {})[0].backward();
    engine.finish_step();
    bytes.push_back(engine.buffer_bytes());
  }
  return bytes;
}

/// The first step holds the gradients of all units; it does not keep their memory.
TEST(Sharding, BuffersOfARecordedStepAreReturned) {
  const std::vector<std::vector<Parameters::Spec>> units(20, {{"w", {64, 64}}});
  EXPECT_LE(buffer_bytes_after_steps(units, 3).back(), 8 * 64 * 64 * 4) << "a few units of 20";
}

/// No buffer keeps the size of earlier units if all differ in size.
TEST(Sharding, BuffersOfOtherSizesDoNotAddUp) {
  std::vector<std::vector<Parameters::Spec>> units;
  for (int64_t i = 0; i < 20; ++i) units.push_back({{"w", {64, 64 + i}}});
  const std::vector<int64_t> bytes = buffer_bytes_after_steps(units, 4);
  for (size_t step = 1; step < bytes.size(); ++step) {
    EXPECT_LE(bytes[step], 8 * 64 * 84 * 4) << "a few units of 20, step " << step;
  }
}

/// A sharded model can be wrapped again, by any technique.
TEST(Sharding, CanBeWrappedAgain) {
  on_mesh({{"dp", 3}}, [](const Mesh& world) {
    const Problem problem(Architecture::gpt2());
    Model model(problem.config);
    Named want;
    for (const char* technique : {"zero3", "zero2", "ddp", "zero1", "zero3"}) {
      Mesh mesh = world;
      const Engine engine(model, mesh, strategy_of(technique_of(technique), model, mesh), {.seed = 5});
      const at::NoGradGuard no_grad;
      Named got;
      for (const Parameter* parameter : model.parameters()) {
        got[parameter->name()] = whole_of(parameter->sharded().detach(), *parameter, mesh);
      }
      if (want.empty()) want = got;
      expect_same(got, want);
    }
  });
}

}  // namespace
}  // namespace caravan::testing::zero_test
