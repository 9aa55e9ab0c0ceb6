#include "caravan/train/train.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/content_hash.h"
#include "caravan/base/error.h"
#include "caravan/base/file.h"
#include "caravan/base/memory_counter.h"
#include "caravan/base/time.h"
#include "caravan/checkpoint/background_save.h"
#include "caravan/checkpoint/publish.h"
#include "caravan/comm/agree.h"
#include "caravan/comm/flight/dump.h"
#include "caravan/comm/peer_failure.h"
#include "caravan/generate/generate.h"
#include "caravan/report/metric_files.h"
#include "caravan/train/agreement.h"
#include "caravan/train/async_run.h"
#include "caravan/train/best_checkpoint.h"
#include "caravan/train/dump.h"
#include "caravan/train/evaluate.h"
#include "caravan/train/expert_load.h"
#include "caravan/train/init_from.h"
#include "caravan/train/numerics.h"
#include "caravan/train/place.h"
#include "caravan/train/run_checks.h"
#include "caravan/train/run_state.h"
#include "caravan/train/run_trace.h"
#include "caravan/train/step.h"
#include "caravan/train/window_run.h"

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
  StepMetrics steps_to_drain();
  StepMetrics steps_of_window();
  StepMetrics metrics_since(Clock::time_point begin, int64_t sent, double waited, int64_t tokens) const;
  int64_t bytes_sent() const { return mesh_.bytes_sent() + (async_ ? async_->trainer().bytes_sent() : 0); }
  double wait_ms() const { return mesh_.wait_ms() + (async_ ? async_->trainer().wait_ms() : 0); }
  void evaluate_into(StepMetrics& metrics);
  void await_data();
  void save(bool is_best = false);
  void go_on();
  void published(const SavedCheckpoint& saved, bool is_best);
  void poll_save();
  void finish_save();
  void sample();
  void announce(const ModelConfig& model);
  void resume();
  void start_from(const InitSource& source);
  void take_notes();
  void write_trace();
  TrainObserver& observer() const { return *observer_; }

  const TrainOptions& options_;
  Recipe recipe_;  ///< as the run keeps it
  Mesh mesh_;
  std::unique_ptr<RunTrace> trace_;  ///< null: none
  TrainObserver silent_;
  TrainObserver* observer_;
  Place place_;
  Numerics numerics_;
  Dataset dataset_;
  TrainWindows train_windows_;
  ValidationWindows windows_;
  MemoryPlan memory_;
  BatchPlan plan_;
  std::unique_ptr<RunState> state_;
  StateBytes planned_;  ///< of state_, by formula
  std::unique_ptr<TrainStep> train_step_;
  std::unique_ptr<AsyncRun> async_;    ///< instead, where ranks do not wait for each other
  std::unique_ptr<WindowRun> window_;  ///< instead, where stages of a pipeline do not
  std::unique_ptr<MetricsLog> log_;
  std::optional<BestCheckpoint> best_;          ///< with checkpoint.keep_best
  std::unique_ptr<BackgroundSave> background_;  ///< with checkpoint.async
  bool is_best_ = false;                        ///< what is being saved in the background
  double save_ms_ = 0;                          ///< since the last line of the log
  int64_t saved_step_ = -1;                     ///< of the last save
  std::unique_ptr<MetricFiles> files_;          ///< null: none
  int64_t end_ = 0;
  bool is_stopped_ = false;  ///< on request, in an evaluation
};

/// How ranks wait for each other's data.
JointWork joint_work(const TrainOptions& options) {
  // Several beats fit into the time that a rank waits for its peers.
  const auto quarter = std::chrono::milliseconds(static_cast<int64_t>(options.recipe.comm.timeout_s * 1e3 / 4));
  JointWork work{.beat = std::clamp(quarter, std::chrono::milliseconds(1), std::chrono::milliseconds(100)),
                 .stop_requested = options.stop_requested};
  if (TrainObserver* observer = options.observer) {
    work.progress = [observer](const DataProgress& progress) { observer->preparing(progress); };
  }
  return work;
}

/// The mesh of ranks that were all given the same: everything after this may rely on it.
Mesh agreed_mesh(const TrainOptions& options, const std::shared_ptr<Communicator>& world) {
  refuse_different_start(find_disagreement(*world, start_facts(options.recipe, options), "recipe and options"));
  plan_batch(options.recipe, world->size());  // before the data is prepared
  return Mesh::create(world, mesh_axes(options.recipe, world->size()));
}

Dataset agreed_dataset(const TrainOptions& options, const Mesh& mesh) {
  Dataset dataset = prepare_dataset(options.recipe.data, options.folders, mesh.world(), joint_work(options));
  check_same_data(mesh.world(), dataset);
  return dataset;
}

RunOrigin origin_of(const Dataset& dataset, const Numerics& numerics) {
  return {.train_hash = dataset.train_hash().hex(),
          .validation_hash = dataset.validation.tokens.info().content.hex(),
          .numerics = numerics};
}

Run::Run(const TrainOptions& options, const std::shared_ptr<Communicator>& world)
    : options_(options),
      recipe_(recipe_to_keep(options)),
      mesh_(agreed_mesh(options, world)),
      trace_(options.trace_file.empty()
                 ? nullptr
                 : std::make_unique<RunTrace>(options.trace_file, options.trace_steps, steps_at_once(recipe_), mesh_)),
      observer_(options.observer != nullptr ? options.observer : &silent_),
      place_(options.resumes() ? share_place(options, *world) : Place{}),
      numerics_(agree_on_numerics(*world, recipe_.comm.threads_per_rank, place_.numerics, place_.notes)),
      dataset_(agreed_dataset(options, mesh_)),
      train_windows_(dataset_.train_windows(recipe_.model.context, recipe_.train.seed)),
      windows_(dataset_.validation_windows(recipe_.model.context)),
      memory_(resolve_micro_batch(recipe_, dataset_.tokenizer.vocab_size(), *world, place_.micro_batch)),
      plan_(plan_batch(recipe_, world->size())) {
  const ModelConfig model = model_config(recipe_, dataset_.tokenizer);
  // A new folder only now: what fails above leaves none.
  if (!options.resumes()) {
    Place place = share_place(options, *world);
    place.notes.insert(place.notes.end(), place_.notes.begin(), place_.notes.end());
    place_ = std::move(place);
  }
  check_threads(recipe_, numerics_);
  recipe_.checkpoint.dir = place_.folder.string();  // so that this recipe with --resume means this run
  dump_flights_on_failure(*world, place_.folder);
  announce(model);
  state_ = std::make_unique<RunState>(recipe_, dataset_.tokenizer, mesh_, origin_of(dataset_, numerics_));
  planned_ = state_bytes(state_of(memory_.shape));
  if (options.resumes()) {
    resume();
  } else if (!options.recipe.train.init_from.empty()) {
    start_from(init_source(options.recipe));
  } else if (recipe_.model.lora.is_used()) {
    place_.notes.push_back("only adapters are trained, of random weights: train.init_from gives others");
  }
  end_ = checked_end(options_, recipe_, state_->step, place_.folder);
  take_notes();
  check_dump(options_, recipe_, state_->model().config(), mesh_.size(), {state_->step, end_});
  if (trace_) trace_->choose_steps(state_->step, end_);
  check_sample(recipe_, dataset_.tokenizer);
  if (recipe_.data_parallel.is_asynchronous() && mesh_.size() > 1) {
    async_ = std::make_unique<AsyncRun>(*state_, recipe_, plan_.accumulation);
  } else if (recipe_.pipeline.has_windows()) {
    window_ = std::make_unique<WindowRun>(*state_, recipe_, plan_.accumulation);
  } else {
    state_->clocks.clear();
    train_step_ = std::make_unique<TrainStep>(state_->engine(), state_->optimizer(),
                                              TrainStep::Options{.seed = static_cast<uint64_t>(recipe_.train.seed),
                                                                 .num_micro_batches = plan_.accumulation,
                                                                 .clip_norm = recipe_.optimizer.clip_norm,
                                                                 .loss_scale = state_->loss_scale()});
  }
  if (is_first()) {
    for (const fs::path& later :
         abandon_later_checkpoints(place_.folder, options.resumes() ? state_->step : INT64_MAX)) {
      place_.notes.push_back(
          fmt::format("a later checkpoint is now {}: remove it if you do not need it", shown(later).string()));
    }
    write_run_files(place_.folder, recipe_, dataset_.tokenizer);
    log_ = std::make_unique<MetricsLog>(place_.folder, state_->step);
    log_->write_changes(state_->step, state_->changed_keys());
    const MetricFiles::Options files{.csv = recipe_.log.csv, .tensorboard = recipe_.log.tensorboard};
    if (files.any()) files_ = std::make_unique<MetricFiles>(place_.folder, files);
  }
  if (recipe_.checkpoint.keep_best) best_.emplace(place_.folder, mesh_.world());
  if (recipe_.checkpoint.async) background_ = std::make_unique<BackgroundSave>(mesh_.world());
}

void Run::announce(const ModelConfig& model) {
  observer().planned({.run = shown(place_.folder),
                      .batch = plan_,
                      .memory = memory_,
                      .backend = mesh_.world().backend(),
                      .mesh = split_text(recipe_, plan_.dp),
                      .order = order_text(recipe_, plan_.dp),
                      .num_parameters = model.num_parameters(),
                      .vocabulary = dataset_.tokenizer.vocab_size(),
                      .train_tokens = dataset_.num_train_tokens(),
                      .first_step = options_.resumes() ? step_of(place_.checkpoint) : 0,
                      .numerics = numerics_});
}

void Run::resume() {
  state_->load(place_.checkpoint, train_windows_);
  const MappedFile manifest(place_.checkpoint / "manifest.json", "checkpoint");
  refuse_different_data(find_disagreement(
      mesh_.world(), {{place_.checkpoint.filename().string(), content_hash(manifest.bytes()).hex()}}, "checkpoint"));
  for (const ChangedKey& key : state_->changed_keys()) {
    place_.notes.push_back(fmt::format("{} is {}, before the resume it was {}", key.name, key.now, key.before));
  }
}

void Run::start_from(const InitSource& source) {
  state_->start_from(source);
  recipe_.data.tokenizer = (place_.folder / "tokenizer.json").string();  // the run's own copy
  place_.notes.push_back("starts with the weights of " + shown(source.folder).string());
  if (!is_first()) return;
  write_text_files(place_.folder, read_text_files(source.text), dataset_.tokenizer, recipe_.model.context);
}

void Run::take_notes() {
  for (std::string& note : recipe_notes(recipe_)) place_.notes.push_back(std::move(note));
  for (std::string& note : dataset_notes(dataset_, train_windows_, recipe_)) place_.notes.push_back(std::move(note));
  const bool has_peers = (recipe_.data_parallel.has_residual() ? mesh_["dp"].size() : mesh_.size()) > 1;
  if (!has_peers && recipe_.data_parallel.hook != "none") {
    place_.notes.push_back(
        fmt::format("data_parallel.hook = \"{}\" has no effect on an axis dp of one rank, which reduces nothing; "
                    "what ranks of an earlier part left out is not added",
                    recipe_.data_parallel.hook));
  }
  const int64_t steps = recipe_.train.steps;
  if (options_.resumes() && state_->step == steps) {
    place_.notes.push_back(
        fmt::format("the run is complete (step {} of {}); to go on: --resume --set train.steps=M with M above {}",
                    steps, steps, steps));
  }
}

TrainBatch Run::batch(int64_t step) const { return make_rank_batch(state_->engine(), recipe_, train_windows_, step); }

/// `tokens`: of all ranks since `begin`.
StepMetrics Run::metrics_since(Clock::time_point begin, int64_t sent, double waited, int64_t tokens) const {
  StepMetrics metrics;
  metrics.step = state_->step;
  metrics.step_ms = ms_since(begin);
  metrics.tokens_per_second = static_cast<double>(tokens) / metrics.step_ms * 1e3;
  metrics.comm_ms = wait_ms() - waited;
  metrics.bytes_sent = bytes_sent() - sent;
  metrics.peak_memory_bytes = MemoryCounter::current().peak_bytes();
  metrics.state_bytes = static_cast<int64_t>(state_->bytes().at_rest());
  metrics.planned_state_bytes = static_cast<int64_t>(planned_.at_rest());
  metrics.time = utc_text(now_seconds());
  const std::string host = host_name();
  metrics.host = host.substr(0, host.find(' '));
  metrics.model_flops_per_second =
      state_->model().config().flops_per_token(recipe_.model.context) * metrics.tokens_per_second;
  return metrics;
}

StepMetrics Run::step() {
  const auto begin = Clock::now();
  const int64_t sent = bytes_sent();
  const double waited = wait_ms();
  const TrainBatch mine = batch(state_->step);
  TrainStep::Inspect inspect;
  if (!options_.dump_dir.empty() && options_.dump_steps.contains(state_->step)) {
    inspect = [&](const StepResult& result) {
      const TrainBatch whole =
          make_batch(train_windows_, state_->step * recipe_.train.global_batch, recipe_.train.global_batch);
      dump_step(options_.dump_dir, state_->step, *state_, whole, result);
    };
  }
  const double lr = state_->learning_rate().at(state_->step);
  const bool stop_requested = options_.stop_requested && options_.stop_requested();
  const StepResult result = train_step_->run(mine, state_->step, lr, stop_requested, inspect);
  ++state_->step;
  if (result.stop) end_ = state_->step;
  const int64_t tokens = recipe_.train.global_batch * recipe_.model.context;
  StepMetrics metrics = metrics_since(begin, sent, waited, tokens);
  metrics.loss = result.loss;
  metrics.grad_norm = result.grad_norm;
  metrics.lr = lr;
  for (const double waited_ms : result.waits_ms) metrics.bubble.push_back(waited_ms / metrics.step_ms);
  if (LossScale* scale = state_->loss_scale()) {
    metrics.loss_scale = result.loss_scale;
    metrics.skipped_steps = scale->num_skipped();
  }
  metrics.tokens = state_->step * tokens;
  return metrics;
}

StepMetrics Run::steps_to_drain() {
  const auto begin = Clock::now();
  const int64_t sent = bytes_sent();
  const double waited = wait_ms();
  const auto own = static_cast<size_t>(mesh_.rank());
  const int64_t before = state_->clocks[own];
  const int64_t pushes = state_->optimizer().num_steps();
  const DrainReport report = async_->run(
      end_, [this](int64_t step) { return batch(step); }, options_.stop_requested);
  if (report.stop) end_ = state_->step;
  const int64_t tokens = plan_.rows() * recipe_.model.context;  // of a worker's step
  StepMetrics metrics = metrics_since(begin, sent, waited, (state_->optimizer().num_steps() - pushes) * tokens);
  const int64_t steps = std::max<int64_t>(report.clocks[own] - before, 1);
  metrics.step_ms /= static_cast<double>(steps);
  metrics.comm_ms /= static_cast<double>(steps);
  metrics.bytes_sent /= steps;
  metrics.loss = report.loss;
  metrics.grad_norm = report.grad_norm;
  metrics.lr = state_->learning_rate().at(std::max<int64_t>(state_->step - 1, 0));
  metrics.tokens = report.pushes() * tokens;
  metrics.drain = report;
  return metrics;
}

StepMetrics Run::steps_of_window() {
  const auto begin = Clock::now();
  const int64_t sent = bytes_sent();
  const double waited = wait_ms();
  const bool stop_requested = options_.stop_requested && options_.stop_requested();
  const WindowReport report = window_->run(
      end_, [this](int64_t step) { return batch(step); }, stop_requested);
  if (report.stop) end_ = state_->step;
  const int64_t tokens = recipe_.train.global_batch * recipe_.model.context;
  StepMetrics metrics = metrics_since(begin, sent, waited, report.num_steps * tokens);
  metrics.step_ms /= static_cast<double>(report.num_steps);
  metrics.comm_ms /= static_cast<double>(report.num_steps);
  metrics.bytes_sent /= report.num_steps;
  metrics.loss = report.loss;
  metrics.grad_norm = report.grad_norm;
  metrics.lr = state_->learning_rate().at(state_->step - 1);
  metrics.tokens = state_->step * tokens;
  return metrics;
}

/// Stopped on request: the metrics get no validation loss, and the run ends after this step.
void Run::evaluate_into(StepMetrics& metrics) {
  observer().evaluating(state_->step);
  const std::optional<Evaluation> result =
      evaluate(state_->engine(), windows_,
               {.rows = plan_.micro_batch,
                .max_windows = recipe_.train.eval_batches * recipe_.train.global_batch,
                .stop_requested = options_.stop_requested,
                .progress = [this](int64_t done, int64_t total) { observer().evaluation_progress(done, total); }});
  if (!result) {
    is_stopped_ = true;
    end_ = state_->step;
    return;
  }
  metrics.val_loss = result->loss;
  metrics.val_bits_per_byte = result->bits_per_byte;
}

/// With data.streaming: waits for the text of the steps that begin before the next drain. If there is none, or a stop
/// is requested meanwhile, the steps since the last checkpoint are saved first: nothing is wrong with them.
void Run::await_data() {
  const int64_t rows = recipe_.train.global_batch;
  const int64_t end = end_of_drained_steps(recipe_, state_->step, end_);
  try {
    prepare_samples(*dataset_.streamed->texts, train_windows_, state_->step * rows, end * rows, mesh_.world(),
                    joint_work(options_));
  } catch (const Error& error) {
    const bool has_peers = dynamic_cast<const CommError*>(&error) == nullptr;
    const bool is_echo = dynamic_cast<const PeerFailure*>(&error) != nullptr;
    if (state_->step > 0 && saved_step_ != state_->step && (has_peers || is_echo)) save();
    if (has_peers || is_echo) finish_save();
    throw;
  }
}

void Run::save(bool is_best) {
  const auto begin = Clock::now();
  saved_step_ = state_->step;
  if (background_) {
    finish_save();
    background_->begin(place_.folder, state_->info(train_windows_), state_->pieces());
    is_best_ = is_best;
  } else {
    published(state_->save(place_.folder, recipe_.checkpoint.keep, train_windows_), is_best);
  }
  save_ms_ += ms_since(begin);
}

void Run::published(const SavedCheckpoint& saved, bool is_best) {
  observer().saved(shown(saved.folder));
  if (!saved.warning.empty()) observer().warned(saved.warning);
  if (is_best && is_first()) best_->mark(step_of(saved.folder));
  if (background_ && is_first()) background_->prune(place_.folder, recipe_.checkpoint.keep);
}

/// Waits for a save in the background.
void Run::finish_save() {
  if (background_ && background_->is_running()) published(background_->finish(), is_best_);
}

/// Between steps: publishes a save that has ended meanwhile.
void Run::poll_save() {
  if (!background_ || !background_->is_running()) return;
  const auto begin = Clock::now();
  if (const auto saved = background_->poll()) published(*saved, is_best_);
  save_ms_ += ms_since(begin);
}

void Run::write_trace() {
  if (trace_ && trace_->write()) observer().traced(trace_->file());
}

/// Every rank takes part in the forward passes. The first that holds the logits samples, and tells the others; rank 0
/// shows the text.
void Run::sample() {
  if (recipe_.sample.tokens == 0) return;
  std::string sampled = recipe_.sample.prompt;
  if (is_first()) observer().sampled(sampled);
  const SamplingOptions sampling{.temperature = recipe_.sample.temperature,
                                 .top_k = recipe_.sample.top_k,
                                 .top_p = recipe_.sample.top_p,
                                 .seed = static_cast<uint64_t>(recipe_.train.seed)};
  generate(TextModel(state_->engine()), dataset_.tokenizer, recipe_.sample.prompt, recipe_.sample.tokens, sampling,
           [&](std::string_view text) {
             if (is_first()) observer().sampled(text);
             sampled += text;
             return !options_.stop_requested || !options_.stop_requested();
           });
  if (log_) log_->write_sample(state_->step, sampled);
}

void Run::go() {
  try {
    go_on();
  } catch (const NumericsError&) {  // of the same step on every rank: nothing is wrong with what is being saved
    if (!async_) finish_save();
    throw;
  }
}

void Run::go_on() {
  observer().started({.first_step = state_->step,
                      .last_step = end_,
                      .notes = place_.notes,
                      .dtypes = state_->dtypes(),
                      .stages = state_->stages(),
                      .state = state_->bytes(),
                      .planned_state = planned_});
  const auto is_due = [](int64_t step, int64_t every) { return every > 0 && step % every == 0; };
  if (options_.resumes()) saved_step_ = state_->step;
  while (state_->step < end_) {
    const int64_t before = state_->step;
    if (dataset_.streamed) await_data();
    poll_save();
    if (trace_) trace_->begin(before);
    StepMetrics metrics = async_ ? steps_to_drain() : window_ ? steps_of_window() : step();
    if (trace_) trace_->end(state_->step);
    if (trace_ && trace_->is_over()) write_trace();
    const bool is_last = state_->step == recipe_.train.steps;
    const bool evaluates = is_last || is_due(state_->step, recipe_.train.eval_every);
    if (evaluates) evaluate_into(metrics);
    const bool is_logged =
        evaluates || state_->step == end_ || before / recipe_.train.log_every < state_->step / recipe_.train.log_every;
    if (is_logged) metrics.experts = take_expert_load(state_->engine());
    if (is_logged) metrics.save_ms = std::exchange(save_ms_, 0);
    if (is_logged && log_) log_->write(metrics);
    if (is_logged && files_) files_->write(parse_metrics_line(metrics.to_json()));
    observer().stepped(metrics, is_logged);
    if (!is_last && !is_stopped_ && is_due(state_->step, recipe_.sample.every)) sample();
    const bool is_best = best_ && best_->improves(metrics);
    if (is_best || state_->step == end_ || is_due(state_->step, recipe_.checkpoint.every)) {
      save(is_best);
    }
  }
  if (saved_step_ != state_->step) save();
  finish_save();
  write_trace();  // of a run that has stopped before
  if (state_->step == recipe_.train.steps && !is_stopped_) return sample();
  if (is_stopped_ || !options_.stop_after || state_->step < *options_.stop_after) {
    throw Interrupted({"train", shown(place_.folder).string(),
                       fmt::format("stopped on request after step {}", state_->step),
                       "checkpoint " + checkpoint_name(state_->step), "continue with --resume"});
  }
}

}  // namespace

void train(const TrainOptions& options, const std::shared_ptr<Communicator>& world) { Run(options, world).go(); }

}  // namespace caravan
