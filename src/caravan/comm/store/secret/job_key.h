#pragma once

#include <functional>
#include <string>

namespace caravan {

/// What identifies a job and authenticates its processes. Both ends of a connection to a store must have the same key;
/// see docs/design/trust.md.
struct JobKey {
  std::string id;      ///< public: appears in logs and errors
  std::string secret;  ///< known only to the job's ranks; never sent or printed. "": any client is accepted
  int world_size = 0;

  /// CARAVAN_JOB_ID (at most 128 bytes; else TORCHELASTIC_RUN_ID; else "") and CARAVAN_SECRET (16 to 1024 bytes; "" if
  /// unset). Throws UsageError naming the variable, never its secret.
  static JobKey from_environment(int world_size);
  /// The same for a launcher, which makes up random values for what the environment does not set.
  static JobKey for_launch(int world_size);
};

/// Receives one line of log output, without a newline. Called on a thread of the library; must not throw.
using LogLine = std::function<void(const std::string& line)>;

}  // namespace caravan
