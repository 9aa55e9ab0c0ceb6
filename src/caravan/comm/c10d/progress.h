#pragma once

#include <memory>

namespace caravan {

class C10dQueue;

/// Progress of all c10d back-ends of one rank. A wait in one of them also advances the others, so ranks may wait for
/// the works of different process groups in different orders. If no thread waits but a future is expected, a background
/// thread that polls every half millisecond completes it. Thread-safe.
class C10dProgress {
 public:
  C10dProgress();
  ~C10dProgress();
  C10dProgress(const C10dProgress&) = delete;
  C10dProgress& operator=(const C10dProgress&) = delete;

  void add(const std::shared_ptr<C10dQueue>& queue);
  void change_outstanding(int by) noexcept;
  int outstanding() const noexcept;
  /// Advances every queue that no other thread is using.
  void drive_others(const C10dQueue& own);
  /// Starts the background thread, or wakes it up. It sleeps again when nothing is outstanding.
  void watch_futures();
  /// Stops the background thread. Do not hold Python's GIL, which callbacks of futures may need.
  void stop() noexcept;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace caravan
