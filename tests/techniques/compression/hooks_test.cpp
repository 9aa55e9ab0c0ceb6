/// Communication hooks: residuals are sent later, traffic is as documented, and every rank gets the same sums.

#include <cstdlib>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/record.h"
#include "caravan/techniques/compression/compress_hook.h"
#include "caravan/techniques/compression/power_sgd.h"
#include "caravan/techniques/compression/top_k.h"
#include "caravan/techniques/data/ddp.h"
#include "caravan/techniques/data/zero.h"
#include "tests/cost/formulas/state.h"
#include "tests/engine/parameters.h"
#include "tests/ranks/process_ranks.h"
#include "tests/techniques/together/steps.h"
#include "tests/techniques/together/technique.h"

namespace caravan::testing::hooks_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using MakeHook = std::function<std::shared_ptr<CommHook>()>;

at::Tensor flat_of(const Engine& engine) { return engine.state().gradients.to_tensor().to(at::kDouble); }

at::Tensor summed(const at::Tensor& mine, const Mesh& mesh) {
  at::Tensor sum = mine.clone();
  all_reduce_async(mesh.world(), sum, sum, ReduceOp::sum, "sum").wait();
  return sum;
}

/// Over `steps` steps with the same weights, the received sums and the remaining residuals add up to the plain sums.
void expect_nothing_is_lost(const MakeHook& make, int num_ranks, int num_micro_batches) {
  const Problem problem(Architecture::gpt2());
  constexpr int kSteps = 4;
  at::Tensor want;
  on_mesh({{"dp", num_ranks}}, [&](const Mesh& mesh) {
    Model model(problem.config);
    Engine engine(model, mesh, ddp(model, mesh, {.bucket_bytes = 3000}), {.seed = 5});
    at::Tensor total;
    for (int step = 0; step < kSteps; ++step) {
      run_passes(engine, model, problem, step, num_micro_batches);
      total = total.defined() ? total + flat_of(engine) : flat_of(engine);
    }
    if (mesh.rank() == 0) want = total;
  });
  on_mesh({{"dp", num_ranks}}, [&](const Mesh& mesh) {
    Model model(problem.config);
    const std::shared_ptr<CommHook> hook = make();
    Engine engine(model, mesh, ddp(model, mesh, {.bucket_bytes = 3000, .hook = hook}), {.seed = 5});
    at::Tensor total;
    for (int step = 0; step < kSteps; ++step) {
      run_passes(engine, model, problem, step, num_micro_batches);
      const at::Tensor one = flat_of(engine);
      EXPECT_TRUE(at::equal(summed(one, mesh), one * mesh.size())) << "the ranks have different sums";
      total = total.defined() ? total + one : one;
    }
    const at::Tensor left = summed(hook->summands().front().second.to(at::kDouble), mesh);
    const double scale = want.abs().max().item<double>();
    EXPECT_GT((total - want).abs().max().item<double>() / scale, 0.01) << "nothing was left out";
    EXPECT_LT((total + left - want).abs().max().item<double>() / scale, 1e-5);
  });
}

TEST(TopKHook, KeepsTheRestForLater) {
  for (const int ranks : {2, 3, 4}) expect_nothing_is_lost([] { return std::make_shared<TopKHook>(0.05); }, ranks, 1);
  expect_nothing_is_lost([] { return std::make_shared<TopKHook>(0.05); }, 2, 3);
}

TEST(PowerSgdHook, KeepsTheErrorForLater) {
  for (const int ranks : {2, 3, 4}) {
    expect_nothing_is_lost([] { return std::make_shared<PowerSgdHook>(1); }, ranks, 1);
    expect_nothing_is_lost([] { return std::make_shared<PowerSgdHook>(3); }, ranks, 3);
  }
}

/// Everything is sent, in another order of sums.
TEST(TopKHook, OfAllEntriesIsThePlainSum) {
  needs({"ddp"});
  const Problem problem(Architecture::llama());
  for (const int ranks : {1, 2, 3, 4}) {
    const StrategyChoice choice{.hook = hook_of("topk", {{"hook_fraction", 1}})};
    EXPECT_LT(distance(first_gradients(choice, problem, ranks), first_gradients({}, problem, ranks)).first, 1e-5);
  }
}

/// A gradient of rank 1 is found by power iteration of one column at once.
TEST(PowerSgdHook, FindsAMatrixOfLowRank) {
  on_mesh({{"dp", 3}}, [](const Mesh& mesh) {
    PowerSgdHook hook(2);
    const at::TensorOptions options = at::kFloat;
    hook.prepare(40 * 30 + 7, options);
    const at::Tensor left = at::arange(40, at::kFloat).sin().view({40, 1});
    const at::Tensor right = at::arange(30, at::kFloat).cos().view({1, 30});
    at::Tensor flat = at::cat({(left * right).flatten() * (mesh.rank() + 1), at::full({7}, mesh.rank() + 1.0F)});
    const at::Tensor want = at::cat({(left * right).flatten() * 6, at::full({7}, 6.0F)});
    TransferStages stages;
    hook.reduce({.axis = mesh["dp"], .values = flat, .offset = 0, .pieces = {{"w", 0, {40, 30}}, {"b", 1200, {7}}}},
                stages);
    TransferQueue queue;
    queue.add(std::move(stages));
    queue.wait_all();
    EXPECT_LT((flat - want).abs().max().item<double>(), 1e-4);
  });
}

at::Tensor reduced_by(CommHook& hook, const MeshAxis& axis, at::Tensor flat, at::IntArrayRef shape) {
  TransferStages stages;
  hook.reduce({.axis = axis, .values = flat, .offset = 0, .pieces = {{"w", 0, shape.vec()}}}, stages);
  TransferQueue queue;
  queue.add(std::move(stages));
  queue.wait_all();
  return flat;
}

/// Equal or zero columns leave room for others: later steps find what the first one does not.
TEST(PowerSgdHook, RecoversFromAZeroGradient) {
  on_mesh({{"dp", 2}}, [](const Mesh& mesh) {
    PowerSgdHook hook(3);
    hook.prepare(40 * 30, at::kFloat);
    EXPECT_TRUE(reduced_by(hook, mesh["dp"], at::zeros({1200}), {40, 30}).eq(0).all().item<bool>());
    const at::Tensor some = random_tensor({40, 3}, 1).matmul(random_tensor({3, 30}, 2)).to(at::kFloat).flatten();
    at::Tensor sum = at::zeros({1200});
    for (int step = 1; step <= 4; ++step) {
      sum += reduced_by(hook, mesh["dp"], some.clone(), {40, 30});
      if (step == 1) continue;  // has some columns that span the rows of the gradient, but not its columns yet
      EXPECT_LT((sum - some * 2 * step).abs().max().item<double>(), 1e-3) << step;
    }
  });
}

/// Every index of a bucket is sent: one of 2^31 entries and more needs 8 bytes.
TEST(TopKHook, NumbersTheEntriesOfLargeBuckets) {
  const Mesh mesh = Mesh::create(make_record_world(0, 2), {{"dp", 2}});
  const auto bytes_of = [&](int64_t count) {
    TopKHook hook(1e-6);
    hook.prepare(count, at::TensorOptions(at::kFloat).device(at::kMeta));
    const int64_t before = mesh.bytes_sent();
    reduced_by(hook, mesh["dp"], at::empty({count}, at::TensorOptions(at::kFloat).device(at::kMeta)), {count});
    return mesh.bytes_sent() - before;
  };
  EXPECT_EQ(bytes_of((int64_t{1} << 31) - 1), 2147 * 8);
  EXPECT_EQ(bytes_of(int64_t{1} << 31), 2147 * 12);
}

/// What this processor calls itself: for torch, MKL and oneDNN.
void pretend_to_be_old() {
  setenv("ATEN_CPU_CAPABILITY", "default", 1);
  setenv("MKL_ENABLE_INSTRUCTIONS", "SSE4_2", 1);
  setenv("MKL_CBWR", "SSE4_2", 1);
  setenv("ONEDNN_MAX_CPU_ISA", "SSE41", 1);
  setenv("CARAVAN_SIMD", "baseline", 1);
}

/// Replicas apply the result of a hook, so it must have the same bits on every rank, for every instruction set.
TEST(CommunicationHooks, GiveUnlikeProcessorsTheSameBits) {
  const auto body = [](const std::shared_ptr<Communicator>& world) {
    if (world->rank() == 1) pretend_to_be_old();  // before the first operation of torch in this process
    const Mesh mesh = Mesh::create(world, {{"dp", 2}});
    const std::vector<int64_t> shape{150, 70};
    const std::vector<std::shared_ptr<CommHook>> hooks{std::make_shared<PowerSgdHook>(5),
                                                       std::make_shared<TopKHook>(0.1)};
    for (const auto& hook : hooks) {
      hook->prepare(150 * 70, at::kFloat);
      for (int step = 0; step < 4; ++step) {
        const uint64_t seed = 10 * step + mesh.rank();
        const at::Tensor mine =
            reduced_by(*hook, mesh["dp"], random_tensor(shape, seed).to(at::kFloat).flatten(), shape);
        at::Tensor all = at::empty({2, mine.numel()});
        all_gather_async(*world, mine, all, {}, "sums").wait();
        EXPECT_TRUE(at::equal(all[0], all[1])) << hook->name() << ", step " << step;
      }
    }
  };
  run_process_ranks(2, body, {.timeout = std::chrono::seconds(30)});
}

/// Parts of a matrix that fit into no factor, vectors, and steps of shards between replicas.
TEST(CommunicationHooks, ServeHsdpBetweenReplicas) {
  const Problem problem(Architecture::gpt2());
  const Named want = first_gradients({}, problem, 4);
  for (const char* hook : {"topk", "powersgd"}) {
    // So much is sent that little is left out: entries all, factors of 6 columns for 16.
    const StrategyChoice choice{.data_parallel = technique_of("hsdp", {{"shard", 2}, {"accumulate", "full"}}),
                                .hook = with(hook_of(hook), {{"hook_rank", 6}, {"hook_fraction", 1}})};
    const double apart = distance(first_gradients(choice, problem, 4), want).first;
    EXPECT_LT(apart, std::string(hook) == "topk" ? 1e-5 : 0.9) << hook;
    EXPECT_EQ(apart > 1e-4, std::string(hook) == "powersgd") << "something was left out";
  }
}

const ModelConfig kLarger{
    .arch = Architecture::gpt2(), .layers = 6, .width = 256, .heads = 4, .context = 64, .vocabulary = 1000};

TEST(CommunicationHooks, SendTheBytesOfTheFormula) {
  needs({"ddp", "hsdp", "no_hook", "powersgd", "topk"});
  for (const int ranks : {2, 4}) {
    for (const char* hook : {"none", "bf16", "powersgd", "topk"}) {
      for (const char* technique : {"ddp", "hsdp"}) {
        if (std::string(technique) == "hsdp" && ranks == 2) continue;
        const bool is_reduced_in_bf16 = std::string(hook) == "bf16";
        StrategyChoice choice{
            .data_parallel = with(technique_of(technique), {{"shard", std::string(technique) == "hsdp" ? 2 : 0},
                                                            {"reshard_after_forward", false}}),
            .hook = with(hook_of(is_reduced_in_bf16 ? "none" : hook), {{"hook_fraction", 0.02}})};
        set_dtypes(choice, {.reduce = is_reduced_in_bf16 ? "bf16" : "auto"});
        StateShape shape{
            .choice = {choice.data_parallel, choice.hook}, .ranks = ranks, .reduce_bytes = is_reduced_in_bf16 ? 2 : 4};
        shape.count(kLarger);
        double sent = 0;
        for (int rank = 0; rank < ranks; ++rank) sent += sent_by_recording(choice, kLarger, rank, ranks) / ranks;
        // Tied weights are gathered with another unit too; shards are cut at rows.
        EXPECT_NEAR(sent / state_traffic(shape).bytes, 1, std::string(technique) == "hsdp" ? 0.12 : 0.01)
            << hook << " " << technique << " " << ranks;
      }
    }
  }
}

// ---- a user's hook ----

TEST(CompressHook, SumsInAnotherForm) {
  const Problem problem(Architecture::gpt2());
  const Named want = first_gradients({}, problem, 3);
  on_mesh({{"dp", 3}}, [&](const Mesh& mesh) {
    Model model(problem.config);
    const auto hook = std::make_shared<CompressHook>(
        "halved", [](const at::Tensor& flat) { return flat.to(at::kDouble).div(2); },
        [](const at::Tensor& message) { return message.mul(2); });
    Engine engine(model, mesh, ddp(model, mesh, {.hook = hook}), {.seed = 5});
    run_passes(engine, model, problem, 0, 1);
    EXPECT_LT(distance(whole_gradients(engine, model), want).first, 1e-5);
  });
}

TEST(CompressHook, ThatChangesAShapeIsNamedWithAParameter) {
  on_mesh({{"dp", 2}}, [](const Mesh& mesh) {
    Parameters model{{"w", {4, 4}}};
    const auto hook = std::make_shared<CompressHook>(
        "cut", [](const at::Tensor& flat) { return flat.narrow(0, 0, 3); },
        [](const at::Tensor& message) { return message; });
    Engine engine(model, mesh, ddp(model, mesh, {.hook = hook}));
    const std::string message = message_of<UsageError>([&] {
      engine.begin_step();
      model.run({at::full({}, 1.0F)}, {})[0].backward();
      engine.finish_step();
    });
    EXPECT_THAT(message, AllOf(HasSubstr("[cut] w: the hook returns [3] for gradients of [32]"),
                               HasSubstr("the shape that compress is given")));
  });
}

TEST(CommunicationHooks, RefuseInvalidOptions) {
  needs({"ddp"});
  EXPECT_THAT(message_of<UsageError>([] { TopKHook hook(0); }), HasSubstr("(0, 1]"));
  EXPECT_THAT(message_of<UsageError>([] { PowerSgdHook hook(0); }), HasSubstr("use 1 or more"));
  const auto refusal = [](StrategyChoice choice, const PrecisionChoice& precision = {}) {
    std::string message;
    on_mesh({{"dp", 1}}, [&](const Mesh& world) {
      Mesh mesh = world;
      Parameters model{{"w", {4, 4}}};
      set_dtypes(choice, precision);
      message = message_of<UsageError>([&] { make_strategy(choice, model, mesh); });
    });
    return message;
  };
  EXPECT_THAT(refusal({.data_parallel = technique_of("zero2"), .hook = hook_of("topk")}),
              HasSubstr("use data_parallel.technique = \"ddp\" or \"hsdp\""));
  EXPECT_THAT(refusal({.hook = hook_of("powersgd")}, {.compute = "fp16"}), HasSubstr("loss scale"));
  EXPECT_THAT(refusal({.hook = hook_of("powersgd")}, {.gradients = "bf16"}), HasSubstr("precision.gradients"));
  const StrategyChoice async{.data_parallel = technique_of("param_server", {{"mode", "async"}})};
  const StrategyChoice bounded{.data_parallel = technique_of("param_server", {{"mode", "bounded"}})};
  EXPECT_THAT(refusal(async, {.gradients = "bf16"}), HasSubstr("use \"fp32\", or data_parallel.mode = \"sync\""));
  EXPECT_THAT(refusal(async, {.reduce = "bf16"}), HasSubstr("precision.reduce"));
  EXPECT_THAT(refusal(bounded, {.compute = "fp16"}), HasSubstr("loss scale"));
  EXPECT_EQ(refusal({.data_parallel = technique_of("zero3")}, {.reduce = "bf16"}), "");
  on_mesh({{"dp", 2}}, [](const Mesh& mesh) {
    Parameters model{{"w", {4, 4}}};
    EXPECT_THAT(message_of<UsageError>([&] { fsdp(model, mesh, {.hook = std::make_shared<TopKHook>()}); }),
                HasSubstr("set reduce_dtype, or replicate_axis"));
    for (const DdpOptions& options :
         {DdpOptions{.gradient_dtype = at::kBFloat16, .hook = std::make_shared<TopKHook>()},
          DdpOptions{.reduce_dtype = at::kHalf, .hook = std::make_shared<PowerSgdHook>()}}) {
      EXPECT_THAT(message_of<UsageError>([&] { const Engine engine(model, mesh, ddp(model, mesh, options)); }),
                  HasSubstr("leave gradient_dtype and reduce_dtype out"));
    }
    Mesh all = mesh;
    EXPECT_THAT(message_of<UsageError>([] { Setting("hook", "powersdg"); }), HasSubstr("the nearest is 'powersgd'"));
    EXPECT_THAT(message_of<UsageError>([] { Setting("hook", "bf16"); }), HasSubstr("use precision.reduce = \"bf16\""));
    StrategyChoice reduced{};
    set_dtypes(reduced, {.reduce = "bf16"});
    EXPECT_EQ(make_strategy(reduced, model, all).reduce_dtype, at::kBFloat16);
    // Ranks with different hooks are told before anything is reduced.
    const auto hook = std::make_shared<PowerSgdHook>(1 + mesh.rank());
    EXPECT_THAT(message_of<UsageError>([&] { const Engine engine(model, mesh, ddp(model, mesh, {.hook = hook})); }),
                AllOf(HasSubstr("hook"), HasSubstr("powersgd 2")));
  });
}

}  // namespace
}  // namespace caravan::testing::hooks_test
