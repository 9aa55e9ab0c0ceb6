#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/comm/calls/descriptor.h"

namespace caravan {

enum class FlightState : uint32_t { started, done, failed };
std::string_view name(FlightState state) noexcept;

/// What every rank of a communicator knows about it: enough to compare the records of several ranks.
struct FlightGroup {
  uint64_t identity = 0;        ///< equal on all ranks of the communicator, different for others
  std::array<char, 32> name{};  ///< truncated
  int32_t rank = 0;             ///< within it
  int32_t size = 1;
};

/// One operation of one rank.
struct FlightEntry {
  Descriptor call;
  FlightGroup group;
  uint64_t number = 0;   ///< counts this rank's operations from 1, over all communicators
  int64_t begin_ns = 0;  ///< of the host's steady clock: the same for all processes of one host
  int64_t end_ns = 0;    ///< 0 until it ends
  FlightState state = FlightState::started;
};

/// The last operations of one rank. Plain memory of fixed size, which may be shared with other processes; zeroed memory
/// is an empty log. One thread writes; any thread or process may read at any time, also after the writer was killed.
class FlightLog {
 public:
  static constexpr size_t kCapacity = 1024;

  /// Returns the entry's number. About 30 ns.
  uint64_t begin(const Descriptor& call, const FlightGroup& group) noexcept;
  void end(uint64_t number, FlightState state) noexcept;

  /// The entry if it has not been overwritten; never a mixture of two.
  std::optional<FlightEntry> entry(uint64_t number) const noexcept;
  /// The number of the last entry; 0 if there is none.
  uint64_t last() const noexcept { return last_.load(std::memory_order_acquire); }
  /// All entries that have not been overwritten, oldest first.
  std::vector<FlightEntry> entries() const;
  /// `rank 2 was last in all_reduce sum fp32 [10] "x" at a/b.cpp:12, operation 7 of "dp", since 3.2 s`.
  std::string last_text(int rank) const;

 private:
  struct Packed {
    Descriptor call;
    FlightGroup group;
    uint64_t begin_ticks = 0;
  };
  static constexpr size_t kWords = sizeof(Packed) / sizeof(uint64_t);
  static_assert(sizeof(Packed) % sizeof(uint64_t) == 0);
  // The words of an entry are written while number is 0, so a reader can tell a complete one.
  struct Slot {
    std::atomic<uint64_t> number;
    std::atomic<uint64_t> end_ticks;
    std::atomic<uint32_t> state;
    std::array<std::atomic<uint64_t>, kWords> words;
  };

  std::atomic<uint64_t> last_;
  std::array<Slot, kCapacity> slots_;
};

/// A rank's log and the handler of its first failure: one per rank, shared by all communicators split from one world.
class FlightRecorder {
 public:
  /// Owns its log.
  FlightRecorder();
  /// Writes to `log`, which `owner` keeps alive.
  FlightRecorder(FlightLog& log, std::shared_ptr<void> owner) : owner_(std::move(owner)), log_(&log) {}

  FlightLog& log() noexcept { return *log_; }
  const FlightLog& log() const noexcept { return *log_; }

  /// `handler` is called once, with the error's text, by the first operation that fails, on the thread that it failed
  /// on.
  void on_failure(std::function<void(std::string_view reason)> handler);
  void failed(std::string_view reason) noexcept;

 private:
  std::shared_ptr<void> owner_;
  FlightLog* log_;
  std::mutex mutex_;
  std::function<void(std::string_view)> handler_;
};

}  // namespace caravan
