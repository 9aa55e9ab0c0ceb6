#include "caravan/session/module_rehearsal.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/optim/optimizer.h"
#include "caravan/session/trainable_parts.h"

namespace caravan {
namespace {

std::vector<AxisSize> axes_of(const PlannedRanks& ranks) {
  const std::vector<AxisSize> axes = ordered_axes(ranks.dp, ranks.pp, ranks.ep, ranks.cp, ranks.tp);
  for (const auto& [name, size] : axes) {
    if (size >= 1) continue;
    throw UsageError({"rehearse", name, fmt::format("{} is not a number of ranks", size), "", "use 1 or more"});
  }
  return used_axes(axes);
}

at::Tensor rows_on_meta(const at::Tensor& of, int64_t rows) {
  std::vector<int64_t> sizes = of.sizes().vec();
  if (!sizes.empty()) sizes[0] = rows;
  return at::empty(sizes, of.options().device(at::kMeta));
}

}  // namespace

KeptTensors::KeptTensors(torch::nn::Module& net) : net_(net) {
  for (const at::Tensor& parameter : net.parameters()) kept_.emplace_back(parameter, parameter.detach());
  for (const at::Tensor& buffer : net.buffers()) kept_.emplace_back(buffer, buffer.detach());
}

KeptTensors::~KeptTensors() { restore(); }

void KeptTensors::restore() const {
  for (const auto& [tensor, values] : kept_) {
    tensor.unsafeGetTensorImpl()->shallow_copy_from(values.getIntrusivePtr());
    tensor.mutable_grad() = at::Tensor();
  }
}

void KeptTensors::take_away() const {
  restore();
  to_meta(net_);
}

std::vector<Rehearsal> rehearse_module(const ModuleStep& step, const KeptTensors& kept, RehearsedWorld world,
                                       const std::vector<int>& ranks) {
  const at::Tensor x = rows_on_meta(step.sample.x, step.rows), y = rows_on_meta(step.sample.y, step.rows);
  std::vector<Rehearsal> all;
  for (const int rank : ranks) {  // earlier stages tell what they send
    kept.take_away();
    world.rank = rank;
    all.push_back(rehearse(world, [&](const Mesh& mesh) {
      const auto model = std::make_shared<ParallelModel>(step.net, mesh, step.techniques, step.options, at::kMeta);
      const MemoryKindScope kind(MemoryKind::optimizer);
      const std::function<void()> update = step.optimizer.update_of(*model);
      return RehearsedSteps{.step = [=, &step] {
        model->step(x, y, step.sample.loss);
        if (!update) return;
        const MemoryKindScope of_optimizer(MemoryKind::optimizer);
        update();
      }};
    }));
  }
  kept.restore();
  return all;
}

std::function<void()> MakeOptimizer::update_of(ParallelModel& model) const {
  if (own_) return [own = std::shared_ptr<Optimizer>(own_(model.engine().state()))] { own->step(1e-3); };
  if (!of_torch_) return {};
  const std::shared_ptr<torch::optim::Optimizer> own =
      of_torch_(takes_whole_ ? model.whole_parameters() : model.parameters());
  if (!takes_whole_) return [own] { own->step(); };
  return [own, &model] { model.update_whole([&] { own->step(); }); };
}

Rehearsal rehearse(const Trainable& net, const PlannedRanks& ranks, const std::vector<Technique>& techniques,
                   const StepData& rows, const MakeOptimizer& optimizer, ParallelOptions options) {
  torch::nn::Module& module = TrainableParts::module_of(net, "rehearse", "use `caravan inspect`, or cost/rehearsal.h");
  if (!rows.loss) throw UsageError({"rehearse", "loss", "is no function", "", "give StepData a loss"});
  const Mesh alone = Mesh::create(make_record_world(0, 1), {{"dp", 1}});
  TrainableParts::check_free(net, alone);
  const RehearsedWorld world{.axes = axes_of(ranks), .ranks_per_host = ranks.ranks_per_host};
  int64_t size = 1;
  for (const AxisSize& axis : world.axes) size *= axis.size;
  if (size > INT32_MAX) throw UsageError({"rehearse", "ranks", fmt::format("{} are too many", size), "", "plan fewer"});
  if (ranks.rank < 0 || ranks.rank >= size) {
    throw UsageError(
        {"rehearse", "rank", fmt::format("there is no rank {} of {}", ranks.rank, size), "", "name one of them"});
  }
  const auto stage = static_cast<int>(size / ranks.pp);  // ranks of one
  std::vector<int> of_stages;
  for (int rank = ranks.rank % stage; rank <= ranks.rank; rank += stage) of_stages.push_back(rank);
  const KeptTensors kept(module);
  const int64_t own = rows.x.dim() == 0 ? 0 : rows.x.size(0);
  return rehearse_module({net, techniques, optimizer, options, rows, own}, kept, world, of_stages).back();
}

std::string inspect(const Trainable& net, PlannedRanks ranks, const std::vector<Technique>& techniques,
                    const StepData& rows, const MakeOptimizer& optimizer, const ParallelOptions& options) {
  axes_of(ranks);
  const int of_stage = ranks.dp * ranks.ep * ranks.cp * ranks.tp;
  std::string text;
  for (int stage = 0; stage < ranks.pp; ++stage) {
    ranks.rank = stage * of_stage;
    const Rehearsal found = rehearse(net, ranks, techniques, rows, optimizer, options);
    text += fmt::format("rank {} of {}: {} at the peak, in {}\n", ranks.rank, of_stage * ranks.pp,
                        format_bytes(found.peak.total()), found.peak_event);
    for (size_t kind = 0; kind < kNumMemoryKinds; ++kind) {
      if (found.peak.of[kind] != 0) {
        text += fmt::format("  {:<12} {:>12}\n", kMemoryKindNames[kind], format_bytes(found.peak.of[kind]));
      }
    }
    std::map<std::pair<std::string, Verb>, std::pair<double, double>> sums;
    for (const SentCalls& sent : found.sent) {
      auto& [calls, bytes] = sums[{sent.axis, sent.verb}];
      calls += sent.calls;
      bytes += sent.bytes;
    }
    if (found.host.total() > 0) text += fmt::format("  in host memory {:>9}\n", format_bytes(found.host.total()));
    if (found.disk_bytes > 0) text += fmt::format("  on disk {:>16}\n", format_bytes(found.disk_bytes));
    for (const auto& [what, sum] : sums) {
      text += fmt::format("  sends over {}, {}: {:g} calls, {}\n", what.first, name(what.second), sum.first,
                          format_bytes(std::llround(sum.second)));
    }
  }
  return text;
}

}  // namespace caravan
