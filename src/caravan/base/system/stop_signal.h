#pragma once

#include <chrono>

namespace caravan {

/// A signal this soon after the first belongs to the same request: `timeout` signals its command, and then the process
/// group that the command is in.
inline constexpr std::chrono::milliseconds kOneRequest{250};

/// While it lives, turns SIGINT, SIGTERM and SIGHUP into a request to stop, which training polls. Created once, by
/// main() or by the first Session::should_stop(). A SIGHUP that is ignored (nohup) stays ignored.
class StopSignal {
 public:
  /// What a second signal does: end the process at once with 130, or nothing. Ranks of a launcher ignore it: the
  /// launcher kills them itself, and a signal to a whole service reaches a rank twice, directly and through the
  /// launcher.
  enum class Second { ends_at_once, is_ignored };

  /// Throws UsageError if another StopSignal lives.
  explicit StopSignal(Second second = Second::ends_at_once);
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// True once a signal has arrived. Thread-safe.
  bool requested() const noexcept;
};

}  // namespace caravan
