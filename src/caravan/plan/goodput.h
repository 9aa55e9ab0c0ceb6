#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "caravan/cost/hardware.h"
#include "caravan/plan/checkpoint_size.h"

namespace caravan {

/// A run in which ranks fail, as far as its checkpoints and restarts depend on it. Seconds.
struct FailingRun {
  double step = 0;     ///< of a step
  double stops = 0;    ///< that training waits for a checkpoint
  double writes = 0;   ///< until it is complete: at least `stops`, more if it is written in the background
  double mtbf = 0;     ///< between failures of the run
  double restart = 0;  ///< from a failure until steps go on, with reading the checkpoint
};

/// What share of a long run is steps that count.
struct Goodput {
  double share = 1;  ///< of the time; 0: failures come faster than checkpoints
  int64_t steps = 1;
  double interval = 0;  ///< seconds of so many steps, between two checkpoints
  double lost = 0;      ///< seconds that a failure costs, the mean
  double stops = 0;     ///< see FailingRun
  double writes = 0;
  double mtbf = 0;
  int64_t total_bytes = 0;  ///< of a checkpoint
  /// What the hardware does not say: "mtbf 50700 h a device".
  std::vector<std::string> assumed{};
};

/// The best number of steps between checkpoints, and what it yields. Failures come at random at a constant rate, also
/// while a checkpoint is written or the run restarts; each goes back to the last complete checkpoint.
Goodput goodput_of(const FailingRun& run);

/// That of a run on the first `num_ranks` devices. What the hardware does not say of failures and storage is assumed as
/// it is usual for accelerators. Nothing for processors of which it says nothing.
std::optional<Goodput> goodput_on(const Hardware& hardware, int num_ranks, const CheckpointSize& checkpoint,
                                  double step_seconds, bool is_async);

/// "12 s", "38 min", "5.2 h", "2.1 days": two digits or three.
std::string duration_text(double seconds);
/// "17 to 21 days"
std::string duration_range_text(double low, double high);

/// "94.1 %: a checkpoint each 276 steps (38 min) takes 12 s; a failure each 2.1 days costs 31 min".
std::string to_text(const Goodput& goodput);

}  // namespace caravan
