#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "caravan/memory/chunks/chunk_trace.h"

namespace caravan::testing {

/// A training step in chunks, from which its trace follows: forward through the units, backward in reverse, update.
struct ChunkStep {
  std::vector<std::vector<int>> units{};  ///< parameter chunks that each unit reads, in forward order
  int num_chunks = 0;                     ///< of parameters
  int64_t chunk_bytes = 0;                ///< of a chunk of parameters or gradients
  int64_t state_bytes = 0;  ///< of all chunks of optimizer state (master copy, moments) of a parameter chunk
  int recompute = 0;        ///< number of units whose forward is repeated together, in the backward; 0: none
  /// Gradients replace the parameters in their chunks. Else they have chunks of their own, whose memory is gone after
  /// the update; so it is for more than one micro-batch.
  bool reuses_chunks = true;
  int num_micro_batches = 1;
  /// The first chunks have their states on the device and are updated there; the others are updated on the host.
  int updated_on_device = 0;
};

/// Device memory for chunks during a step.
struct StepBudget {
  int64_t device_bytes = 0;              ///< when nothing but chunks is there: in the update
  std::vector<int64_t> forward_bytes{};  ///< by unit; empty: device_bytes
  std::vector<int64_t> backward_bytes{};
};

/// Builds a trace moment by moment.
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

/// A moment for each forward, repeated forward and backward of a unit, and one for the update of each chunk. Chunks are
/// numbered: parameters, then gradients if they have chunks of their own, then the states of each chunk that is updated
/// on the device, as one.
inline ChunkTrace trace_of(const ChunkStep& step, const StepBudget& budget) { return StepWriter(step, budget).write(); }

/// The same uses `count` times in a row.
inline ChunkTrace repeat(const ChunkTrace& step, int count) {
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

}  // namespace caravan::testing
