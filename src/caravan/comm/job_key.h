#pragma once

#include <functional>
#include <string>

namespace caravan {

/// What makes a process a member of a job. Both ends of a connection to a store must have the same; see
/// docs/design/trust.md.
struct JobKey {
  std::string id;      ///< public: stands in logs and errors
  std::string secret;  ///< known to the job's ranks alone; never sent, never printed. "": the store is open
  int world_size = 0;

  /// CARAVAN_JOB_ID (at most 128 bytes; else TORCHELASTIC_RUN_ID; else "") and CARAVAN_SECRET (16 to 1024 bytes; "" if
  /// unset). Throws UsageError naming the variable, never its secret.
  static JobKey from_environment(int world_size);
  /// The same for a launcher, which draws at random what the environment does not say.
  static JobKey for_launch(int world_size);
};

/// Takes one line for people, without a line end. Called on a thread of the library's own; must not throw.
using LogLine = std::function<void(const std::string& line)>;

}  // namespace caravan
