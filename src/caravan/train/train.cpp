#include "caravan/train/train.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/content_hash.h"
#include "caravan/base/error.h"
#include "caravan/base/memory/memory_counter.h"
#include "caravan/base/system/file.h"
#include "caravan/base/time.h"
#include "caravan/comm/backends/peer_failure.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/comm/flight/dump.h"
#include "caravan/formats/checkpoint/publish.h"
#include "caravan/recipe/init_from.h"
#include "caravan/report/metric_files.h"
#include "caravan/train/agreement.h"
#include "caravan/train/balance/run_balance.h"
#include "caravan/train/dataset/task_dataset.h"
#include "caravan/train/evaluation/evaluate.h"
#include "caravan/train/evaluation/sample.h"
#include "caravan/train/evaluation/validate.h"
#include "caravan/train/folder/dump.h"
#include "caravan/train/folder/expert_load.h"
#include "caravan/train/folder/run_saves.h"
#include "caravan/train/folder/run_state.h"
#include "caravan/train/folder/run_trace.h"
#include "caravan/train/folder/step_line.h"
#include "caravan/train/model/offload_choice.h"
#include "caravan/train/model/parameter_groups.h"
#include "caravan/train/model/reference_model.h"
#include "caravan/train/numerics.h"
#include "caravan/train/place.h"
#include "caravan/train/run_checks.h"
#include "caravan/train/run_setup.h"
#include "caravan/train/watch/layer_norms.h"
#include "caravan/train/watch/run_watch.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

bool is_due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

class Run {
 public:
  Run(const TrainOptions& options, const std::shared_ptr<Communicator>& world);
  void go();

 private:
  bool is_first() const { return mesh_.rank() == 0; }
  MemoryPlan resolve_memory(Communicator& world);
  void inspect(const StepResult& result);
  void watch(StepMetrics& metrics);
  StepMetrics advance();
  void evaluate_into(StepMetrics& metrics);
  void await_data();
  void go_on();
  void step_on();
  void make_up();
  void sample();
  bool evaluates_after(int64_t step) const {
    return step == recipe_.train.steps || is_due(step, recipe_.train.eval_every);
  }
  bool has_sample(int64_t step) const;
  void stop();
  void compare_with_plan();
  void open_logs();
  void open_metric_files();
  void alone(const std::function<void()>& work) const;
  void announce(const ModelConfig& model);
  void resume();
  void start_from(InitSource source);
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
  RowSettings row_settings_;
  std::unique_ptr<const TaskRows> train_rows_;
  std::unique_ptr<const ValidationRows> validation_rows_;
  MemoryPlan memory_;
  BatchPlan plan_;
  RunBalance balance_;
  std::unique_ptr<RunState> state_;
  std::unique_ptr<ReferenceModel> reference_;  ///< null: none
  std::unique_ptr<Stepper> stepper_;
  RunWatch watch_;
  std::optional<LayerNormsOfStep> layers_{};  ///< with log.tensors
  std::unique_ptr<MetricsLog> log_;
  std::unique_ptr<MetricFiles> files_;  ///< null: none
  std::unique_ptr<RunSaves> saves_;
  int64_t end_ = 0;
  bool is_stopped_ = false;  ///< on request, in an evaluation or a sample
  std::optional<int64_t> state_bytes_{};
  std::vector<double> step_ms_;  ///< of all steps, with a plan
  bool has_predicted_ = false;   ///< a log line already has the predicted kinds
};

Run::Run(const TrainOptions& options, const std::shared_ptr<Communicator>& world)
    : options_(options),
      recipe_(recipe_to_keep(options)),
      mesh_(agreed_mesh(options, world)),
      trace_(options.trace_file.empty() ? nullptr
                                        : std::make_unique<RunTrace>(options.trace_file, options.trace_steps, mesh_)),
      observer_(options.observer != nullptr ? options.observer : &silent_),
      place_(options.resumes() ? share_place(options, *world) : Place{}),
      numerics_(agree_on_numerics(*world, recipe_.comm.threads_per_rank, place_.numerics, place_.notes)),
      dataset_((keep_defaults(recipe_, place_), agreed_dataset(options, mesh_))),
      row_settings_((fit_classes(recipe_, dataset_), row_settings(options.recipe, place_.checkpoint))),
      train_rows_(train_rows(dataset_, recipe_.data, row_settings_, recipe_.train.seed)),
      validation_rows_(validation_rows(dataset_, recipe_.data, row_settings_)),
      memory_(resolve_memory(*world)),
      plan_(plan_batch(recipe_, world->size())),
      balance_(recipe_, plan_, mesh_),
      watch_(mesh_, recipe_.optimizer.skip_spikes == 0) {
  balance_.fit_memory(memory_, recipe_, dataset_.tokenizer.vocab_size(), *world);
  const ModelConfig model = model_config(recipe_, dataset_.tokenizer);
  check_groups(recipe_, model);
  check_targets(*validation_rows_, recipe_.train.eval_batches * recipe_.train.global_batch);
  // Creates a new folder only now: a failure above leaves none.
  if (!options.resumes()) {
    Place place = share_place(options, *world);
    place.notes.insert(place.notes.end(), place_.notes.begin(), place_.notes.end());
    place_ = std::move(place);
  }
  check_threads(recipe_, numerics_);
  recipe_.checkpoint.dir = place_.folder.string();  // so that this recipe with --resume means this run
  dump_flights_on_failure(*world, place_.folder);
  announce(model);
  MemoryCounter::current().set_budget(device_budget(recipe_));
  state_ = std::make_unique<RunState>(recipe_, dataset_.tokenizer, mesh_, origin_of(dataset_, numerics_));
  stepper_ = make_stepper(*state_, recipe_, plan_.accumulation);
  if (StateOwner* own = stepper_->state()) state_->add(*own);
  if (options.resumes()) {
    resume();
  } else if (!options.recipe.train.init_from.empty()) {
    start_from(init_source(options.recipe));
  } else if (recipe_.model.lora.is_used()) {
    place_.notes.push_back("the weights under the adapters are random, and stay so: train.init_from gives others");
  }
  if (recipe_.data.task.has_preferences()) {
    reference_ = std::make_unique<ReferenceModel>(recipe_, dataset_.tokenizer, state_->engine(), mesh_);
    place_.notes.push_back("compares answers with " + reference_->to_string());
  }
  for (std::string& line : balance_.notes()) place_.notes.push_back(std::move(line));
  if (const std::string text = offload_text(recipe_, memory_.own); !text.empty()) place_.notes.push_back(text);
  for (std::string& line : chunk_lines(memory_.own.chunks)) place_.notes.push_back(std::move(line));
  if (const auto& tiers = state_->engine().strategy().tiers; tiers != nullptr) {
    for (std::string& note : tiers->notes()) place_.notes.push_back(std::move(note));
  }
  end_ = checked_end(options_, recipe_, state_->step, place_.folder);
  check_dump(options_, recipe_, state_->model().config(), mesh_.size(), {state_->step, end_});
  if (trace_) trace_->choose_steps(state_->step, end_);
  if (state_->model().config().continues_texts()) check_sample(recipe_, dataset_.tokenizer);
  stepper_->start_at(state_->step, state_->clocks);
  state_->clocks = stepper_->clocks();
  if (recipe_.log.tensors > 0) layers_.emplace(state_->engine());
  if (layers_ || !options_.dump_dir.empty()) stepper_->set_inspect([this](const StepResult& of) { inspect(of); });
  on_rank_0(
      *world, [this] { open_logs(); }, "run folder");
  saves_ = std::make_unique<RunSaves>(place_.folder, recipe_, *state_, *train_rows_, *world, observer());
  if (options.resumes()) saves_->resumed();
}

/// What is offloaded, and how many sequences are computed at once.
MemoryPlan Run::resolve_memory(Communicator& world) {
  const int64_t vocabulary = dataset_.tokenizer.vocab_size();
  resolve_offload(recipe_, vocabulary, world);
  MemoryPlan plan = resolve_micro_batch(recipe_, vocabulary, world, place_.micro_batch);
  resolve_chunks(recipe_, plan, vocabulary, world);
  check_budget(recipe_, plan, vocabulary, world);
  return plan;
}

/// The files of the run folder beside its checkpoints.
void Run::open_logs() {
  for (const fs::path& later :
       abandon_later_checkpoints(place_.folder, options_.resumes() ? state_->step : INT64_MAX)) {
    place_.notes.push_back(
        fmt::format("a later checkpoint is now {}: remove it if you do not need it", shown(later).string()));
  }
  write_run_files(place_.folder, recipe_, dataset_.tokenizer);
  if (!options_.resumes() && options_.recipe.train.init_from.empty()) {
    write_text_files(place_.folder, tokenizer_files(recipe_), dataset_.tokenizer, recipe_.model);
  }
  if (options_.plan) write_plan(place_.folder, *options_.plan);
  log_ = std::make_unique<MetricsLog>(place_.folder, state_->step);
  watch_.resume(place_.folder / "train.log");
  log_->write_changes(state_->step, state_->changed_keys());
  balance_.open(place_.folder, state_->step);
  open_metric_files();
}

void Run::open_metric_files() {
  const MetricFiles::Options files{.csv = recipe_.log.csv, .tensorboard = recipe_.log.tensorboard};
  if (files.any()) files_ = std::make_unique<MetricFiles>(place_.folder, files);
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
  state_->load(place_.checkpoint, *train_rows_);
  const MappedFile manifest(place_.checkpoint / "manifest.json", "checkpoint");
  refuse_different_data(find_disagreement(
      mesh_.world(), {{place_.checkpoint.filename().string(), content_hash(manifest.bytes()).hex()}}, "checkpoint"));
  balance_.resume(place_.folder, state_->step);
  for (const ChangedKey& key : state_->changed_keys()) place_.notes.push_back(key.to_string());
}

void Run::start_from(InitSource source) {
  source.keeps_head =
      dataset_.class_names == source.tokens.classes || dataset_.class_names == classes_of_records(source.tokens);
  const std::vector<std::string> left = state_->start_from(source);
  for (std::string& note : source_notes(source, left, dataset_, recipe_.data)) place_.notes.push_back(std::move(note));
  recipe_.data.tokenizer = (place_.folder / "tokenizer.json").string();  // the run's own copy
  const auto write = [&] {
    write_text_files(place_.folder, with_own_template(read_text_files(source.text), recipe_), dataset_.tokenizer,
                     recipe_.model);
  };
  on_rank_0(mesh_.world(), write, "text settings");
}

/// In a step, before its update.
void Run::inspect(const StepResult& result) {
  if (layers_ && is_due(state_->step + 1, recipe_.log.tensors)) layers_->before_update(result.loss_scale);
  if (options_.dump_dir.empty() || !options_.dump_steps.contains(state_->step)) return;
  const int64_t rows = recipe_.train.global_batch;
  dump_step(options_.dump_dir, state_->step, *state_, make_batch(*train_rows_, state_->step * rows, rows), result);
}

/// Takes the next steps, up to where all ranks have done the same. Returns their log line.
StepMetrics Run::advance() {
  const auto begin = Clock::now();
  const int64_t sent = mesh_.bytes_sent() + stepper_->bytes_sent();
  const double waited = mesh_.wait_ms() + stepper_->wait_ms();
  const auto batch_of = [this](int64_t step) {
    TrainBatch batch = [&] {
      const auto timed = watch_.data();
      return make_rank_batch(state_->engine(), *train_rows_, step, recipe_.train.global_batch, balance_.deal(step));
    }();
    if (reference_) reference_->score(batch, plan_.accumulation);
    return batch;
  };
  const StepReport report = stepper_->advance(next_due(recipe_, state_->step, end_), batch_of, options_.stop_requested);
  state_->step = stepper_->step();
  state_->clocks = stepper_->clocks();
  if (report.stop) end_ = state_->step;
  const auto steps = static_cast<double>(report.own_steps);
  StepMetrics metrics =
      step_line(report,
                {.step_ms = ms_since(begin) / steps,
                 .comm_ms = (mesh_.wait_ms() + stepper_->wait_ms() - waited) / steps,
                 .bytes_sent = (mesh_.bytes_sent() + stepper_->bytes_sent() - sent) / report.own_steps},
                *state_, memory_, train_rows_->shape());
  if (layers_ && is_due(state_->step, recipe_.log.tensors)) {
    state_->optimizer().finish();
    metrics.layers = layers_->after_update();
  }
  if (balance_.stepped(state_->step, metrics.step_ms - metrics.comm_ms)) {
    alone([&] { balance_.write(state_->step); });
  }
  return metrics;
}

/// Adds to the line of a step what is unusual about it.
void Run::watch(StepMetrics& metrics) {
  watch_.stepped(metrics);
  if (!is_first()) return;
  const char* skipped = recipe_.optimizer.skip_spikes > 0 ? " is skipped" : "";
  if (!metrics.spike.empty()) observer().warned(fmt::format("step {}{}: {}", state_->step, skipped, metrics.spike));
  if (!metrics.slowdown.empty()) observer().warned(fmt::format("step {}: {}", state_->step, metrics.slowdown));
}

/// Ends the run after this step; what is still due is done when it is resumed.
void Run::stop() {
  is_stopped_ = true;
  end_ = state_->step;
}

/// If stopped on request, the metrics get no validation loss.
void Run::evaluate_into(StepMetrics& metrics) {
  observer().evaluating(state_->step);
  const auto timed = watch_.rest();
  const ValidationOptions how{
      .rows = plan_.micro_batch,
      .num_classes = static_cast<int64_t>(dataset_.class_names.size()),
      .reference = reference_.get(),
      .stop_requested = options_.stop_requested,
      .progress = [this](int64_t done, int64_t total) { observer().evaluation_progress(done, total); }};
  if (!validate(*state_, recipe_, *validation_rows_, how, metrics)) stop();
}

/// With data.streaming: waits for the text of the steps that begin in the next advance(). If the text is bad, or a stop
/// is requested meanwhile, the steps since the last checkpoint, which are valid, are saved first.
void Run::await_data() {
  const auto timed = watch_.data();
  const int64_t rows = recipe_.train.global_batch;
  const int64_t end = stepper_->end_of_begun(next_due(recipe_, state_->step, end_));
  try {
    prepare_samples(*dataset_.streamed->texts, *train_rows_, state_->step * rows, end * rows, mesh_.world(),
                    joint_work(options_));
  } catch (const Error& error) {
    const bool has_peers = dynamic_cast<const CommError*>(&error) == nullptr;
    const bool is_echo = dynamic_cast<const PeerFailure*>(&error) != nullptr;
    if (state_->step > 0 && saves_->saved_step() != state_->step && (has_peers || is_echo)) saves_->save();
    if (has_peers || is_echo) saves_->finish();
    throw;
  }
}

void Run::write_trace() {
  if (trace_ && trace_->write()) observer().traced(trace_->file());
}

/// Work of rank 0 between two exchanges. If it fails, the others learn why in their next call.
void Run::alone(const std::function<void()>& work) const {
  if (!is_first()) return;
  try {
    work();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    mesh_.world().abort(text.substr(0, text.find('\n')));
    throw;
  }
}

bool Run::has_sample(int64_t step) const {
  const int64_t every = recipe_.sample.every;
  if (!state_->model().config().continues_texts()) return false;
  return recipe_.sample.tokens > 0 && (step == recipe_.train.steps || is_due(step, every));
}

/// An interrupted text is not logged.
void Run::sample() {
  const auto timed = watch_.rest();
  const auto show = [this](std::string_view text) {
    if (is_first()) observer().sampled(text);
  };
  const std::optional<std::string> sampled = sample_text(*state_, recipe_, options_.stop_requested, show);
  if (!sampled) return stop();
  alone([&] { log_->write_sample(state_->step, *sampled); });
}

/// Repeats an evaluation or a sample of the last step that a stop interrupted, so that the log is that of an
/// uninterrupted run. A rank that was killed after its last save may not have marked it as the best.
void Run::make_up() {
  if (state_->step == 0) return;
  std::array<double, 3> known{0, 0, 0};  // whether the log has a validation loss, its value, whether it has the sample
  const auto look = [&] {
    const std::optional<double> loss = log_->last_validation();
    known = {loss ? 1.0 : 0.0, loss.value_or(0), log_->has_last_sample() ? 1.0 : 0.0};
  };
  on_rank_0(mesh_.world(), look, "logs");
  mesh_.world().broadcast({known.data(), static_cast<int64_t>(known.size()), Dtype::fp64}, 0, "logs");
  StepMetrics metrics{.step = state_->step};
  if (known[0] != 0) metrics.val_loss = known[1];
  if (known[0] == 0 && evaluates_after(state_->step)) {
    evaluate_into(metrics);
    if (is_stopped_) return;
    saves_->require_finite(*metrics.val_loss);
    const auto add = [&] {
      log_->add_evaluation(metrics);
      open_metric_files();
    };
    on_rank_0(mesh_.world(), add, "logs");
    observer().made_up(metrics);
  }
  if (saves_->improves(metrics)) saves_->mark_best();
  if (known[2] == 0 && has_sample(state_->step)) sample();
}

void Run::compare_with_plan() {
  if (!options_.plan || step_ms_.empty()) return;
  int64_t peak_bytes = MemoryCounter::current().peak_bytes();
  take_maxima(mesh_.world(), {&peak_bytes, 1}, "peak memory");
  const PlanComparison comparison(*options_.plan, std::move(step_ms_), peak_bytes);
  alone([&] { log_->write_comparison(state_->step, comparison); });
  if (is_first()) observer().compared(comparison);
}

void Run::go() {
  try {
    go_on();
  } catch (const NumericsError&) {  // the state being saved is valid
    if (stepper_->fails_together()) saves_->finish();
    throw;
  }
}

void Run::go_on() {
  const int64_t first = state_->step;
  if (dataset_.streamed && first < end_) await_data();  // its first parts have notes
  for (std::string& note : start_notes({recipe_, options_, mesh_, dataset_, *train_rows_, first})) {
    place_.notes.push_back(std::move(note));
  }
  observer().started({.first_step = first,
                      .last_step = end_,
                      .notes = place_.notes,
                      .dtypes = state_->dtypes(),
                      .stages = state_->stages(),
                      .state = state_->trained().bytes()});
  if (options_.resumes()) make_up();
  while (state_->step < end_) step_on();
  if (saves_->saved_step() != state_->step) saves_->save();
  saves_->finish();
  compare_with_plan();
  write_trace();  // of an earlier stopped run
  const bool is_complete = state_->step == recipe_.train.steps;
  const bool is_new = state_->step > first || !options_.resumes();
  if (is_complete && !is_stopped_ && is_new && has_sample(state_->step)) sample();
  if (is_complete && !is_stopped_) return;
  if (is_stopped_ || !options_.stop_after || state_->step < *options_.stop_after) {
    throw Interrupted({"train", shown(place_.folder).string(),
                       fmt::format("stopped on request after step {}", state_->step),
                       "checkpoint " + checkpoint_name(state_->step), "continue with --resume"});
  }
}

/// The next steps, and what is due after them.
void Run::step_on() {
  const int64_t before = state_->step;
  if (dataset_.streamed) await_data();
  {
    const auto timed = watch_.saves();
    saves_->poll();
  }
  if (trace_) trace_->begin(before, stepper_->steps_at_once());
  StepMetrics metrics = advance();
  watch(metrics);
  if (options_.plan) step_ms_.push_back(metrics.step_ms);
  if (trace_) trace_->end(state_->step);
  if (trace_ && trace_->is_over()) write_trace();
  const bool evaluates = evaluates_after(state_->step);
  const bool is_logged = evaluates || state_->step == end_ ||
                         before / recipe_.train.log_every < state_->step / recipe_.train.log_every ||
                         !metrics.layers.empty();
  if (is_logged && reference_) metrics.rewards = reference_->take_rewards();  // before an evaluation adds others
  if (evaluates) evaluate_into(metrics);
  if (is_logged) metrics.experts = take_expert_load(state_->engine());
  if (is_logged) metrics.save_ms = saves_->take_ms();
  // Counted once, since a walk over the state waits for the host's step. After the first step the state is complete.
  if (is_logged && !state_bytes_) state_bytes_ = state_->trained().bytes().state();
  if (is_logged) metrics.state_bytes = *state_bytes_;
  if (is_logged && !std::exchange(has_predicted_, true)) metrics.predicted = memory_.own.peak;
  if (is_logged) {
    alone([&] {
      log_->write(metrics);
      if (files_) files_->write(parse_metrics_line(metrics.to_json()));
    });
  }
  observer().stepped(metrics, is_logged);
  if (metrics.val_loss) saves_->require_finite(*metrics.val_loss);
  if (state_->step < recipe_.train.steps && !is_stopped_ && has_sample(state_->step)) {
    saves_->require_finite_state();
    sample();
  }
  const bool is_best = saves_->improves(metrics);
  const auto timed = watch_.saves();
  if (is_best || state_->step == end_ || is_due(state_->step, recipe_.checkpoint.every)) saves_->save(is_best);
}

}  // namespace

void train(const TrainOptions& options, const std::shared_ptr<Communicator>& world) { Run(options, world).go(); }

}  // namespace caravan
