#include "caravan/schedule/pipeline_choice.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "caravan/base/text.h"
#include "caravan/registry/registry.h"
#include "caravan/schedule/pipeline_schedule.h"

namespace caravan {
namespace {

/// Why a custom table does not fit.
std::optional<Misfit> misfit_of_table(const PipelineOrder& order, int64_t degree, int64_t num_micro_batches) {
  if (static_cast<int64_t>(order.ranks.size()) != degree) {
    return Misfit{"pipeline.schedule", fmt::format("the table has {} ranks, mesh.pp is {}", order.ranks.size(), degree),
                  fmt::format("use mesh.pp = {}", order.ranks.size())};
  }
  int64_t count = 0;
  for (const Pass& pass : order.ranks.front()) count = std::max<int64_t>(count, pass.micro_batch + 1);
  if (num_micro_batches == 0 || count == num_micro_batches) return std::nullopt;
  return Misfit{"pipeline.schedule",
                fmt::format("the table has {} micro-batches, and the step {}", count, num_micro_batches),
                fmt::format("use pipeline.micro_batches = {}", count)};
}

/// The schedules with this number of stages on each rank.
std::string schedules_of(int64_t stages) {
  std::vector<std::string> names;
  for (const Entry& entry : entries_of("pipeline")) {
    const PipelineSchedule& schedule = schedule_of({.schedule = {"pipeline", entry.name}});
    if (schedule.least_stages <= stages && stages <= schedule.most_stages) names.push_back(entry.name);
  }
  return "use pipeline.schedule = \"" + join(names, "\" or \"") + "\"";
}

std::optional<Misfit> misfit_of_stages(const PipelineChoice& choice) {
  const PipelineSchedule& schedule = schedule_of(choice);
  const int64_t chunks = choice.chunks();
  if (schedule.least_stages <= chunks && chunks <= schedule.most_stages) return std::nullopt;
  const bool has_one = schedule.most_stages == 1;
  return Misfit{
      has_one ? "pipeline.schedule" : "pipeline.stages_per_rank",
      fmt::format("{} has {} stage{} on each rank, not {}", choice.name(),
                  schedule.most_stages == kAnyStages ? fmt::format("{} or more", schedule.least_stages)
                                                     : std::to_string(schedule.least_stages),
                  has_one ? "" : "s", chunks),
      has_one ? schedules_of(chunks) : fmt::format("use pipeline.stages_per_rank = {}", schedule.least_stages)};
}

/// Choices with at most as many stages as layers.
std::string fewer_stages(const PipelineChoice& choice, int64_t layers) {
  const int64_t fewer_each = layers / choice.degree;
  const bool has_any = !choice.is_file() && schedule_of(choice).most_stages == kAnyStages;
  if (has_any && fewer_each >= schedule_of(choice).least_stages) {
    return fmt::format("use pipeline.stages_per_rank = {}", fewer_each);
  }
  const int64_t fewer_ranks = layers / choice.chunks();
  if (choice.is_file() || fewer_ranks < 2) return "use a model of more layers";
  return fmt::format("use mesh.pp = {}", fewer_ranks);
}

}  // namespace

const std::vector<std::string>& pipeline_cuts() {
  static const std::vector<std::string> names{"flops", "layers", "measured"};
  return names;
}

std::vector<int64_t> even_layers(int64_t layers, int64_t stages) {
  std::vector<int64_t> counts(static_cast<size_t>(stages), layers / stages);
  const int64_t more = layers % stages;
  for (int64_t i = 0; i < more; ++i) ++counts[static_cast<size_t>((stages - more) / 2 + i)];
  return counts;
}

std::string PipelineChoice::cut() const {
  const auto* name = std::get_if<std::string>(&schedule.value("cut"));
  return name == nullptr ? "" : *name;
}

std::vector<int64_t> PipelineChoice::layers() const {
  const auto* by_hand = std::get_if<std::vector<int64_t>>(&schedule.value("cut"));
  return by_hand == nullptr ? std::vector<int64_t>{} : *by_hand;
}

bool PipelineChoice::is_asynchronous() const { return schedule_of(*this).updates != PipelineSchedule::Updates::none; }

int64_t PipelineChoice::chunks() const {
  return stages_per_rank() > 0 ? stages_per_rank() : schedule_of(*this).least_stages;
}

std::optional<Misfit> PipelineChoice::misfit(const ModelConfig& model, int64_t num_micro_batches) const {
  int64_t stages = 0;
  if (is_file()) {
    const PipelineOrder order = pipeline_order(*this, 1);
    stages = order.num_stages();
    if (auto misfit = misfit_of_table(order, degree, num_micro_batches)) return misfit;
    if (stages_per_rank() > 0 && stages_per_rank() * degree != stages) {
      return Misfit{"pipeline.stages_per_rank",
                    fmt::format("is {}, but the table has {} stages on {} ranks", stages_per_rank(), stages, degree),
                    "leave it out"};
    }
  } else {
    stages = num_stages();
    if (auto misfit = misfit_of_stages(*this)) return misfit;
  }
  if (stages > model.layers) {
    return Misfit{stages_per_rank() > 1 ? "pipeline.stages_per_rank" : "mesh.pp",
                  fmt::format("{} stages for {} layers: each has one at least", stages, model.layers),
                  fewer_stages(*this, model.layers)};
  }
  if (const std::vector<int64_t> by_hand = layers(); !by_hand.empty()) {
    const int64_t sum = std::accumulate(by_hand.begin(), by_hand.end(), int64_t{0});
    const bool has_empty = std::ranges::any_of(by_hand, [](int64_t n) { return n < 1; });
    if (static_cast<int64_t>(by_hand.size()) != stages || sum != model.layers || has_empty) {
      return Misfit{"pipeline.cut",
                    fmt::format("[{}] does not give {} stages one or more of {} layers each", join(by_hand), stages,
                                model.layers),
                    fmt::format("use [{}]", join(even_layers(model.layers, stages)))};
    }
  }
  if (num_micro_batches == 0 || is_file()) return std::nullopt;
  return schedule_of(*this).misfit_of_micro_batches(*this, num_micro_batches);
}

}  // namespace caravan
