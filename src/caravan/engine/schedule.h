#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace caravan {

/// One entry of a schedule: what a rank does next.
struct Action {
  enum class Kind : uint8_t {
    forward,   ///< of `micro_batch` on `stage`
    backward,  ///< of `micro_batch` on `stage`; with `pays`, buckets go out as they fill
    reduce,    ///< waits for gradient bucket `bucket`, starting it if it has not gone out
    update,    ///< clips, steps the optimizer
  };
  Kind kind;
  int stage = 0;
  int micro_batch = 0;
  int bucket = 0;
  bool pays = false;
  bool operator==(const Action&) const noexcept = default;
};

/// What one rank does in a step, in order: a table that can be printed, validated and executed.
struct Schedule {
  std::vector<Action> actions;

  /// "F0 B0 F1 B1* R0 R1 U"; * marks the backward that pays. A stage other than 0 is written "F0@2".
  std::string to_string() const;

  /// Throws UsageError naming the first action that breaks a rule: a micro-batch's backward comes after its forward,
  /// each exactly once; exactly the last backward pays; buckets are reduced in order, each once, after it; one update,
  /// last.
  void validate(int num_micro_batches, int num_buckets) const;
};

/// Gradient accumulation: forward and backward of each micro-batch, communication in the last backward only. Holds the
/// activations of one micro-batch. Throws UsageError for fewer than one micro-batch.
Schedule accumulate(int num_micro_batches, int num_buckets);

}  // namespace caravan
