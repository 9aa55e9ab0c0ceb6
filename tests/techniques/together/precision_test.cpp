/// Dtypes of gradients and reductions, and fp16 with its loss scale, for every technique.

#include <cmath>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/comm/record.h"
#include "caravan/optim/grad_norm.h"
#include "tests/cost/formulas/state.h"
#include "tests/techniques/together/steps.h"
#include "tests/techniques/together/technique.h"

namespace caravan::testing::precision_test {
namespace {

const std::vector<std::string> kTechniques{"ddp", "zero1", "zero2", "zero3"};

StrategyChoice choice_of(const std::string& technique, const std::string& share = "auto",
                         const std::string& accumulate = "sharded") {
  return {.data_parallel = with(technique_of(technique), {{"accumulate", accumulate}, {"share", share}})};
}

DataParallelChoice formula_of(const StrategyChoice& choice) { return {choice.data_parallel, choice.hook}; }

/// One rounding to bf16 for each micro-batch and each sum, 2^-9 each; tensors of few elements do not average.
TEST(GradientsInBf16, AreThoseInFp32Rounded) {
  const Problem problem(Architecture::gpt2());
  for (const int ranks : {1, 2, 3, 4}) {
    for (const int micros : {1, 3}) {
      const Named want = first_gradients({}, problem, ranks, micros);
      for (const std::string& technique : kTechniques) {
        for (const std::string share : {"auto", "off"}) {
          for (const std::string accumulate : {"sharded", "full"}) {
            StrategyChoice choice = choice_of(technique, share, accumulate);
            choice.gradient_dtype = at::kBFloat16;
            const Named got = first_gradients(choice, problem, ranks, micros);
            const auto [apart, name] = distance(got, want);
            const double tolerance = std::ldexp(ranks + micros, -8);
            EXPECT_LT(apart, tolerance) << technique << " " << name << " " << ranks << " x " << micros;
            EXPECT_GT(apart, 1e-5) << "nothing was rounded";
            for (const auto& [key, tensor] : got)
              EXPECT_TRUE(at::equal(tensor, tensor.to(at::kBFloat16).to(at::kFloat)));
          }
        }
      }
    }
  }
}

TEST(Reductions, InAnotherDtypeRoundWhatIsSent) {
  const Problem problem(Architecture::llama());
  for (const auto& [type, digits] : {std::pair(at::kBFloat16, 8), {at::kHalf, 10}}) {
    for (const int ranks : {2, 3, 4}) {
      const Named want = first_gradients({}, problem, ranks);
      for (const std::string& technique : kTechniques) {
        StrategyChoice choice = choice_of(technique);
        choice.reduce_dtype = type;
        const auto [apart, name] = distance(first_gradients(choice, problem, ranks), want);
        // fp16 has no normal numbers below 6e-5.
        EXPECT_LT(apart, std::ldexp(ranks + 1, -digits) + (type == at::kHalf ? 0.02 : 0)) << technique << " " << name;
        EXPECT_GT(apart, 1e-6) << technique << ": nothing was rounded";
      }
    }
  }
}

TEST(Reductions, InFp32OfGradientsKeptInBf16SumUnrounded) {
  const Problem problem(Architecture::llama());
  const Named want = first_gradients({}, problem, 4);
  StrategyChoice choice = choice_of("zero3", "off");
  choice.gradient_dtype = at::kBFloat16;
  const double rounded = distance(first_gradients(choice, problem, 4), want).first;
  choice.reduce_dtype = at::kFloat;
  const double wide = distance(first_gradients(choice, problem, 4), want).first;
  EXPECT_LT(wide, std::ldexp(1, -8));
  EXPECT_LT(wide, rounded);
}

/// The literature's row: 16, 4 + 12/N, 2 + 14/N, and 14/N without a shard in bf16.
TEST(GradientsInBf16, TakeTwoBytesAParameter) {
  for (const int ranks : {1, 2, 3, 4}) {
    const double n = ranks;
    for (const auto& [technique, bytes] :
         {std::pair("ddp", 16.0), {"zero1", 4 + 12 / n}, {"zero2", 2 + 14 / n}, {"zero3", 14 / n}}) {
      StrategyChoice choice = choice_of(technique);
      choice.compute_dtype = choice.gradient_dtype = at::kBFloat16;
      StateShape shape{
          .choice = formula_of(choice), .ranks = ranks, .compute_bytes = 2, .gradient_bytes = 2, .reduce_bytes = 2};
      shape.count(kLargerLlama);
      const bool is_copied = std::string(technique) == "zero3" && ranks == 1;  // then it is ddp
      EXPECT_NEAR(state_bytes(shape).sharded() / shape.parameters, is_copied ? 16 : bytes, 1e-9);
      for (int rank = 0; rank < ranks; ++rank) {
        Mesh mesh = Mesh::create(make_record_world(rank, ranks), {{"dp", ranks}});
        Model model(kLargerLlama);
        Engine engine(model, mesh, make_strategy(choice, model, mesh), {.device = at::kMeta});
        AdamW optimizer(engine.state());
        double found = static_cast<double>(engine.state().parameter_bytes + engine.state().gradient_bytes);
        for (const auto& [name, flat] : optimizer.state()) found += static_cast<double>(flat.to_tensor().nbytes());
        EXPECT_NEAR(found / state_bytes(shape).sharded(), 1, 0.03) << technique << " " << ranks;
      }
    }
  }
}

TEST(Reductions, SendTheBytesOfTheirDtype) {
  for (const int ranks : {2, 3}) {
    for (const std::string& technique : kTechniques) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        StrategyChoice choice = choice_of(technique);
        choice.reduce_dtype = type;
        choice.data_parallel.set("reshard_after_forward", false);
        StateShape shape{.choice = formula_of(choice), .ranks = ranks, .reduce_bytes = type == at::kFloat ? 4 : 2};
        shape.count(kLargerLlama);
        double sent = 0;
        for (int rank = 0; rank < ranks; ++rank) sent += sent_by_recording(choice, kLargerLlama, rank, ranks) / ranks;
        EXPECT_NEAR(sent / state_traffic(shape).bytes, 1, 2e-3) << technique << " " << ranks;
      }
    }
  }
}

/// Several micro-batches accumulated in full are reduced once, for every dtype of gradients.
TEST(Reductions, WithFullAccumulationHappenOnceAStep) {
  for (const std::string technique : {"zero2", "zero3", "param_server"}) {
    for (const at::ScalarType kept : {at::kFloat, at::kBFloat16}) {
      StrategyChoice choice = choice_of(technique, "off", "full");
      choice.gradient_dtype = kept;
      choice.data_parallel.set("reshard_after_forward", false);
      StateShape shape{.choice = formula_of(choice),
                       .ranks = 2,
                       .gradient_bytes = kept == at::kFloat ? 4 : 2,
                       .reduce_bytes = kept == at::kFloat ? 4 : 2,
                       .num_micro_batches = 3};
      shape.count(kLargerLlama);
      const double sent =
          (sent_by_recording(choice, kLargerLlama, 0, 2, 3) + sent_by_recording(choice, kLargerLlama, 1, 2, 3)) / 2;
      EXPECT_NEAR(sent / state_traffic(shape).bytes, 1, 2e-3) << technique;
    }
  }
}

/// fp16 is at most as far from fp32 as bf16 is: it has three more bits. Unscaled, small gradients would vanish.
TEST(Fp16, GivesTheGradientsOfFp32Scaled) {
  const Problem problem(Architecture::llama());
  for (const int ranks : {1, 2, 3}) {
    const Named want = first_gradients({}, problem, ranks);
    for (const std::string technique : {"ddp", "zero2", "zero3"}) {
      StrategyChoice choice = choice_of(technique);
      choice.compute_dtype = at::kHalf;
      with_engine(choice, problem, ranks, [&](Engine& engine, Model& model) {
        run_passes(engine, model, problem, 0, 1, 1024);
        Named got = whole_gradients(engine, model);
        for (auto& [name, tensor] : got) tensor.div_(1024);
        const auto [apart, name] = distance(got, want);
        EXPECT_LT(apart, 0.02) << technique << " " << name;
        EXPECT_GT(apart, 1e-5);
      });
    }
  }
}

/// A step whose gradients overflow on one rank changes nothing on any, and halves the scale of all.
TEST(Fp16, SkipsAStepThatOverflowsOnOneRank) {
  const Problem problem(Architecture::gpt2());
  StrategyChoice choice = choice_of("zero2");
  choice.compute_dtype = at::kHalf;
  with_engine(choice, problem, 3, [&](Engine& engine, Model&) {
    AdamW optimizer(engine.state());
    LossScale scale;
    TrainStep step(engine, optimizer, {.clip_norm = 1, .loss_scale = &scale});
    const Mesh& mesh = engine.mesh();
    const Problem::Batch whole = problem.batch();
    const auto batch = [&](bool overflows) {
      const Problem::Batch part = problem.part(whole, mesh.rank(), 3, 0, 1);
      // With a divisor of 1e-6 the gradients of its rows overflow.
      return TrainBatch{.ids = part.ids,
                        .labels = part.labels,
                        .first_row = mesh.rank() * part.ids.size(0),
                        .global_rows = Problem::kRows,
                        .num_targets = overflows ? 1 : Problem::kRows * Problem::kLength};
    };
    const at::Tensor before = engine.state().values.to_tensor().clone();
    StepResult result = step.run(batch(false), 0, 0.1);
    EXPECT_FALSE(result.is_skipped);
    EXPECT_EQ(result.loss_scale, 65536);
    EXPECT_LT(result.grad_norm, 10) << "unscaled";
    const at::Tensor after = engine.state().values.to_tensor().clone();
    EXPECT_FALSE(at::equal(before, after));
    result = step.run(batch(mesh.rank() == 1), 1, 0.1);
    EXPECT_TRUE(result.is_skipped);
    EXPECT_EQ(scale.value(), 32768);
    EXPECT_TRUE(at::equal(engine.state().values.to_tensor(), after));
    EXPECT_EQ(optimizer.num_steps(), 1);
    EXPECT_FALSE(step.run(batch(false), 2, 0.1).is_skipped);
    EXPECT_EQ(optimizer.num_steps(), 2);
  });
}

}  // namespace
}  // namespace caravan::testing::precision_test
