#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "caravan/base/trace/trace.h"
#include "caravan/comm/backends/clock_offset.h"
#include "caravan/mesh/mesh.h"
#include "caravan/train/step_range.h"

namespace caravan {

/// Traces all ranks in some steps of a run, to one file for chrome://tracing and Perfetto: see docs/trace.md. Every
/// rank of the mesh creates one and calls all methods at the same steps.
class RunTrace {
 public:
  /// Default of `steps`: the third to the fifth that this run does. Throws on every rank if rank 0 cannot write `file`.
  RunTrace(std::filesystem::path file, std::optional<StepRange> steps, const Mesh& mesh);

  /// The run begins after step `done` and ends with step `last`. Throws UsageError if the steps are not part of it.
  void choose_steps(int64_t done, int64_t last);
  /// Call it before step `done` + 1; up to `steps_at_once` steps follow until end(). Records from here on if one of
  /// them may be traced. The first call compares the clocks of the hosts.
  void begin(int64_t done, int64_t steps_at_once);
  /// Call it after step `done`.
  void end(int64_t done);
  /// Whether all steps were recorded.
  bool is_over() const noexcept { return is_over_; }
  /// Rank 0 writes the recorded steps, which the others send; its error is thrown on all ranks. Returns false if there
  /// is nothing left to write.
  bool write();
  const std::filesystem::path& file() const noexcept { return file_; }

 private:
  std::string own_events() const;
  std::exception_ptr write_all(const std::string& own) const;

  std::filesystem::path file_;
  std::optional<StepRange> asked_;
  Mesh mesh_;
  StepRange steps_;
  ClockOffset clock_;
  std::shared_ptr<TraceLog> trace_;
  std::optional<TraceScope> scope_;  ///< between begin() and end()
  std::optional<TraceSpan> step_span_;
  bool is_over_ = false;
};

}  // namespace caravan
