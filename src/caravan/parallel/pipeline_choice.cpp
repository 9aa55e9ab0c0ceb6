#include "caravan/parallel/pipeline_choice.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "caravan/base/text.h"
#include "caravan/parallel/pipeline_schedule.h"

namespace caravan {
namespace {

/// What is wrong with a table of its own.
std::string misfit_of_table(const PipelineOrder& order, int64_t degree, int64_t num_micro_batches) {
  if (static_cast<int64_t>(order.ranks.size()) != degree) {
    return fmt::format("the table of pipeline.schedule has {} ranks, mesh.pp is {}; use mesh.pp = {}",
                       order.ranks.size(), degree, order.ranks.size());
  }
  int64_t count = 0;
  for (const Pass& pass : order.ranks.front()) count = std::max<int64_t>(count, pass.micro_batch + 1);
  if (num_micro_batches == 0 || count == num_micro_batches) return "";
  return fmt::format(
      "the table of pipeline.schedule has {} micro-batches, and the step {}; use "
      "pipeline.micro_batches = {}",
      count, num_micro_batches, count);
}

/// What has at most as many stages as there are layers.
std::string fewer_stages(const PipelineChoice& choice, int64_t layers) {
  const int64_t fewer_each = layers / choice.degree;
  if (choice.schedule == "interleaved" && fewer_each >= 2) {
    return fmt::format("use pipeline.stages_per_rank = {}", fewer_each);
  }
  const int64_t fewer_ranks = layers / choice.chunks();
  if (choice.is_file() || fewer_ranks < 2) return "use a model of more layers";
  return fmt::format("use mesh.pp = {}", fewer_ranks);
}

}  // namespace

const std::vector<std::string>& pipeline_schedules() {
  static const std::vector<std::string> names{"1f1b",  "gpipe", "naive",     "interleaved",  "zb-h1",
                                              "zb-h2", "zb-v",  "pipedream", "pipedream-2bw"};
  return names;
}

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

std::string PipelineChoice::wrong_with(const ModelConfig& model, int64_t num_micro_batches) const {
  int64_t stages = num_stages();
  if (is_file()) {
    const PipelineOrder order = pipeline_order(*this, 1);
    stages = order.num_stages();
    if (std::string wrong = misfit_of_table(order, degree, num_micro_batches); !wrong.empty()) return wrong;
  } else if (schedule == "interleaved" && chunks() < 2) {
    return "interleaved needs 2 or more stages on each rank; use pipeline.stages_per_rank = 2";
  } else if (schedule == "zb-v" && chunks() != 2) {
    return "zb-v needs 2 stages on each rank; use pipeline.stages_per_rank = 2";
  } else if (schedule != "interleaved" && schedule != "zb-v" && chunks() != 1) {
    return fmt::format("{} has one stage on each rank, not {}; use pipeline.schedule = \"interleaved\"", schedule,
                       chunks());
  }
  if (stages > model.layers) {
    return fmt::format("{} stages for {} layers: each has one at least; {}", stages, model.layers,
                       fewer_stages(*this, model.layers));
  }
  if (!layers.empty()) {
    const int64_t sum = std::accumulate(layers.begin(), layers.end(), int64_t{0});
    const bool has_empty = std::find_if(layers.begin(), layers.end(), [](int64_t n) { return n < 1; }) != layers.end();
    if (static_cast<int64_t>(layers.size()) != stages || sum != model.layers || has_empty) {
      return fmt::format("pipeline.cut = [{}] does not give {} stages one or more of {} layers each; use [{}]",
                         join(layers), stages, model.layers, join(even_layers(model.layers, stages)));
    }
  }
  if (num_micro_batches == 0) return "";
  if (schedule == "interleaved" && num_micro_batches % degree != 0) {
    return fmt::format("interleaved: {} micro-batches are not a multiple of the {} ranks of mesh.pp", num_micro_batches,
                       degree);
  }
  if (schedule == "pipedream" && num_micro_batches != 1) {
    return fmt::format(
        "pipedream takes each batch whole, not in {} micro-batches; use pipeline.micro_batches = 1, or "
        "\"pipedream-2bw\"",
        num_micro_batches);
  }
  if (schedule == "pipedream-2bw" && num_micro_batches < degree) {
    return fmt::format("pipedream-2bw: {} micro-batches are fewer than the {} ranks of mesh.pp", num_micro_batches,
                       degree);
  }
  return "";
}

}  // namespace caravan
