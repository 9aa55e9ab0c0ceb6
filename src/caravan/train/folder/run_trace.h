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

/// What all ranks do in some steps of a run, as one file for chrome://tracing and Perfetto: see docs/trace.md. Every
/// rank of the mesh makes one and calls all functions at the same steps.
class RunTrace {
 public:
  /// Without `steps`, the third to the fifth of those that the run does now. Throws on every rank if rank 0 cannot
  /// write `file`.
  RunTrace(std::filesystem::path file, std::optional<StepRange> steps, const Mesh& mesh);

  /// The run begins after step `done` and ends with step `last`. Throws UsageError if the steps are not part of it.
  void choose_steps(int64_t done, int64_t last);
  /// Before step `done` + 1, of up to `steps_at_once` until end(); records from here on if one of them may be traced.
  /// First, the hosts compare their clocks.
  void begin(int64_t done, int64_t steps_at_once);
  /// After step `done`.
  void end(int64_t done);
  /// Whether all steps were recorded.
  bool is_over() const noexcept { return is_over_; }
  /// Rank 0 writes what was recorded; the others send it, and throw its error too. Returns false if there is nothing
  /// that was not written.
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
