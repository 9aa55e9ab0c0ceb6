#include "caravan/cost/published/predict.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <map>

#include <fmt/format.h>

#include "caravan/cost/constants/operations.h"
#include "caravan/cost/hardware_costs.h"
#include "caravan/cost/published/operations.h"
#include "caravan/cost/published/pipeline_time.h"

namespace caravan::published {
namespace {

// Of a run of which nothing else is known [recalled].
constexpr double kFallbackShare = 0.4;   // of the peak, that it reaches
constexpr double kFallbackMemory = 0.7;  // of the device

struct PassTimes {
  PassTime forward, recompute, backward, weights;
  double all_backward() const { return recompute.seconds + backward.seconds; }
};

/// Puts a run's operations on its hardware.
class StepModel {
 public:
  explicit StepModel(const Run& run)
      : run_(run),
        costs_(run.hardware, run.attention),
        tensor_(costs_.group_of(run.tp, 1)),
        context_(costs_.group_of(run.cp, run.tp)),
        data_(costs_.group_of(run.dp * run.cp, run.tp)),
        layer_(times(layer_passes(run))),
        embedding_(times(embedding_passes(run))),
        head_(times(head_passes(run))) {}

  Prediction predict();

 private:
  PassTime time(const Pass& pass) const;
  PassTimes times(const Passes& passes) const {
    return {time(passes.forward), time(passes.recompute), time(passes.backward), time(passes.weights)};
  }
  double sent_seconds(Verb verb, double sent_bytes, const RankGroup& group) const {
    if (sent_bytes <= 0) return 0;
    return costs_.collective_seconds(verb, sent_bytes, group) + costs_.skew_seconds(group.size);
  }
  double collective(Verb verb, double whole_bytes, const RankGroup& group) const {
    return sent_seconds(verb, ring_bytes(verb, whole_bytes, group.size), group);
  }
  double exposed(Communication::Behind behind, double seconds, const PassTime& compute) const;

  StageCost stage_cost(int64_t rank, int64_t chunk) const;
  StageCost unit_gathers(int64_t rank, int64_t chunk) const;
  double boundary_seconds(int64_t rank) const;
  /// After the micro-batches of a rank whose passes take so long.
  double after_seconds(size_t rank, double forward, double backward) const;
  double reduction_seconds(const StepWork& work, double forward, double backward) const;
  double optimizer_seconds(const StepWork& work) const;
  /// The first ranks of two coordinates of pp.
  RankGroup between(int64_t one, int64_t other) const {
    const auto stride = static_cast<int>(run_.tp * run_.cp * run_.dp);
    return costs_.group_of(std::array{static_cast<int>(one) * stride, static_cast<int>(other) * stride});
  }

  const Run& run_;
  HardwareCosts costs_;
  RankGroup tensor_, context_, data_;
  PassTimes layer_, embedding_, head_;
};

/// Of calls that may run behind `compute`, what remains: what is longer than it, and a share that is never hidden.
double StepModel::exposed(Communication::Behind behind, double seconds, const PassTime& compute) const {
  const double room = behind == Communication::Behind::attention ? compute.attention : compute.products;
  const double tensor = run_.framework.tp_hidden > 0 ? run_.framework.tp_hidden : fitted::kHidesTensor;
  const double hidden = behind == Communication::Behind::attention          ? fitted::kHidesRing
                        : behind == Communication::Behind::weight_gradients ? fitted::kHidesTensor
                                                                            : tensor;
  return std::max(seconds - room, (1 - hidden) * seconds);
}

PassTime StepModel::time(const Pass& pass) const {
  const HardwareDevice& device = run_.device();
  const double launch = run_.framework.dispatch_us * 1e-6;
  PassTime time;
  double launches = 0, one_by_one = 0;
  for (const Compute& compute : pass.computes) {
    const double seconds = costs_.seconds(compute.work, device) + (compute.kernels - 1) * device.launch_seconds;
    switch (compute.work.kind) {
      case KernelWork::Kind::product: time.products += seconds; break;
      case KernelWork::Kind::attention: time.attention += seconds; break;
      case KernelWork::Kind::memory: time.memory += seconds; break;
    }
    launches += compute.launches;
    one_by_one += std::max(seconds, compute.launches * launch);
  }
  std::map<Communication::Behind, double> behind;
  for (const auto& [call, hides] : pass.calls) {
    const RankGroup& group = call.axis == "tp" ? tensor_ : context_;
    if (group.size <= 1) continue;
    double seconds = sent_seconds(call.verb, call.sent_bytes, group);
    launches += fitted::kCallLaunches;
    if (!run_.framework.runs_ahead) seconds += fitted::kCallLaunches * launch;
    behind[hides] += seconds;
  }
  for (const auto& [hides, seconds] : behind) {
    time.exposed += hides == Communication::Behind::nothing ? seconds : exposed(hides, seconds, time);
  }
  const double device_seconds = time.products + time.attention + time.memory;
  const double computes = run_.framework.runs_ahead ? std::max(device_seconds, launches * launch) : one_by_one;
  time.seconds = pass.share * (computes + time.exposed);
  return time;
}

StageCost StepModel::stage_cost(int64_t rank, int64_t chunk) const {
  const auto layers = static_cast<double>(run_.layers_of[static_cast<size_t>(rank)][static_cast<size_t>(chunk)]);
  StageCost cost{.forward = layers * layer_.forward.seconds,
                 .backward = layers * layer_.all_backward(),
                 .weight = layers * layer_.weights.seconds,
                 .send = 0};
  const auto add = [&](const PassTimes& one) {
    cost.forward += one.forward.seconds;
    cost.backward += one.all_backward();
    cost.weight += one.weights.seconds;
  };
  if (rank == 0 && chunk == 0) add(embedding_);
  if (rank + 1 == run_.pp && chunk + 1 == run_.chunks) add(head_);
  const StageCost gathers = unit_gathers(rank, chunk);
  cost.forward += gathers.forward;
  cost.backward += gathers.backward;
  return cost;
}

/// ZeRO-3 and FSDP: the gather of a unit runs behind the compute of the one before. A unit takes the longer of the two,
/// and a part of the shorter. (Zhao et al., arXiv 2304.11277.)
StageCost StepModel::unit_gathers(int64_t rank, int64_t chunk) const {
  StageCost cost{.forward = 0, .backward = 0, .weight = 0, .recompute = 0, .send = 0};
  if (run_.zero < 3 || run_.shards <= 1) return cost;
  const RankGroup shards = costs_.group_of(run_.shards, run_.tp);
  const double weights = run_.layer_weights / static_cast<double>(run_.tp);
  const double gather = collective(Verb::all_gather, weights * run_.element_bytes, shards);
  const double scatter = collective(Verb::reduce_scatter, weights * run_.framework.gradient_bytes, shards);
  const auto beyond = [&](double compute, double call) {
    return std::max(0.0, call - compute) + run_.framework.gather_tail * std::min(compute, call);
  };
  const auto layers = static_cast<double>(run_.layers_of[static_cast<size_t>(rank)][static_cast<size_t>(chunk)]);
  const double backward = layer_.all_backward() + layer_.weights.seconds;
  // The first gather has nothing to hide behind, nor has the last reduction.
  cost.forward = layers * beyond(layer_.forward.seconds, gather) + gather;
  cost.backward = layers * beyond(backward, (run_.gathers_twice ? gather : 0) + scatter) + scatter;
  if (rank == 0 && chunk == 0) {
    const double table = run_.embedding_weights / static_cast<double>(run_.tp) * run_.element_bytes;
    const double ends = collective(Verb::all_gather, table, shards);  // embedding and head
    cost.forward += ends;
    cost.backward += fitted::kEndsInBackward * ends;
  }
  return cost;
}

/// From a stage of a rank to the next: each rank of tp sends its part, and they gather it again unless it stays cut.
double StepModel::boundary_seconds(int64_t rank) const {
  const double bytes = run_.element_bytes * run_.tokens() * static_cast<double>(run_.width);
  const int64_t next = (rank + 1) % run_.pp;
  double seconds =
      costs_.message_seconds(bytes / static_cast<double>(run_.tp), between(std::min(rank, next), std::max(rank, next)));
  if (!run_.cuts_sequence) seconds += collective(Verb::all_gather, bytes, tensor_);
  return seconds * (run_.chunks > 1 && run_.framework.overlaps_dp ? fitted::kExposedMessages : 1);
}

double StepModel::reduction_seconds(const StepWork& work, double forward, double backward) const {
  double reduces = 0, gathers = 0, room = backward;
  if (run_.zero == 0) {
    reduces = collective(Verb::all_reduce, work.gradient_bytes, data_);
  } else if (run_.zero == 3) {
    if (run_.shards < data_.size) {  // between replicas of the shards
      const RankGroup replicas = costs_.group_of(data_.size / run_.shards, run_.shards * run_.tp);
      reduces = collective(Verb::all_reduce, work.gradient_bytes / static_cast<double>(run_.shards), replicas);
    }
  } else {
    const double times = run_.reduces_each_micro_batch ? static_cast<double>(run_.micro_batches) : 1;
    reduces = times * collective(Verb::reduce_scatter, work.gradient_bytes, data_);
    room *= times;
    gathers = collective(Verb::all_gather, work.weight_bytes, data_);
  }
  const auto beyond = [](double call, double compute) {
    return std::max(call - fitted::kHidesReductions * compute, fitted::kReductionTail * call);
  };
  if (run_.framework.overlaps_dp) {
    reduces = beyond(reduces, room);
    if (run_.gathers_behind_forward) gathers = beyond(gathers, forward);
  }
  return reduces + gathers;
}

double StepModel::optimizer_seconds(const StepWork& work) const {
  const HardwareDevice& device = run_.device();
  if (run_.offload == Run::Offload::none) {
    return work.optimizer_bytes / device.memory_bytes_per_second + fitted::kOptimizerKernels * device.launch_seconds;
  }
  const bool is_on_disk = run_.offload == Run::Offload::disk;
  const double link = device.host_bytes_per_second * fitted::kHostLinkShare, weights = work.offloaded_weights;
  // A gradient and a weight cross the link.
  double seconds = weights * (4 / link + fitted::kHostAdamBytes / fitted::kHostAdamRate);
  if (is_on_disk) seconds += weights * fitted::kDiskAdamBytes / fitted::kDiskRate;
  if (run_.offload == Run::Offload::parameters || (is_on_disk && run_.zero == 3)) {
    seconds += 2 * static_cast<double>(run_.micro_batches) * weights * 2 / link;
  }
  return seconds;
}

double StepModel::after_seconds(size_t rank, double forward, double backward) const {
  const StepWork work = step_work(run_, rank);
  return reduction_seconds(work, forward, backward) + optimizer_seconds(work) +
         (work.tied_bytes > 0 ? collective(Verb::all_reduce, work.tied_bytes, between(0, run_.pp - 1)) : 0);
}

Prediction StepModel::predict() {
  std::vector<StageCost> stages;
  std::vector<double> forward(static_cast<size_t>(run_.pp), 0), backward = forward;
  for (int64_t chunk = 0; chunk < run_.chunks; ++chunk) {
    for (int64_t rank = 0; rank < run_.pp; ++rank) {
      stages.push_back(stage_cost(rank, chunk));
      stages.back().send = run_.pp > 1 ? boundary_seconds(rank) : 0;
      forward[static_cast<size_t>(rank)] += stages.back().forward;
      backward[static_cast<size_t>(rank)] += stages.back().backward + stages.back().weight;
    }
  }
  const PipelineTime pipeline = pipeline_time({run_.schedule, run_.pp, run_.chunks, run_.micro_batches}, stages);
  double after = 0;
  for (const int64_t rank : {int64_t{0}, run_.pp / 2, run_.pp - 1}) {
    const auto i = static_cast<size_t>(rank);
    after = std::max(after, after_seconds(i, forward[i], backward[i]));
  }
  const double hosts = std::max(1.0, static_cast<double>(run_.ranks) / static_cast<double>(run_.per_host));
  Prediction prediction;
  prediction.pipeline_seconds = pipeline.seconds;
  prediction.step_seconds = (pipeline.seconds + after + run_.framework.step_ms * 1e-3) *
                            (1 + fitted::kJitter * std::log2(hosts)) * run_.framework.slack;
  prediction.uncapped_bytes = run_memory(run_, pipeline.held).total;
  prediction.layer_forward = layer_.forward;
  prediction.layer_backward = layer_.backward;
  return prediction;
}

/// Of a step, as executed.
double executed_flops(const Run& run) {
  const auto width = static_cast<double>(run.width), sequence = static_cast<double>(run.sequence);
  const double used =
      static_cast<double>(run.experts_per_token) / static_cast<double>(std::max<int64_t>(1, run.experts));
  const double layer =
      2 * (run.attention_weights + run.mlp_weights * used) + 4 * sequence * width * (run.is_flash ? 0.5 : 1);
  const double passes = run.recompute == Run::Recompute::full ? 3 + run.recomputed : 3;
  return static_cast<double>(run.global_batch) * sequence *
         (static_cast<double>(run.layers) * layer * passes + 3 * 2 * static_cast<double>(run.vocabulary) * width);
}

double peak_flops(const Run& run) {
  const ProductRate& rate = HardwareCosts::rate_of(run.device(), "fp16");
  return static_cast<double>(run.ranks) * (rate.peak_flops > 0 ? rate.peak_flops : rate.flops);
}

}  // namespace

Prediction predict(const Row& row) {
  const Run run = describe(row);
  Prediction prediction;
  const auto is_usable = [](double value) { return std::isfinite(value) && value > 0; };
  try {
    prediction = StepModel(run).predict();
    if (!is_usable(prediction.step_seconds) || !is_usable(prediction.uncapped_bytes)) prediction.failure = "no number";
  } catch (const std::exception& error) {
    prediction.failure = error.what();
  }
  prediction.device_bytes = static_cast<double>(run.device().memory_bytes);
  prediction.peak_flops = peak_flops(run);
  prediction.executed_flops = executed_flops(run);
  prediction.layout = fmt::format("tp {} pp {} dp {}", run.tp, run.pp, run.dp);
  if (!prediction.failure.empty()) {
    prediction.step_seconds = prediction.executed_flops / (kFallbackShare * prediction.peak_flops);
    prediction.uncapped_bytes = kFallbackMemory * prediction.device_bytes;
  }
  prediction.memory_bytes = std::min(prediction.uncapped_bytes, fitted::kMostMemory * prediction.device_bytes);
  return prediction;
}

}  // namespace caravan::published
