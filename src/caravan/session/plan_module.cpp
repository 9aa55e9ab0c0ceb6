#include "caravan/session/plan_module.h"

#include <algorithm>
#include <ctime>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include "caravan/base/divisors.h"
#include "caravan/base/error.h"
#include "caravan/base/system/cache_folder.h"
#include "caravan/base/text.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/comm/calls/same.h"
#include "caravan/comm/tensor.h"
#include "caravan/cost/measured_job.h"
#include "caravan/module/count_kernel.h"
#include "caravan/nn/product/product.h"
#include "caravan/optim/optimizer.h"
#include "caravan/plan/plan_text.h"
#include "caravan/plan/sentences.h"
#include "caravan/session/plan_search.h"
#include "caravan/session/plan_tensor.h"
#include "caravan/session/trainable_parts.h"
#include "caravan/train/dataset/prepare.h"

namespace caravan {
namespace {

[[noreturn]] void refuse_plan(const std::string& subject, const std::string& fact, const std::string& action) {
  throw UsageError({"plan", subject, fact, "", action});
}

void check_sample(const StepData& sample) {
  if (!sample.loss) refuse_plan("loss", "is no function", "give StepData a loss");
  for (const auto& [name, tensor] : {std::pair("x", &sample.x), std::pair("y", &sample.y)}) {
    if (tensor->defined() && tensor->dim() > 0 && tensor->size(0) > 0) continue;
    refuse_plan(fmt::format("sample.{}", name), "has no rows", "give the whole batch of a step, cut at dim 0");
  }
  if (sample.x.size(0) == sample.y.size(0)) return;
  refuse_plan("sample", fmt::format("has {} rows of x and {} of y", sample.x.size(0), sample.y.size(0)),
              "give the whole batch of a step, cut at dim 0");
}

/// "aten::nonzero", if torch's message names an operator.
std::string operator_in(const std::string& message) {
  const size_t begin = message.find("aten::");
  if (begin == std::string::npos) return "";
  const size_t end = message.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_:.", begin);
  return std::string(message.substr(begin, end == std::string::npos ? end : end - begin));
}

[[noreturn]] void refuse_operation(const c10::Error& error) {
  const std::string message = error.what_without_backtrace();
  const std::string name = operator_in(message);
  const std::string first = message.substr(0, message.find('\n'));
  refuse_plan(name.empty() ? "the step" : name,
              name.empty() ? "cannot run on tensors without values: " + first
                           : "cannot run on tensors without values, by which a step is planned",
              "keep what depends on values (item(), nonzero, masks that choose rows) out of the net and the loss");
}

[[noreturn]] void rethrow_of_step(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& of_torch) {
    refuse_operation(of_torch);
  }
}

/// A step of one process without techniques and optimizer.
StepTimeline step_of_one(const Trainable& net, const StepData& sample, const PlanOptions& options,
                         const KeptTensors& kept) {
  ParallelOptions one = options.parallel;
  one.micro_batches = 1;
  const std::vector<Technique> none;
  const MakeOptimizer no_optimizer;
  const RehearsedWorld world{.axes = {{"dp", 1}}};
  try {
    const auto step = rehearse_module({net, none, no_optimizer, one, sample, sample.x.size(0)}, kept, world, {0});
    if (step.front().peak.total() == 0) {
      refuse_plan("memory", "is not counted in this process", "make a Session first, or a Runtime");
    }
    return step.front().timeline;
  } catch (const c10::Error& error) {
    kept.restore();
    refuse_operation(error);
  }
}

std::string dtype_of(const torch::nn::Module& module, const std::vector<Technique>& fixed) {
  for (const Technique& technique : fixed) {
    const auto* precision = std::get_if<PrecisionChoice>(&technique);
    if (precision != nullptr) return precision->compute;
  }
  return dtype_name_of(module.parameters().front().scalar_type());
}

const Setting* offload_in(const std::vector<Technique>& fixed) {
  for (const Technique& technique : fixed) {
    const auto* setting = std::get_if<Setting>(&technique);
    if (setting != nullptr && setting->family().name == "offload") return setting;
  }
  return nullptr;
}

std::string subject_of(const torch::nn::Module& module, const LayoutLimits& limits, const PlannedStep& step) {
  double parameters = 0;
  for (const at::Tensor& parameter : module.parameters()) parameters += static_cast<double>(parameter.numel());
  return hardware_text(step.hardware, limits.ranks) +
         fmt::format("{:<10}{} parameters in {} unit{}, {} rows a step, {}\n", "net", format_count(parameters),
                     limits.num_units, limits.num_units == 1 ? "" : "s", limits.rows, step.work.dtype);
}

std::vector<ComparedLayout> compared_layouts(const std::vector<FoundLayout>& all, const LayoutSpace& space) {
  std::vector<ComparedLayout> compared;
  for (const FoundLayout& one : all) compared.push_back({one.text, one.prediction, space.features(one.layout)});
  return compared;
}

/// What is planned, checked.
struct Planned {
  torch::nn::Module& module;
  LayoutLimits limits;
  StepTimeline step{};  ///< of one process
  UnitRepeats repeats{};
};

void check_rows(const LayoutSpace& space) {
  if (!space.tensor_sizes().empty()) return;
  const LayoutLimits& limits = space.limits();
  refuse_plan("sample",
              fmt::format("{} rows cannot be dealt evenly to {} ranks{}", limits.rows, limits.ranks,
                          limits.num_units > 1 ? ", whether some are stages or none" : ""),
              fmt::format("use {} rows, or another number of ranks", multiples_near(limits.rows, limits.ranks)));
}

/// Throws UsageError before anything is sent. Hardware may still be measured, for `ranks` of a session.
Planned checked(const Trainable& net, const StepData& sample, const PlanOptions& options, int ranks,
                const KeptTensors& kept, torch::nn::Module& module) {
  const Mesh alone = Mesh::create(make_record_world(0, 1), {{"dp", 1}});
  TrainableParts::check_free(net, alone);
  const std::vector<TrainableParts::UnitFacts> units = TrainableParts::units(net, alone);
  Planned planned{.module = module,
                  .limits = {.ranks = ranks,
                             .rows = sample.x.size(0),
                             .num_units = static_cast<int64_t>(units.size()),
                             .fixed = options.fixed}};
  if (!options.splits_layers || options.optimizer.takes_whole()) check_rows(LayoutSpace(planned.limits));
  planned.step = step_of_one(net, sample, options, kept);
  if (units.size() > 1) planned.repeats = find_repeats(units, planned.step);
  return planned;
}

/// Whether time is up on some rank.
std::function<bool()> clock_of(double seconds, Communicator* world) {
  const auto end = std::clock() + static_cast<std::clock_t>(seconds * CLOCKS_PER_SEC);
  return [=] {
    const bool is_over = std::clock() > end;
    if (world == nullptr) return is_over;
    const at::Tensor late = at::full({1}, is_over ? 1.0F : 0.0F);
    all_reduce_async(*world, late, late, ReduceOp::sum, "time").wait();
    return late.item<float>() > 0;
  };
}

bool has_tensor(const std::vector<Technique>& techniques) {
  return std::ranges::any_of(techniques, [](const auto& one) { return std::holds_alternative<TensorChoice>(one); });
}

CandidateOptions candidate_options(const PlanOptions& options) {
  return {.names = options.names, .extents = options.extents};
}

ModulePlan search_plan(const Trainable& net, const StepData& sample, const PlanOptions& options,
                       const Hardware& hardware, Planned planned, const KeptTensors& kept, Communicator* world) {
  const auto is_over = clock_of(options.seconds, world), is_third_over = clock_of(options.seconds / 3, world);
  MakeOptimizer optimizer = options.optimizer;
  if (!optimizer.is_given()) optimizer = [](FlatState& state) { return std::make_unique<AdamW>(state); };
  // The memory of a processor's host is that of its ranks. An optimizer of torch::optim steps on the device.
  planned.limits.offloads_activations = !hardware.device_of(0).is_processor;
  planned.limits.offloads_state = planned.limits.offloads_activations && !optimizer.is_of_torch();
  PlannedStep step{net, sample, optimizer, options.parallel, hardware, {}, planned.repeats};
  step.work = {.rows = static_cast<double>(planned.limits.rows),
               .flops = planned.step.flops(),
               .dtype = dtype_of(planned.module, options.fixed)};
  if (const Setting* offload = offload_in(options.fixed)) {
    step.work.budget_bytes = parse_bytes(offload->text("device_budget")).value_or(0);
    step.work.is_update_delayed = offload->flag("delayed_update");
  }
  bool is_complete = true;
  if (options.splits_layers && !optimizer.takes_whole() && !has_tensor(options.fixed)) {
    FoundTensors tensors = find_tensors(step, planned.limits, candidate_options(options), kept, is_third_over);
    planned.limits.tensors = std::move(tensors.by_size);
    is_complete = tensors.is_complete;
  }
  const LayoutSpace space(planned.limits);
  check_rows(space);
  const LayoutPredictor predictor(step, space, kept);
  const FoundLayouts found = search_step_layouts(space, predictor, is_over, options.most_rows);
  if (found.best.empty()) {
    if (found.why_not != nullptr) rethrow_of_step(found.why_not);
    refuse_plan("seconds", fmt::format("{} are not enough for one layout", options.seconds), "give more");
  }
  ModulePlan plan{.subject = subject_of(planned.module, planned.limits, step),
                  .num_estimated = found.estimated.size(),
                  .is_complete = is_complete && found.is_complete,
                  .advice = sentences_of(compared_layouts(found.best, space), compared_layouts(found.estimated, space),
                                         space.feature_names(), planned.limits.ranks)};
  const std::vector<int> stages = space.stages();
  if (stages.empty()) {
    plan.advice.push_back(
        fmt::format("{} rows cannot be dealt evenly to {} ranks: layouts with tensor parallelism alone "
                    "are left",
                    planned.limits.rows, planned.limits.ranks));
  } else if (stages.front() > 1 && space.tensor_sizes().back() == 1 &&
             planned.limits.rows % planned.limits.ranks != 0) {
    plan.advice.push_back(fmt::format("{} rows cannot be dealt evenly to {} ranks: layouts of {} stages alone are left",
                                      planned.limits.rows, planned.limits.ranks, fmt::join(stages, " or ")));
  }
  for (const FoundLayout& one : found.best) {
    ParallelOptions parallel = options.parallel;
    parallel.micro_batches = one.layout.micro_batches;
    plan.best.push_back({one.text, one.layout.dp, one.layout.pp, one.layout.tp, space.techniques(one.layout), parallel,
                         one.prediction});
  }
  return plan;
}

void check_options(const PlanOptions& options) {
  if (!(options.seconds > 0)) refuse_plan("seconds", fmt::format("is {}", options.seconds), "give a time above 0");
  if (options.most_rows == 0) refuse_plan("most_rows", "is 0", "list at least one");
  if (options.ranks < 0) refuse_plan("ranks", fmt::format("is {}", options.ranks), "give 1 or more");
  std::set<std::string_view> families;
  for (const Technique& technique : options.fixed) {
    const auto* setting = std::get_if<Setting>(&technique);
    std::string_view family = setting == nullptr ? "precision" : setting->family().name;
    if (std::holds_alternative<TensorChoice>(technique)) family = "tensor";
    if (!families.insert(family).second) refuse_plan(std::string(family), "is fixed twice", "leave one of them out");
  }
  if (options.hardware.hosts.empty() || options.ranks <= options.hardware.num_devices()) return;
  refuse_plan("ranks",
              fmt::format("{} do not fit {} device{}", options.ranks, options.hardware.num_devices(),
                          options.hardware.num_devices() == 1 ? "" : "s"),
              "plan for fewer, or describe more hosts");
}

/// What the ranks of the session are, on every one of them.
Hardware measured_ranks(const Session& session, const std::string& dtype) {
  MeasureLimits limits{.dtypes = {"fp32"}};
  if (dtype == "bf16") limits.dtypes.emplace_back(dtype);
  const JobHardware measured =
      job_hardware(session.world(), {.host = host_name(), .threads = session.threads(), .choices = products_in_use()},
                   cache_folder(), limits);
  const std::string text = session.rank() == 0 ? to_toml(measured.hardware) : "";
  return parse_hardware(broadcast_text(session.world(), text, 0, "measured hardware"), "the measured hardware");
}

/// Throws what `check` throws on every rank, so that none waits for others that have given up.
void check_on_all_ranks(const Session& session, const std::function<void()>& check) {
  if (session.size() == 1) return check();
  all_or_none(session.world(), check, "plan");
}

std::string text_of(const ParallelOptions& options) {
  return fmt::format("average {}, find_unused_parameters {}, static_graph {}, has_static_shapes {}, buffers {}",
                     options.average, options.find_unused_parameters, options.static_graph, options.has_static_shapes,
                     static_cast<int>(options.buffers));
}

/// Before ranks search together: they must go the same ways.
void check_same_plan(const Session& session, const StepData& sample, const PlanOptions& options,
                     const torch::nn::Module& module) {
  std::vector<std::string> parameters, techniques;
  for (const auto& item : module.named_parameters()) {
    parameters.push_back(fmt::format("{} {} [{}]", item.key(), dtype_name_of(item.value().scalar_type()),
                                     fmt::join(item.value().sizes(), ", ")));
  }
  for (const Technique& technique : options.fixed) techniques.push_back(to_code(technique));
  check_same_on_all_ranks(session.world(), "plan",
                          {{"the parameters", join(parameters)},
                           {"the shape of x", fmt::format("{}", fmt::join(sample.x.sizes(), ", "))},
                           {"the shape of y", fmt::format("{}", fmt::join(sample.y.sizes(), ", "))},
                           {"the dtype of x", dtype_name_of(sample.x.scalar_type())},
                           {"fixed", join(techniques)},
                           {"splits_layers", options.splits_layers ? "true" : "false"},
                           {"names", to_code(tensor(options.names, {}, options.extents))},
                           {"the optimizer", options.optimizer.takes_whole()   ? "of whole parameters"
                                             : options.optimizer.is_of_torch() ? "of torch"
                                                                               : "of this library"},
                           {"parallel", text_of(options.parallel)},
                           {"ranks", fmt::format("{}", options.ranks)},
                           {"most_rows", fmt::format("{}", options.most_rows)},
                           {"hardware", options.hardware.hosts.empty() ? "" : to_toml(options.hardware)}});
}

}  // namespace

std::string PlannedModule::to_code() const {
  std::vector<std::string> made;
  for (const Technique& technique : techniques) made.push_back(caravan::to_code(technique));
  std::vector<std::string> members;
  const ParallelOptions usual;
  const auto add = [&](bool is_other, const std::string& member) {
    if (is_other) members.push_back(member);
  };
  add(options.micro_batches != usual.micro_batches, fmt::format(".micro_batches = {}", options.micro_batches));
  add(options.average, ".average = true");
  add(options.find_unused_parameters, ".find_unused_parameters = true");
  add(!options.static_graph, ".static_graph = false");
  add(!options.has_static_shapes, ".has_static_shapes = false");
  std::vector<std::string> axes;
  if (pp > 1) axes.push_back(fmt::format(".pp = {}", pp));
  if (tp > 1) axes.push_back(fmt::format(".tp = {}", tp));
  const std::string session = axes.empty() ? "Session session;" : fmt::format("Session session({{{}}});", join(axes));
  return fmt::format("{}\nauto model = parallelize(net, session, {{{}}}{});", session, join(made),
                     members.empty() ? "" : fmt::format(", {{{}}}", join(members)));
}

std::string ModulePlan::to_string() const {
  std::string text = subject;
  text += fmt::format("{:<10}{} estimated{}\n\n", "layouts", num_estimated,
                      is_complete ? "" : ", not all for lack of time: PlanOptions::seconds");
  std::vector<PlanRow> rows;
  for (const PlannedModule& one : best) rows.push_back({one.text, one.prediction});
  text += rows_text(rows) + "\n";
  for (const std::string& sentence : advice) text += fmt::format("- {}\n", sentence);
  if (fits()) text += "\n" + best.front().to_code() + "\n";
  return text;
}

ModulePlan plan(const Trainable& net, const Session& session, const StepData& sample, PlanOptions options) {
  const bool is_measured = options.hardware.hosts.empty();
  torch::nn::Module* module = nullptr;
  check_on_all_ranks(session, [&] {
    module = &TrainableParts::module_of(net, "plan", "use `caravan plan`");
    check_options(options);
    check_sample(sample);
    if (!is_measured || options.ranks <= session.size()) return;
    refuse_plan("ranks", fmt::format("{} are planned, and the session has {}", options.ranks, session.size()),
                "give the hardware, or plan for fewer");
  });
  check_same_plan(session, sample, options, *module);
  if (options.ranks == 0) {
    options.ranks = is_measured ? session.size() : static_cast<int>(options.hardware.num_devices());
  }
  const KeptTensors kept(*module);
  std::optional<Planned> planned;
  check_on_all_ranks(session, [&] { planned.emplace(checked(net, sample, options, options.ranks, kept, *module)); });
  if (is_measured) options.hardware = measured_ranks(session, dtype_of(*module, options.fixed));
  return search_plan(net, sample, options, options.hardware, std::move(*planned), kept,
                     session.size() > 1 ? &session.world() : nullptr);
}

ModulePlan plan(const Trainable& net, const StepData& sample, const PlanOptions& options) {
  torch::nn::Module& module = TrainableParts::module_of(net, "plan", "use `caravan plan`");
  check_options(options);
  check_sample(sample);
  if (options.hardware.hosts.empty()) {
    refuse_plan("hardware", "is not given",
                "set PlanOptions::hardware by read_hardware(file) or preset_hardware({.device = ..}) with one of " +
                    join(hardware_presets()) + "; or pass a Session, whose ranks are measured");
  }
  const int ranks = options.ranks != 0 ? options.ranks : static_cast<int>(options.hardware.num_devices());
  const KeptTensors kept(module);
  Planned planned = checked(net, sample, options, ranks, kept, module);
  return search_plan(net, sample, options, options.hardware, std::move(planned), kept, nullptr);
}

}  // namespace caravan
