#include "caravan/train/folder/step_line.h"

#include <algorithm>

#include "caravan/base/memory/memory_counter.h"
#include "caravan/base/time.h"
#include "caravan/train/dataset/prepare.h"

namespace caravan {

StepMetrics step_line(const StepReport& report, const StepSpending& costs, RunState& state, const MemoryPlan& memory,
                      const RowShape& rows) {
  const int64_t context = rows.length;  // tokens of a row
  const MemoryCounter& counter = MemoryCounter::current();
  const double all_ms = costs.step_ms * static_cast<double>(report.own_steps);
  StepMetrics metrics{.step = state.step,
                      .loss = report.loss,
                      .grad_norm = report.grad_norm,
                      .lr = state.learning_rate().at(std::max<int64_t>(state.step - 1, 0)),
                      .tokens = report.total_rows * context,
                      .step_ms = costs.step_ms,
                      .tokens_per_second = static_cast<double>(report.rows * context) / all_ms * 1e3,
                      .comm_ms = costs.comm_ms,
                      .bytes_sent = costs.bytes_sent,
                      .peak_memory_bytes = counter.peak_bytes(),
                      .predicted_memory_bytes = memory.own.peak.total(),
                      .predicted_resident_bytes = memory.resident_bytes,
                      .loss_scale = report.loss_scale,
                      .spike = report.spike,
                      .drain = report.drain,
                      .time = utc_text(now_seconds())};
  if (memory.own.host.total() > 0 || memory.own.disk_bytes > 0) {
    metrics.beyond = {counter.peak_bytes(Tier::host), memory.own.host.total(), counter.peak_bytes(Tier::disk),
                      memory.own.disk_bytes};
  }
  metrics.model_flops_per_second =
      state.model().config().flops_per_token(context / rows.num_sequences) * metrics.tokens_per_second;
  if (report.loss_scale) metrics.skipped_steps = state.loss_scale()->num_skipped();
  if (const SpikeGuard* guard = state.spike_guard()) metrics.skipped_spikes = guard->num_skipped();
  for (const double waited_ms : report.waits_ms) metrics.bubble.push_back(waited_ms / metrics.step_ms);
  const std::string host = host_name();
  metrics.host = host.substr(0, host.find(' '));
  return metrics;
}

}  // namespace caravan
