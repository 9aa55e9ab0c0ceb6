#pragma once

namespace caravan {

/// Turns SIGINT, SIGTERM and SIGHUP into a request that the training loop asks for at its step ends, while it lives.
/// Made once by main(), never by the library. A SIGHUP that is ignored (nohup) stays ignored.
class StopSignal {
 public:
  /// What a second signal does: end the process at once with 130, or nothing. A launcher ends its ranks itself, and
  /// whoever signals a whole service reaches a rank twice, directly and through the launcher: ranks ignore it.
  enum class Second { ends_at_once, is_ignored };

  /// Throws UsageError if another StopSignal lives.
  explicit StopSignal(Second second = Second::ends_at_once);
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// True once a signal has come. Any thread.
  bool requested() const noexcept;
};

}  // namespace caravan
