#pragma once

#include <chrono>
#include <future>
#include <utility>

namespace caravan {

/// Handle of something asynchronous on one rank: a copy between tiers, a read from disk. Copies share it. Dropping it
/// cancels nothing. Thread-safe.
class Event {
 public:
  Event() = default;  ///< already complete
  explicit Event(std::shared_future<void> future) : future_(std::move(future)) {}

  /// Returns when it is complete; throws its error, on every call.
  void wait() const {
    if (future_.valid()) future_.get();
  }
  /// The same without its error, for destructors: what is in flight uses memory that is about to go.
  void settle() const noexcept {
    if (future_.valid()) future_.wait();
  }
  /// Whether it is complete, with or without error.
  bool done() const {
    return !future_.valid() || future_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

 private:
  std::shared_future<void> future_;
};

}  // namespace caravan
