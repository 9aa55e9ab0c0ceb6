/// Updates that are delayed by a step: against simulations in one process, which give each step the older parameters
/// and update the newest.

#include <cstdlib>
#include <gmock/gmock.h>
#include <map>
#include <set>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "caravan/base/error.h"
#include "caravan/base/memory/memory_counter.h"
#include "caravan/base/trace/path_log.h"
#include "caravan/cost/rehearsal.h"
#include "caravan/prove/prove_recipe.h"
#include "caravan/session/parallelize.h"
#include "caravan/train/evaluation/evaluate.h"
#include "caravan/train/model/rehearse.h"
#include "caravan/train/run_setup.h"
#include "tests/mesh/refusal.h"
#include "tests/needs.h"
#include "tests/train/tiny_run.h"

namespace caravan::testing::delayed_update_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Keys = std::vector<std::string>;
using Tensors = std::map<std::string, at::Tensor>;

constexpr const char* kDelayed = "optimizer on the host, delayed";
constexpr const char* kShown = "copies of values written before a delayed update";
constexpr const char* kCaughtUp = "parameters with a delayed update";
const Keys kOptimizer{"offload.optimizer=host"};
const Keys kBoth{"offload.optimizer=host", "offload.gradients=host"};

Keys delayed(int64_t after = 0) {
  return {"offload.delayed_update=true", "offload.delay_after=" + std::to_string(after)};
}

/// What steps leave.
struct Outcome {
  std::vector<double> numbers{};  ///< losses and norms
  std::vector<double> losses{};
  Tensors tensors{};  ///< parameters and moments
  int64_t num_skipped = 0;
  double validation = 0;
  MemoryCounter::Moved moved{};
  PathCounts paths{};
};

/// What happens after some steps, from 1, beside the recipe.
struct Events {
  std::set<int64_t> catches_up{};
  std::set<int64_t> raises_scale{};  ///< so that the next step overflows
};

void expect_same(const Outcome& got, const Outcome& want) {
  EXPECT_EQ(got.numbers, want.numbers);
  EXPECT_EQ(first_difference(got.tensors, want.tensors), "");
  EXPECT_EQ(got.num_skipped, want.num_skipped);
}

class DelayedUpdate : public ::testing::Test {
 protected:
  DelayedUpdate() { unsetenv("CARAVAN_PROTECT_HOST"); }

  Recipe recipe_of(const std::string& name, const Keys& keys, Architecture kind = Architecture::gpt2()) const {
    return runs_.recipe(kind, name,
                        together({{"train.steps=8", "checkpoint.every=0", "train.eval_every=0", "sample.tokens=0",
                                   "comm.backend=thread", "comm.threads_per_rank=1", "optimizer.lr=0.05"},
                                  keys}));
  }
  Keys on_disk(const Keys& kinds) const {
    Keys keys{"offload.disk_dirs=" + (runs_ / "tiers").string()};
    for (const std::string& kind : kinds) keys.push_back("offload." + kind + "=disk");
    return keys;
  }
  void train(const std::string& name, int ranks, const Keys& keys, TrainOptions more = {},
             Architecture kind = Architecture::gpt2()) {
    more.recipe = recipe_of(name, keys, kind);
    more.folders = runs_.folders();
    PathLog paths;
    run_thread_ranks(ranks,
                     [&](const std::shared_ptr<Communicator>& world) {
                       const PathScope counted(&paths);
                       caravan::train(more, world);
                     },
                     {.timeout = std::chrono::seconds(30)});
    paths_ = paths.counts();
  }

  Outcome steps_of(const Recipe& recipe, const Events& events, const std::function<void(RunState&)>& before_step,
                   const std::function<void(RunState&)>& before_update,
                   const std::function<void(RunState&, bool is_skipped)>& after_step);
  /// Steps of one rank as a run does them.
  Outcome run(const Keys& keys, const Events& events = {});
  /// The same without offload: `after` updates, and then each step with the parameters before the last update.
  Outcome simulate(const Keys& keys, int64_t after, const Events& events = {});

  const TinyRuns runs_;
  PathCounts paths_;  ///< of the last training run
};

Tensors tensors_of(RunState& state) {
  Tensors all;
  state.trained().tensors.walk([&](const StatePiece& piece) {
    if (piece.kind != StatePiece::Kind::parameter && piece.kind != StatePiece::Kind::moment) return;
    all[piece.name] = piece.read ? piece.read() : piece.tensor.clone();
  });
  return all;
}

Tensors values_of(RunState& state) {
  Tensors all;
  for (const Parameter* parameter : state.model().parameters()) {
    all[parameter->name()] = parameter->sharded().detach().clone();
  }
  return all;
}

void set_values(RunState& state, const Tensors& values) {
  const at::NoGradGuard no_grad;
  for (Parameter* parameter : state.model().parameters()) {
    parameter->sharded().detach().copy_(values.at(parameter->name()));
  }
  state.engine().state().bump_version();
}

Outcome DelayedUpdate::steps_of(const Recipe& recipe, const Events& events,
                                const std::function<void(RunState&)>& before_step,
                                const std::function<void(RunState&)>& before_update,
                                const std::function<void(RunState&, bool is_skipped)>& after_step) {
  const Dataset data = open_dataset(recipe.data, runs_.folders());
  const TrainWindows windows = data.train_windows(recipe.model.context, recipe.train.seed);
  const int64_t rows = recipe.train.global_batch;
  Outcome outcome;
  PathLog paths;
  run_thread_ranks(1,
                   [&](const std::shared_ptr<Communicator>& world) {
                     const PathScope counted(&paths);
                     const Mesh mesh = Mesh::create(world, mesh_axes(recipe, 1));
                     RunState state(recipe, data.tokenizer, mesh);
                     TrainStep train_step(state.engine(), state.optimizer(),
                                          {.seed = static_cast<uint64_t>(recipe.train.seed),
                                           .num_micro_batches = plan_batch(recipe, 1).accumulation,
                                           .clip_norm = recipe.optimizer.clip_norm,
                                           .loss_scale = state.loss_scale()});
                     for (int64_t step = 0; step < recipe.train.steps; ++step) {
                       if (before_step) before_step(state);
                       const StepResult result =
                           train_step.run(make_batch(windows, step * rows, rows), step, state.learning_rate().at(step),
                                          false, [&](const StepResult&) {
                                            if (before_update) before_update(state);
                                          });
                       outcome.losses.push_back(result.loss);
                       outcome.numbers.push_back(result.loss);
                       if (!result.is_skipped) outcome.numbers.push_back(result.grad_norm);
                       outcome.num_skipped += result.is_skipped ? 1 : 0;
                       if (after_step) after_step(state, result.is_skipped);
                       if (events.catches_up.contains(step + 1)) state.engine().catch_up();
                       if (events.raises_scale.contains(step + 1)) state.loss_scale()->set_state({.value = 1 << 24});
                     }
                     outcome.tensors = tensors_of(state);
                     outcome.moved = MemoryCounter::current().moved();
                     const ValidationWindows validation = data.validation_windows(recipe.model.context);
                     outcome.validation = evaluate(state.engine(), validation, {.rows = 4, .max_windows = 8})->loss;
                   },
                   {.timeout = std::chrono::seconds(30)});
  outcome.paths = paths.counts();
  return outcome;
}

Outcome DelayedUpdate::run(const Keys& keys, const Events& events) {
  return steps_of(recipe_of("stepped", keys), events, {}, {}, {});
}

Outcome DelayedUpdate::simulate(const Keys& keys, int64_t after, const Events& events) {
  Tensors older, newest;
  int64_t num_steps = 0;
  return steps_of(
      recipe_of("simulated", keys), events,
      [&](RunState& state) {
        newest = values_of(state);
        if (!older.empty()) set_values(state, older);
      },
      [&](RunState& state) { set_values(state, newest); },
      [&](RunState& state, bool is_skipped) {
        num_steps += 1;
        const bool delays = !is_skipped && state.optimizer().num_steps() > after;
        older = delays && !events.catches_up.contains(num_steps) ? newest : Tensors();
      });
}

/// Every optimizer and dtype, with and without what scales gradients: the same bits.
TEST_F(DelayedUpdate, HasTheBitsOfASimulation) {
  struct One {
    Keys keys, offload;
  };
  const Keys three{"train.micro_batch=12"};
  const std::vector<One> all{
      {{}, kOptimizer},
      {{}, kBoth},
      {{"optimizer.clip_norm=0"}, kBoth},
      {three, together({kBoth, {"offload.parameters=disk", "offload.disk_dirs=" + (runs_ / "mixed").string()}})},
      {together({three, {"data_parallel.technique=zero3"}}), together({kOptimizer, on_disk({"gradients"})})},
      {{"precision.compute=bf16"}, together({kBoth, {"offload.parameters=host"}})},
      {{"precision.compute=bf16", "precision.gradients=bf16"}, kOptimizer},
      {{"precision.compute=bf16", "optimizer.clip_norm=0"}, on_disk({"optimizer", "gradients", "parameters"})},
      {{"optimizer.kind=sgd", "optimizer.momentum=0.9", "optimizer.lr=0.2"}, kBoth},
      {{"data_parallel.technique=zero1", "moe.experts=4", "moe.balance=batch"}, kBoth},
      {{"lora.rank=2", "memory.recompute=full"}, kBoth}};
  for (const One& one : all) {
    SCOPED_TRACE(::testing::PrintToString(one.keys) + ::testing::PrintToString(one.offload));
    const Outcome want = simulate(one.keys, 2);
    const Outcome got = run(together({one.keys, one.offload, delayed(2)}));
    expect_same(got, want);
    EXPECT_EQ(got.paths.at(kDelayed), 6);  // of 8 updates
    EXPECT_EQ(got.paths.at(kShown), 5);
    EXPECT_EQ(got.validation, want.validation);  // of all updates
    // Without the delay two updates more are known to the fourth step.
    const Outcome without = run(together({one.keys, one.offload}));
    EXPECT_EQ(std::vector(got.losses.begin(), got.losses.begin() + 3),
              std::vector(without.losses.begin(), without.losses.begin() + 3));
    EXPECT_NE(got.losses[3], without.losses[3]);
  }
}

/// A skipped step has no update; the one before is delayed by no more than a step.
TEST_F(DelayedUpdate, SkippedStepsDelayNothingFurther) {
  for (const char* clip : {"optimizer.clip_norm=1", "optimizer.clip_norm=0"}) {
    for (const Keys& offload : {kOptimizer, kBoth}) {
      const Keys keys{"precision.compute=fp16", clip, "train.steps=24"};
      const Events events{.raises_scale = {3, 14}};
      const Outcome got = run(together({keys, offload, delayed()}), events);
      expect_same(got, simulate(keys, 0, events));
      EXPECT_GT(got.num_skipped, 2);  // some in a row
      EXPECT_EQ(got.paths.at(kDelayed), 24 - got.num_skipped);
      EXPECT_GE(got.paths.at(kCaughtUp), 3);  // for the first of skipped steps, and for the evaluation
    }
  }
}

/// The host still reads gradients, and writes what it updates, when the next backward comes.
TEST_F(DelayedUpdate, WaitsForASlowHost) {
  for (const Keys& keys : {Keys{}, Keys{"data_parallel.technique=zero1"}, Keys{"precision.gradients=bf16"},
                           Keys{"data_parallel.technique=zero3", "train.micro_batch=12"}}) {
    SCOPED_TRACE(::testing::PrintToString(keys));
    const Outcome want = simulate(keys, 0);
    setenv("CARAVAN_LINK_BYTES_PER_SECOND", "1e6", 1);
    const Outcome on_device = run(together({keys, kOptimizer, delayed()}));
    const Outcome on_host = run(together({keys, kBoth, delayed()}));
    unsetenv("CARAVAN_LINK_BYTES_PER_SECOND");
    expect_same(on_device, want);
    expect_same(on_host, want);
  }
}

TEST_F(DelayedUpdate, CatchesUpWhereItIsTold) {
  const Events events{.catches_up = {3, 4, 7}};
  const Keys keys{"train.micro_batch=18"};
  const Outcome got = run(together({keys, kBoth, delayed(1)}), events);
  expect_same(got, simulate(keys, 1, events));
  EXPECT_NE(got.losses, run(together({keys, kBoth, delayed(1)})).losses);
}

/// A run of one rank is what was simulated, with checkpoints and evaluations too, which see all updates.
TEST_F(DelayedUpdate, RunsCatchUpForCheckpointsAndEvaluations) {
  const Events events{.catches_up = {2, 3, 4, 6}};
  const Outcome want = simulate({}, 0, events);
  const Keys due{"checkpoint.every=3", "train.eval_every=2", "train.eval_batches=1"};
  for (const Keys& offload : {kBoth, on_disk({"optimizer", "gradients"})}) {
    train("due" + offload.back().substr(18, 4), 1, together({offload, delayed(), due}));
    const auto run = runs_ / ("due" + offload.back().substr(18, 4));
    Tensors got = checkpoint_tensors(run);
    std::erase_if(got, [&](const auto& tensor) { return !want.tensors.contains(tensor.first); });
    EXPECT_EQ(first_difference(got, want.tensors), "");
    EXPECT_EQ(losses(run).size(), want.losses.size());
    for (size_t i = 0; i < want.losses.size(); ++i) EXPECT_NEAR(losses(run)[i], want.losses[i], 1e-6) << i;  // digits
    EXPECT_GT(paths_.at(kDelayed), 0);
    EXPECT_EQ(paths_.at(kCaughtUp), 5);  // the last step has an evaluation, too
  }
}

TEST_F(DelayedUpdate, TiersAgreeOnEveryArrangement) {
  struct One {
    int ranks;
    Keys keys;
  };
  const std::vector<One> all{{2, {"data_parallel.technique=ddp", "train.micro_batch=6"}},
                             {2, {"data_parallel.technique=zero1", "train.micro_batch=9"}},
                             {2, {"data_parallel.technique=zero2"}},
                             {2, {"data_parallel.technique=zero3", "train.micro_batch=6"}},
                             {3, {"data_parallel.technique=zero3", "optimizer.clip_norm=0"}},
                             {2, {"mesh.pp=2", "pipeline.micro_batches=4", "model.tie_embeddings=true"}},
                             {2, {"mesh.tp=2"}},
                             {2, {"data_parallel.technique=ddp", "data_parallel.hook=powersgd"}},
                             {3, {"data_parallel.technique=param_server", "data_parallel.servers=2"}}};
  int count = 0;
  for (const One& one : all) {
    SCOPED_TRACE(::testing::PrintToString(one.keys));
    const std::vector<Keys> offloads{kOptimizer, kBoth, on_disk({"optimizer", "gradients"}),
                                     together({kBoth, on_disk({"parameters"})})};
    std::vector<std::filesystem::path> runs;
    for (const Keys& offload : offloads) {
      // Once also with the host's work on the rank's own thread, while other access to its memory ends the process.
      if (&offload == &offloads.back()) setenv("CARAVAN_PROTECT_HOST", "1", 1);
      const std::string name = "tiers" + std::to_string(count++);
      train(name, one.ranks, together({one.keys, offload, delayed(1), {"train.eval_every=3"}}));
      unsetenv("CARAVAN_PROTECT_HOST");
      EXPECT_GE(paths_.at(kDelayed), 7 * one.ranks);  // and those of rehearsals
      runs.push_back(runs_ / name);
    }
    for (const auto& run : runs) {
      EXPECT_EQ(number_lines(run), number_lines(runs.front()));
      EXPECT_EQ(first_difference(checkpoint_tensors(run), checkpoint_tensors(runs.front())), "");
    }
  }
}

/// Gathers and reductions in between change nothing but the order of sums.
TEST_F(DelayedUpdate, RanksMatchASimulationOfOneProcess) {
  const Keys sgd{"optimizer.kind=sgd", "optimizer.lr=0.2", "model.dropout=0"};
  const Outcome want = simulate(sgd, 1);
  for (const char* technique : {"ddp", "zero3"}) {
    train(technique, 2, together({sgd, kBoth, delayed(1), {std::string("data_parallel.technique=") + technique}}));
    Tensors got = checkpoint_tensors(runs_ / technique);
    std::erase_if(got, [&](const auto& tensor) { return !want.tensors.contains(tensor.first); });
    EXPECT_LT(distance(got, want.tensors).first, 1e-4) << technique;  // sums in another order; 1e-2 without a delay
    EXPECT_GT(distance(got, simulate(sgd, 100).tensors).first, 1e-3);
  }
}

TEST_F(DelayedUpdate, ResumesBitForBit) {
  const Keys due{"checkpoint.every=3", "train.eval_every=4", "train.eval_batches=1"};
  const std::vector<Keys> offloads{kBoth, on_disk({"optimizer", "gradients"})};
  for (const char* technique : {"ddp", "zero3"}) {
    const Keys keys = together({{std::string("data_parallel.technique=") + technique}, due, delayed(2)});
    const std::string name = technique;
    train(name + " whole", 2, together({keys, offloads[0]}));
    for (const int64_t stop : {3, 6}) {
      const std::string own = name + std::to_string(stop);
      train(own, 2, together({keys, offloads[0]}), {.stop_after = stop});
      train(own, 2, together({keys, offloads[1]}), {.resume = true});
      EXPECT_EQ(first_difference(checkpoint_tensors(runs_ / own), checkpoint_tensors(runs_ / (name + " whole"))), "")
          << own;
      EXPECT_EQ(losses(runs_ / own), losses(runs_ / (name + " whole")));
    }
  }
}

TEST_F(DelayedUpdate, ErrorsNameTheWayOut) {
  const auto error_of = [&](const Keys& keys) { return refusal<UsageError>([&] { train("bad", 2, keys); }); };
  EXPECT_THAT(error_of(delayed()), AllOf(HasSubstr("offload.delayed_update"), HasSubstr("rests on the device"),
                                         HasSubstr("offload.optimizer = \"host\"")));
  EXPECT_THAT(error_of(together({kOptimizer, {"offload.parameters=host"}, delayed()})),
              AllOf(HasSubstr("offload.delayed_update"), HasSubstr("in fp32 with both on \"host\""),
                    HasSubstr("precision.compute = \"bf16\"")));
  EXPECT_THAT(error_of(together({kOptimizer, {"offload.delay_after=3"}})), HasSubstr("delayed_update only"));
  EXPECT_THAT(error_of(together({kOptimizer, {"offload.delayed_update=true", "offload.delay_after=-1"}})),
              HasSubstr("offload.delay_after"));
  EXPECT_THAT(error_of(together(
                  {kOptimizer,
                   delayed(),
                   {"data_parallel.technique=param_server", "data_parallel.mode=async", "optimizer.clip_norm=0"}})),
              AllOf(HasSubstr("does not fit"), HasSubstr("offload.delayed_update")));
  EXPECT_THAT(error_of(together({kOptimizer, delayed(), {"data_parallel.technique=diloco"}})),
              HasSubstr("does not fit"));
}

TEST_F(DelayedUpdate, AutoChoosesTiersThatAllowIt) {
  const auto kept = [&](const Keys& keys) {
    train("auto", 1, together({keys, delayed(), {"offload.device_budget=1G"}}));
    return load_recipe(runs_ / "auto" / "recipe.toml", {}).offload;
  };
  EXPECT_EQ(kept({"offload.optimizer=auto"}).text("optimizer"), "host");
  const std::string error = refusal<UsageError>([&] {
    kept({"offload.optimizer=auto", "offload.parameters=host"});
  });  // fp32, and no disk
  EXPECT_THAT(error, HasSubstr("in fp32 with both on \"host\""));
}

/// A step of a run moves what a rehearsal says, to the byte.
TEST_F(DelayedUpdate, RehearsalsKnowWhatMoves) {
  const Keys keys{"data_parallel.technique=zero2", "train.micro_batch=12"};
  const std::vector<Keys> offloads{kOptimizer, kBoth, on_disk({"optimizer"}), on_disk({"optimizer", "gradients"})};
  for (const Keys& offload : offloads) {
    SCOPED_TRACE(::testing::PrintToString(offload));
    const Recipe recipe = recipe_of("rehearsed", together({keys, offload, delayed(3)}));
    const int64_t vocabulary = open_dataset(recipe.data, runs_.folders()).tokenizer.vocab_size();
    const Rehearsal::Moved want = rehearse(recipe, vocabulary, 1, 0).moved;
    const auto after = [&](int64_t steps) {
      return run(together({keys, offload, delayed(3), {"train.steps=" + std::to_string(steps)}})).moved;
    };
    const MemoryCounter::Moved eight = after(8), seven = after(7);
    EXPECT_EQ(static_cast<double>(eight.to_host - seven.to_host), want.to_host);
    EXPECT_EQ(static_cast<double>(eight.from_host - seven.from_host), want.from_host);
    EXPECT_EQ(static_cast<double>(eight.to_disk - seven.to_disk), want.to_disk);
    EXPECT_EQ(static_cast<double>(eight.from_disk - seven.from_disk), want.from_disk);
  }
}

/// The device holds no more than without the delay.
TEST_F(DelayedUpdate, RehearsalsKnowWhatIsHeld) {
  const auto last_line = [&](const std::string& name) {
    std::istringstream text(read_file(runs_ / name / "train.log"));
    nlohmann::json found;
    for (std::string line; std::getline(text, line);) {
      const auto json = nlohmann::json::parse(line);
      if (json.contains("peak_memory_bytes")) found = json;
    }
    return found;
  };
  const Keys keys{"data_parallel.technique=zero3", "train.micro_batch=2", "model.vocabulary=3000"};
  for (const Keys& offload : {kBoth, on_disk({"optimizer", "gradients"})}) {
    train("with", 2, together({keys, offload, delayed()}));
    const auto with = last_line("with");
    const double predicted = with.at("predicted_memory_bytes"), measured = with.at("peak_memory_bytes");
    EXPECT_LE(measured, predicted);
    EXPECT_GE(measured, 0.92 * predicted);
    train("without", 2, together({keys, offload}));
    EXPECT_EQ(predicted, last_line("without").at("predicted_memory_bytes"));
    std::filesystem::remove_all(runs_ / "with");
    std::filesystem::remove_all(runs_ / "without");
  }
}

TEST_F(DelayedUpdate, IsProvedWithBothSidesDelayed) {
  const auto recipe_to_prove = [&](const Keys& keys) {
    return parse_recipe("", "test",
                        together({{"model.width=24", "model.heads=4", "model.layers=2", "model.context=16",
                                   "data.tokenizer={train = 300}", "train.global_batch=16", "train.micro_batch=4",
                                   "mesh.dp=2", "data_parallel.technique=zero3"},
                                  kBoth,
                                  {"offload.delayed_update=true"},
                                  keys}));
  };
  for (const Keys& keys : {Keys{}, Keys{"optimizer.clip_norm=0"}, Keys{"precision.compute=bf16"},
                           Keys{"precision.compute=bf16", "offload.parameters=host"}}) {
    SCOPED_TRACE(::testing::PrintToString(keys));
    const Recipe recipe = recipe_to_prove(keys);
    RecipeProof proof;
    run_thread_ranks(2, [&](const std::shared_ptr<Communicator>& world) {
      RecipeProof own = prove_recipe(recipe, world);
      if (world->rank() == 0) proof = std::move(own);
    });
    EXPECT_TRUE(proof.holds()) << (proof.parts.empty() ? "" : proof.parts.back().proof.to_string())
                               << ::testing::PrintToString(proof.missing);
    EXPECT_TRUE(proof.paths().contains(kDelayed));
  }
  ProveCase one = prove_case(recipe_to_prove({}));
  EXPECT_TRUE(prove(one).holds());
  one.delays = false;  // one process that sees all updates
  const Proof proof = prove(one);
  ASSERT_FALSE(proof.holds());
  EXPECT_EQ(proof.first->step, 1);
}

// Programs: a module of torch, of which one process knows everything.

constexpr int64_t kRows = 24;

torch::nn::Sequential make_net() {
  torch::nn::Sequential net(torch::nn::Linear(6, 16), torch::nn::Linear(16, 16), torch::nn::Linear(16, 5));
  const at::NoGradGuard no_grad;
  double seed = 0;
  for (at::Tensor& p : net->parameters()) {
    p.copy_(at::arange(p.numel(), at::kDouble).add(++seed).mul(0.7).sin().mul(0.5).view(p.sizes()));
  }
  return net;
}
at::Tensor batch_x(int64_t step) {
  return at::arange(kRows * 6, at::kFloat).add(static_cast<double>(step)).mul(0.37).sin().view({kRows, 6});
}
at::Tensor batch_y(int64_t step) { return at::arange(kRows, at::kLong).add(step).remainder(5); }
at::Tensor mean_of(const at::Tensor& output, const at::Tensor& y) { return at::cross_entropy_loss(output, y); }

struct Trained {
  std::vector<double> losses{};
  std::vector<at::Tensor> parameters{};
};

/// In plain torch: `steps` of AdamW or SGD whose gradients after `after` updates are those of the parameters before the
/// last update.
Trained of_torch(bool is_adamw, int64_t steps, int64_t after) {
  torch::nn::Sequential net = make_net();
  std::vector<at::Tensor> parameters = net->parameters();
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (is_adamw) {
    optimizer = std::make_unique<torch::optim::AdamW>(
        parameters, torch::optim::AdamWOptions(0.05).betas({0.9, 0.95}).weight_decay(0));
  } else {
    optimizer = std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
  }
  const auto values = [&] {
    std::vector<at::Tensor> all;
    for (const at::Tensor& parameter : parameters) all.push_back(parameter.detach().clone());
    return all;
  };
  const auto set = [&](const std::vector<at::Tensor>& to) {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < to.size(); ++i) parameters[i].copy_(to[i]);
  };
  Trained trained;
  std::vector<at::Tensor> older = values();
  for (int64_t step = 0; step < steps; ++step) {
    const std::vector<at::Tensor> newest = values();
    set(older);
    optimizer->zero_grad();
    const at::Tensor loss = mean_of(net->forward(batch_x(step)), batch_y(step));
    loss.backward();
    trained.losses.push_back(loss.item<double>());
    set(newest);
    optimizer->step();
    older = step + 1 > after ? newest : values();
  }
  trained.parameters = values();
  return trained;
}

struct Program {
  OffloadChoice offload{.gradients = "host", .optimizer = "host", .delayed_update = true};
  bool is_adamw = true;
  int64_t steps = 6;
  std::filesystem::path run{};  ///< loads, and saves at the end and after each `save_every` steps
  int64_t save_every = 100;
  bool evaluates = false;  ///< between steps
};

Trained by_program(const Program& of, int ranks, PathCounts* counts = nullptr) {
  Trained trained;
  PathLog paths;
  run_thread_ranks(ranks, [&](const std::shared_ptr<Communicator>& world) {
    const PathScope counted(&paths);
    const Mesh mesh = Mesh::create(world, {{"dp", ranks}});
    ParallelModel model(make_net(), mesh, {ranks > 1 ? fsdp() : ddp(), offload(of.offload)}, {.average = true});
    std::unique_ptr<Optimizer> optimizer;
    if (of.is_adamw) optimizer = std::make_unique<AdamW>(model.engine().state(), AdamWOptions{.weight_decay = 0});
    if (!of.is_adamw) optimizer = std::make_unique<Sgd>(model.engine().state(), SgdOptions{.momentum = 0.9});
    model.attach(*optimizer);
    Progress now = of.run.empty() ? Progress{} : model.load(of.run);
    std::vector<double> losses;
    for (; now.step < of.steps; ++now.step) {
      if (now.step > 0 && now.step % of.save_every == 0 && !of.run.empty()) model.save(of.run, now);
      const at::Tensor x = rows_of(batch_x(now.step), mesh), y = rows_of(batch_y(now.step), mesh);
      losses.push_back(model.step(x, y, mean_of));
      optimizer->start_step(0.05);
      if (of.evaluates) model.evaluate(batch_x(9));
    }
    optimizer->finish();
    if (!of.run.empty()) model.save(of.run, now);
    if (ranks == 1 || world->rank() == 0) trained.losses = losses;
    if (ranks > 1) return;
    for (const Parameter* parameter : model.module().parameters()) {
      trained.parameters.push_back(parameter->sharded().detach().clone());
    }
  });
  if (counts != nullptr) *counts = paths.counts();
  return trained;
}

TEST_F(DelayedUpdate, ProgramsMatchPlainTorch) {
  needs({"ddp", "zero3"});
  for (const bool is_adamw : {true, false}) {
    for (const int64_t after : {0, 2}) {
      const Trained want = of_torch(is_adamw, 6, after), usual = of_torch(is_adamw, 6, 100);
      Program program{.is_adamw = is_adamw};
      program.offload.delay_after = after;
      PathCounts paths;
      const Trained got = by_program(program, 1, &paths);
      EXPECT_EQ(paths.at(kDelayed), 6 - after);
      for (size_t i = 0; i < want.losses.size(); ++i) {
        EXPECT_NEAR(got.losses[i], want.losses[i], 1e-5) << i;  // AdamW in another order of roundings
        EXPECT_EQ(std::abs(want.losses[i] - usual.losses[i]) > 1e-3, static_cast<int64_t>(i) > after) << i;
      }
      ASSERT_EQ(got.parameters.size(), want.parameters.size());
      for (size_t i = 0; i < want.parameters.size(); ++i) {
        EXPECT_LT((got.parameters[i] - want.parameters[i]).abs().max().item<double>(), 1e-4) << i;
      }
      const Trained two = by_program(program, 2);
      for (size_t i = 0; i < want.losses.size(); ++i) EXPECT_NEAR(two.losses[i], want.losses[i], 1e-5) << i;
    }
  }
}

TEST_F(DelayedUpdate, ProgramsCatchUpForCheckpointsAndEvaluations) {
  needs({"ddp", "zero3"});
  Program program{.run = runs_ / "program", .save_every = 3};
  program.offload.delay_after = 0;
  const Trained whole = by_program(program, 2);
  Program part = program;
  part.run = runs_ / "parts";
  part.steps = 3;
  const Trained first = by_program(part, 2);
  part.steps = 6;
  const Trained second = by_program(part, 2);
  EXPECT_EQ(first_difference(checkpoint_tensors(part.run), checkpoint_tensors(program.run)), "");
  std::vector<double> all = first.losses;
  all.insert(all.end(), second.losses.begin(), second.losses.end());
  EXPECT_EQ(all, whole.losses);
  // An evaluation after every step leaves nothing to delay.
  Program evaluates;
  evaluates.offload.delay_after = 0;
  evaluates.evaluates = true;
  const Trained got = by_program(evaluates, 1), want = of_torch(true, 6, 100);
  for (size_t i = 0; i < want.losses.size(); ++i) EXPECT_NEAR(got.losses[i], want.losses[i], 1e-5) << i;
}

TEST_F(DelayedUpdate, ProgramsAreRefusedWhatIsNotDelayed) {
  needs({"ddp", "zero3"});
  const auto error_of = [&](const std::function<OffloadChoice(int rank)>& choice,
                            const std::function<void(ParallelModel&)>& use) {
    return refusal<UsageError>([&] {
      run_thread_ranks(2, [&](const std::shared_ptr<Communicator>& world) {
        const Mesh mesh = Mesh::create(world, {{"dp", 2}});
        ParallelModel model(make_net(), mesh, {ddp(), offload(choice(world->rank()))}, {.average = true});
        use(model);
      });
    });
  };
  const auto nothing = [](ParallelModel&) {};
  EXPECT_THAT(error_of([](int) { return OffloadChoice{.optimizer = "host", .delayed_update = true}; },
                       [](ParallelModel& model) { model.parameters(); }),
              AllOf(HasSubstr("updates are delayed"), HasSubstr("AdamW optimizer(model.engine().state())")));
  EXPECT_THAT(error_of([](int) { return OffloadChoice{.delayed_update = true}; }, nothing),
              HasSubstr("offload.delayed_update"));
  EXPECT_THAT(
      error_of([](int rank) { return OffloadChoice{.optimizer = "host", .delayed_update = rank == 0}; }, nothing),
      HasSubstr("delayed after 40"));
}

}  // namespace
}  // namespace caravan::testing::delayed_update_test
