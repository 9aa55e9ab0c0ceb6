#pragma once

#include <atomic>
#include <memory>

namespace caravan {

class C10dLine;

/// What the c10d back-ends of one rank share. Waiting in one of them drives the others too, so that ranks may wait for
/// works of different process groups in different orders. Where nobody waits but a future is expected, a thread that
/// sleeps half a millisecond at a time completes it. Any thread.
class C10dProgress {
 public:
  C10dProgress();
  ~C10dProgress();
  C10dProgress(const C10dProgress&) = delete;
  C10dProgress& operator=(const C10dProgress&) = delete;

  void add(const std::shared_ptr<C10dLine>& line);
  void change_outstanding(int by) noexcept;
  int outstanding() const noexcept;
  /// One look at every line that no other thread is using.
  void drive_others(const C10dLine& own);
  /// Starts the thread if need be; it sleeps again once nothing is outstanding.
  void watch_futures();
  /// Ends the thread. A thread that completes futures may want Python's lock: do not hold it here.
  void stop() noexcept;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace caravan
