#include "caravan/memory/chunks/chunk_trace.h"

#include <algorithm>

#include "caravan/base/error.h"
#include "caravan/base/text.h"

namespace caravan {
namespace {

[[noreturn]] void refuse_trace(std::string subject, std::string fact, std::string action) {
  throw UsageError({.op = "chunks",
                    .subject = std::move(subject),
                    .fact = std::move(fact),
                    .where = {},
                    .action = std::move(action)});
}

std::string at_moment(const ChunkUse& use) {
  return "chunk " + std::to_string(use.chunk) + " at moment " + std::to_string(use.moment);
}

// Builds a trace moment by moment.
class TraceWriter {
 public:
  void begin(int64_t budget) { trace_.budget_bytes.push_back(budget); }
  void use(int chunk, ChunkAccess access, bool is_on_host = false) {
    trace_.uses.push_back(
        {.moment = trace_.num_moments() - 1, .chunk = chunk, .access = access, .is_on_host = is_on_host});
  }
  ChunkTrace& trace() noexcept { return trace_; }

 private:
  ChunkTrace trace_;
};

class StepWriter {
 public:
  StepWriter(const ChunkStep& step, const StepBudget& budget) : step_(step), budget_(budget) {
    const auto count = static_cast<size_t>(step.num_chunks);
    std::vector<int64_t>& bytes = writer_.trace().chunk_bytes;
    bytes.assign(step.reuses_chunks ? count : 2 * count, step.chunk_bytes);
    first_state_ = static_cast<int>(bytes.size());
    bytes.insert(bytes.end(), static_cast<size_t>(step.updated_on_device), step.state_bytes);
    has_gradient_.assign(count, false);
  }

  ChunkTrace write() {
    for (int m = 0; m < step_.num_micro_batches; ++m) {
      for (size_t unit = 0; unit < step_.units.size(); ++unit) forward(unit);
      backward();
    }
    for (int chunk = 0; chunk < step_.num_chunks; ++chunk) update(chunk);
    return std::move(writer_.trace());
  }

 private:
  static int64_t of(const std::vector<int64_t>& budgets, size_t unit, int64_t otherwise) {
    return budgets.empty() ? otherwise : budgets.at(unit);
  }
  void forward(size_t unit) {
    writer_.begin(of(budget_.forward_bytes, unit, budget_.device_bytes));
    for (const int chunk : step_.units[unit]) writer_.use(chunk, ChunkAccess::read);
  }
  void backward() {
    size_t end = step_.units.size();
    while (end > 0) {
      const size_t size = step_.recompute < 1 ? 1 : std::min(end, static_cast<size_t>(step_.recompute));
      for (size_t unit = end - size; unit < end && step_.recompute > 0; ++unit) recompute(unit);
      for (size_t unit = end; unit > end - size; --unit) backward(unit - 1);
      end -= size;
    }
  }
  void recompute(size_t unit) {
    writer_.begin(of(budget_.backward_bytes, unit, budget_.device_bytes));
    for (const int chunk : step_.units[unit]) writer_.use(chunk, ChunkAccess::read);
  }
  void backward(size_t unit) {
    writer_.begin(of(budget_.backward_bytes, unit, budget_.device_bytes));
    for (const int chunk : step_.units[unit]) {
      if (step_.reuses_chunks) {
        writer_.use(chunk, ChunkAccess::modify);
        continue;
      }
      writer_.use(chunk, ChunkAccess::read);
      const bool is_first = !has_gradient_[static_cast<size_t>(chunk)];
      writer_.use(step_.num_chunks + chunk, is_first ? ChunkAccess::overwrite : ChunkAccess::modify);
      has_gradient_[static_cast<size_t>(chunk)] = true;
    }
  }
  void update(int chunk) {
    writer_.begin(budget_.device_bytes);
    const bool is_on_host = chunk >= step_.updated_on_device;
    if (!step_.reuses_chunks) {
      if (!has_gradient_[static_cast<size_t>(chunk)]) return;
      writer_.use(step_.num_chunks + chunk, ChunkAccess::consume, is_on_host);
    }
    // A parameter is written from its master copy; its old value is not read, but a gradient that replaced it is.
    writer_.use(chunk, step_.reuses_chunks ? ChunkAccess::modify : ChunkAccess::overwrite, is_on_host);
    if (!is_on_host) writer_.use(first_state_ + chunk, ChunkAccess::modify);
  }

  const ChunkStep& step_;
  const StepBudget& budget_;
  TraceWriter writer_;
  int first_state_ = 0;
  std::vector<bool> has_gradient_;
};

}  // namespace

std::vector<int64_t> ChunkTrace::used_bytes() const {
  std::vector<int64_t> used(budget_bytes.size(), 0);
  for (const ChunkUse& use : uses)
    if (!use.is_on_host) used[static_cast<size_t>(use.moment)] += chunk_bytes[static_cast<size_t>(use.chunk)];
  return used;
}

void ChunkTrace::validate() const {
  std::vector<int> last(chunk_bytes.size(), -1);
  std::vector<bool> is_consumed(chunk_bytes.size(), false);
  int moment = 0;
  for (const ChunkUse& use : uses) {
    if (use.chunk < 0 || use.chunk >= static_cast<int>(chunk_bytes.size()) || use.moment >= num_moments())
      refuse_trace(at_moment(use), "does not exist", "give every chunk its bytes and every moment its budget");
    const auto chunk = static_cast<size_t>(use.chunk);
    if (use.moment < moment || last[chunk] == use.moment)
      refuse_trace(at_moment(use), "is out of order or used twice", "list uses by moment, a chunk once for each");
    if (is_consumed[chunk] && use.access != ChunkAccess::overwrite)
      refuse_trace(at_moment(use), "reads contents that have been consumed", "overwrite it first");
    is_consumed[chunk] = use.access == ChunkAccess::consume;
    moment = last[chunk] = use.moment;
  }
  const std::vector<int64_t> used = used_bytes();
  for (size_t m = 0; m < used.size(); ++m)
    if (used[m] > budget_bytes[m])
      refuse_trace("moment " + std::to_string(m),
                   "uses " + format_bytes(used[m]) + " of chunks, of " + format_bytes(budget_bytes[m]),
                   "use smaller chunks, or leave more memory for them");
}

ChunkTrace repeat(const ChunkTrace& step, int count) {
  ChunkTrace result{.chunk_bytes = step.chunk_bytes};
  for (int i = 0; i < count; ++i) {
    const int first = result.num_moments();
    result.budget_bytes.insert(result.budget_bytes.end(), step.budget_bytes.begin(), step.budget_bytes.end());
    for (ChunkUse use : step.uses) {
      use.moment += first;
      result.uses.push_back(use);
    }
  }
  return result;
}

ChunkTrace trace_of(const ChunkStep& step, const StepBudget& budget) {
  if (step.reuses_chunks && step.num_micro_batches > 1)
    refuse_trace(std::to_string(step.num_micro_batches) + " micro-batches",
                 "need the parameters again after the first has replaced them by gradients",
                 "give gradients chunks of their own, or take one micro-batch");
  return StepWriter(step, budget).write();
}

int states_in_margin(const ChunkStep& step, const StepBudget& budget) noexcept {
  int64_t least = budget.device_bytes;
  for (const int64_t bytes : budget.forward_bytes) least = std::min(least, bytes);
  for (const int64_t bytes : budget.backward_bytes) least = std::min(least, bytes);
  const int64_t kinds = step.reuses_chunks ? 1 : 2;
  const int64_t margin = least - kinds * step.num_chunks * step.chunk_bytes;
  if (margin <= 0 || step.state_bytes <= 0) return margin > 0 ? step.num_chunks : 0;
  return static_cast<int>(std::min<int64_t>(step.num_chunks, margin / step.state_bytes));
}

RankStep step_of_rank(const ChunkStep& whole, const StepBudget& budget, int num_ranks) {
  RankStep result{.step = whole, .budget = budget};
  result.step.num_chunks = (whole.num_chunks + num_ranks - 1) / num_ranks;
  const size_t count = whole.units.size();
  if (budget.forward_bytes.empty()) result.budget.forward_bytes.assign(count, budget.device_bytes);
  if (budget.backward_bytes.empty()) result.budget.backward_bytes.assign(count, budget.device_bytes);
  for (size_t u = 0; u < count; ++u) {
    std::vector<int>& groups = result.step.units[u];
    for (int& chunk : groups) chunk /= num_ranks;
    std::ranges::sort(groups);
    groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
    const int64_t gathered = (num_ranks - 1) * static_cast<int64_t>(groups.size()) * whole.chunk_bytes;
    result.budget.forward_bytes.at(u) -= gathered;
    result.budget.backward_bytes.at(u) -= whole.reuses_chunks ? gathered : 2 * gathered;
  }
  return result;
}

}  // namespace caravan
