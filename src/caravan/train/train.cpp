#include "caravan/train/train.h"

#include <chrono>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/memory_counter.h"
#include "caravan/comm/agree.h"
#include "caravan/comm/flight_dump.h"
#include "caravan/generate/generate.h"
#include "caravan/nn/hf_config.h"
#include "caravan/train/dump.h"
#include "caravan/train/evaluate.h"
#include "caravan/train/run_folder.h"
#include "caravan/train/run_state.h"
#include "caravan/train/step.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

class Run {
 public:
  Run(const TrainOptions& options, const std::shared_ptr<Communicator>& world);
  void go();

 private:
  bool is_first() const { return mesh_.rank() == 0; }
  TrainBatch batch(int64_t step) const;
  StepMetrics step();
  void evaluate_into(StepMetrics& metrics);
  void save();
  void sample();
  void check_dump_steps() const;
  void check_sample() const;
  TrainObserver& observer() const { return *observer_; }

  const TrainOptions& options_;
  const Recipe& recipe_;
  Mesh mesh_;
  BatchPlan plan_;
  TrainObserver silent_;
  TrainObserver* observer_;
  Dataset dataset_;
  Sampler sampler_;
  ValidationWindows windows_;
  RunState state_;
  std::unique_ptr<TrainStep> train_step_;
  fs::path folder_;
  std::unique_ptr<MetricsLog> log_;
  int64_t end_ = 0;
};

/// Rank 0 reads, trains and writes what is not there yet; the others then find it in the cache.
Dataset open_in_turn(const TrainOptions& options, const Mesh& mesh) {
  if (mesh.rank() != 0) mesh.world().barrier("data");
  Dataset dataset = open_dataset(options.recipe.data, options.folders);
  if (mesh.rank() == 0) mesh.world().barrier("data");
  return dataset;
}

fs::path agreed_folder(const TrainOptions& options, const Mesh& mesh) {
  fs::path mine;
  if (mesh.rank() == 0) mine = choose_run_folder(options.recipe, options.resume);
  return broadcast_text(mesh.world(), mine.string(), 0, "run folder");
}

Run::Run(const TrainOptions& options, const std::shared_ptr<Communicator>& world)
    : options_(options),
      recipe_(options.recipe),
      mesh_(Mesh::create(world, mesh_axes(options.recipe, world->size()))),
      plan_(plan_batch(options.recipe, world->size())),
      observer_(options.observer != nullptr ? options.observer : &silent_),
      dataset_(open_in_turn(options, mesh_)),
      sampler_(dataset_.train.size(), recipe_.model.context, static_cast<uint64_t>(recipe_.train.seed)),
      windows_(dataset_.validation, recipe_.model.context),
      state_(recipe_, dataset_.tokenizer, mesh_),
      folder_(agreed_folder(options, mesh_)) {
  dump_flights_on_failure(*world, folder_);
  if (options.resume) state_.load(folder_, sampler_);
  if (state_.step > recipe_.train.steps) {
    throw UsageError({"train", "train.steps",
                      fmt::format("{} steps, but {} are done already", recipe_.train.steps, state_.step),
                      recipe_.where("train.steps"), fmt::format("use {} or more", state_.step)});
  }
  end_ = std::min(options.stop_after.value_or(recipe_.train.steps), recipe_.train.steps);
  if (options.stop_after && *options.stop_after <= state_.step) {
    throw UsageError({"train", "--stop-after",
                      fmt::format("{} steps, but {} are done already", *options.stop_after, state_.step),
                      folder_.string(), fmt::format("use {} or more", state_.step + 1)});
  }
  check_dump_steps();
  check_sample();
  train_step_ = std::make_unique<TrainStep>(state_.model(), state_.ddp(), state_.optimizer(), mesh_,
                                            TrainStep::Options{.seed = static_cast<uint64_t>(recipe_.train.seed),
                                                               .num_micro_batches = plan_.accumulation,
                                                               .clip_norm = recipe_.optimizer.clip_norm});
  if (is_first()) {
    Recipe here = recipe_;
    here.checkpoint.dir = folder_.string();  // so that this file with --resume means this run
    write_run_files(folder_, here, dataset_.tokenizer);
    log_ = std::make_unique<MetricsLog>(folder_, state_.step);
  }
}

void Run::check_dump_steps() const {
  for (const int64_t step : options_.dump_steps) {
    if (options_.dump_dir.empty() || (step >= state_.step && step < end_)) continue;
    throw UsageError({"train", "--dump-steps", fmt::format("step {} is not part of this run", step), "",
                      state_.step < end_ ? fmt::format("choose steps from {} to {}", state_.step, end_ - 1)
                                         : "the run is complete: leave --dump out"});
  }
}

/// What would end the run after its last step ends it before the first.
void Run::check_sample() const {
  if (recipe_.sample.tokens == 0 || dataset_.tokenizer.end_of_text()) return;
  if (dataset_.tokenizer.encode(recipe_.sample.prompt).empty()) {
    throw UsageError({"train", "sample.prompt", "is empty, and the tokenizer has no end-of-text token to begin with",
                      recipe_.where("sample.prompt"), "give some text, or sample.tokens = 0"});
  }
}

TrainBatch Run::batch(int64_t step) const {
  const int64_t first = mesh_["dp"].coord() * plan_.rows();
  TrainBatch batch = make_batch(dataset_.train, sampler_, step * recipe_.train.global_batch + first, plan_.rows());
  batch.first_row = first;
  batch.global_rows = recipe_.train.global_batch;
  batch.num_targets = recipe_.train.global_batch * recipe_.model.context;
  return batch;
}

StepMetrics Run::step() {
  const auto begin = Clock::now();
  const int64_t sent = mesh_.bytes_sent();
  const double waited = mesh_.wait_ms();
  const TrainBatch mine = batch(state_.step);
  TrainStep::Inspect inspect;
  if (!options_.dump_dir.empty() && options_.dump_steps.contains(state_.step)) {
    inspect = [&](const StepResult& result) {
      const TrainBatch whole =
          make_batch(dataset_.train, sampler_, state_.step * recipe_.train.global_batch, recipe_.train.global_batch);
      dump_step(options_.dump_dir, state_.step, state_, whole, result, mesh_);
    };
  }
  StepMetrics metrics;
  metrics.lr = state_.learning_rate().at(state_.step);
  const bool wish = options_.stop_requested && options_.stop_requested();
  const StepResult result = train_step_->run(mine, state_.step, metrics.lr, wish, inspect);
  ++state_.step;
  if (result.stop) end_ = state_.step;

  metrics.step = state_.step;
  metrics.loss = result.loss;
  metrics.grad_norm = result.grad_norm;
  metrics.step_ms = ms_since(begin);
  const auto tokens = static_cast<double>(mine.num_targets);
  metrics.tokens = state_.step * mine.num_targets;
  metrics.tokens_per_second = tokens / metrics.step_ms * 1e3;
  metrics.comm_ms = mesh_.wait_ms() - waited;
  metrics.bytes_sent = mesh_.bytes_sent() - sent;
  metrics.peak_memory_bytes = MemoryCounter::current().peak_bytes();
  metrics.model_flops_per_second =
      state_.model().config().flops_per_token(recipe_.model.context) * metrics.tokens_per_second;
  return metrics;
}

void Run::evaluate_into(StepMetrics& metrics) {
  observer().evaluating(state_.step);
  state_.ddp().refresh_compute_copies();
  const Evaluation result = evaluate(state_.model(), windows_, recipe_.model.context, plan_.micro_batch, mesh_["dp"]);
  metrics.val_loss = result.loss;
  metrics.val_bits_per_byte = result.bits_per_byte;
}

void Run::save() {
  const fs::path checkpoint = state_.save(folder_, recipe_.checkpoint.keep, sampler_);
  observer().saved(checkpoint);
}

/// By rank 0 alone: it holds the whole model.
void Run::sample() {
  if (!is_first() || recipe_.sample.tokens == 0) return;
  state_.ddp().refresh_compute_copies();
  observer().sampled(recipe_.sample.prompt);
  const SamplingOptions sampling{.temperature = recipe_.sample.temperature,
                                 .top_k = recipe_.sample.top_k,
                                 .top_p = recipe_.sample.top_p,
                                 .seed = static_cast<uint64_t>(recipe_.train.seed)};
  generate(state_.model(), dataset_.tokenizer, recipe_.sample.prompt, recipe_.sample.tokens, sampling,
           [&](std::string_view text) {
             observer().sampled(text);
             return true;
           });
}

void Run::go() {
  observer().started({.run = folder_,
                      .plan = plan_,
                      .backend = mesh_.world().backend(),
                      .num_parameters = state_.model().config().num_parameters(),
                      .vocabulary = dataset_.tokenizer.vocab_size(),
                      .train_tokens = dataset_.train.size(),
                      .first_step = state_.step,
                      .last_step = end_});
  const auto is_due = [](int64_t step, int64_t every) { return every > 0 && step % every == 0; };
  int64_t saved = options_.resume ? state_.step : -1;
  while (state_.step < end_) {
    StepMetrics metrics = step();
    const bool is_last = state_.step == recipe_.train.steps;
    const bool evaluates = is_last || is_due(state_.step, recipe_.train.eval_every);
    if (evaluates) evaluate_into(metrics);
    const bool is_logged = evaluates || state_.step == end_ || is_due(state_.step, recipe_.train.log_every);
    if (is_logged && log_) log_->write(metrics);
    observer().stepped(metrics, is_logged);
    if (state_.step == end_ || is_due(state_.step, recipe_.checkpoint.every)) {
      save();
      saved = state_.step;
    }
  }
  if (saved != state_.step) save();
  if (state_.step == recipe_.train.steps) return sample();
  if (!options_.stop_after || state_.step < *options_.stop_after) {
    throw Interrupted({"train", folder_.string(), fmt::format("stopped on request after step {}", state_.step),
                       "checkpoint " + checkpoint_name(state_.step), "go on with --resume"});
  }
}

}  // namespace

void train(const TrainOptions& options, const std::shared_ptr<Communicator>& world) { Run(options, world).go(); }

}  // namespace caravan
