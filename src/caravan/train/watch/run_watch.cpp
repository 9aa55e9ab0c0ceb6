#include "caravan/train/watch/run_watch.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include <nlohmann/json.hpp>

namespace caravan {

RunWatch::RunWatch(const Mesh& mesh, bool names_spikes) : mesh_(mesh) {
  if (names_spikes) spikes_.emplace(kDeviations);
}

void RunWatch::resume(const std::filesystem::path& log) {
  std::ifstream file(log);
  for (std::string text; spikes_ && std::getline(file, text);) {
    const auto line = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    const bool is_step = line.is_object() && line.contains("loss") && line.contains("grad_norm");
    if (!is_step || line.contains("clocks") || !line["loss"].is_number() || !line["grad_norm"].is_number()) continue;
    spikes_->why_skipped(line["loss"], line["grad_norm"]);
  }
}

std::vector<RankTimes> RunWatch::of_all_ranks(const RankTimes& own) const {
  std::vector<RankTimes> all(static_cast<size_t>(mesh_.size()));
  all[static_cast<size_t>(mesh_.rank())] = own;
  static_assert(sizeof(RankTimes) == 3 * sizeof(double));
  const auto count = static_cast<int64_t>(3 * all.size());
  const Buffer numbers{&all.front().busy_ms, count, Dtype::fp64};
  if (mesh_.size() > 1) mesh_.world().all_reduce(numbers, numbers, ReduceOp::sum, "speed");
  return all;
}

void RunWatch::stepped(StepMetrics& metrics) {
  name_spike(metrics);
  const auto now = Clock::now();
  if (last_end_) {  // the first step of a run also waits for what is made once
    times_.wall_ms = std::chrono::duration<double, std::milli>(now - *last_end_).count() - rest_ms_;
    add(metrics, times_);
  }
  last_end_ = now;
  times_ = {};
  rest_ms_ = 0;
}

void RunWatch::stepped(StepMetrics& metrics, const StepTimes& times) {
  name_spike(metrics);
  add(metrics, times);
}

void RunWatch::name_spike(StepMetrics& metrics) {
  if (metrics.drain) return;  // of ranks that do not wait for each other, over many steps
  if (spikes_ && std::isfinite(metrics.loss) && std::isfinite(metrics.grad_norm)) {
    metrics.spike = spikes_->why_skipped(metrics.loss, metrics.grad_norm);
  }
}

void RunWatch::add(StepMetrics& metrics, const StepTimes& times) {
  if (metrics.drain) return;
  sums_.wall_ms += times.wall_ms;
  sums_.data_ms += times.data_ms;
  sums_.save_ms += times.save_ms;
  comm_ms_ += metrics.comm_ms;
  if (++num_steps_ < kSteps) return;
  const auto mean = [&](double sum) { return sum / static_cast<double>(num_steps_); };
  const double waited_ms = comm_ms_ + sums_.data_ms + sums_.save_ms;
  const std::vector<RankTimes> ranks = of_all_ranks({.busy_ms = mean(std::max(0.0, sums_.wall_ms - waited_ms)),
                                                     .data_ms = mean(sums_.data_ms),
                                                     .save_ms = mean(sums_.save_ms)});
  metrics.slowdown = speed_.add(mean(sums_.wall_ms), ranks);
  sums_ = {};
  comm_ms_ = 0;
  num_steps_ = 0;
}

}  // namespace caravan
