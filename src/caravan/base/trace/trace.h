#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace caravan {

/// What one rank does over a period of time: spans in named rows. Thread-safe: an operation may complete on another
/// thread than the one that issued it. Created by std::make_shared, since such an operation may outlive its owner.
class TraceLog : public std::enable_shared_from_this<TraceLog> {
 public:
  virtual ~TraceLog() = default;

  /// Numbers attached to a span: {"bytes", 4096}.
  using Args = std::vector<std::pair<const char*, int64_t>>;
  struct Span {
    std::string row;
    std::string name;
    Args args;
    int64_t begin_ns = 0;  ///< of the host's steady clock
    int64_t end_ns = 0;    ///< 0 until it ends
  };

  /// The rows of the rank's computation, and of its waits for operations.
  static constexpr std::string_view kCompute = "compute";
  static constexpr std::string_view kWait = "wait";

  /// The trace of the calling thread's innermost TraceScope; null: nothing is traced.
  static TraceLog* current() noexcept { return innermost; }
  static int64_t now_ns() noexcept;

  using ArgList = std::initializer_list<Args::value_type>;
  /// In the trace of this thread, if any: a span that lasts until the next lap begins, or end_lap(). For callers that
  /// know when something begins, but not when it ends.
  static void begin_lap(std::string_view row, std::string_view kind, std::string_view what, ArgList args) {
    if (innermost != nullptr) innermost->start_lap(row, kind, what, args);
  }
  static void end_lap() noexcept {
    if (innermost != nullptr) innermost->stop_lap();
  }

  /// Returns the number of the span.
  virtual size_t begin(std::string_view row, std::string name, Args args = {});
  /// Does nothing for a span that has ended.
  virtual void end(size_t number) noexcept;

  /// Returns the spans in the order in which they began. Those that have not ended end now.
  std::vector<Span> spans() const;

 private:
  friend class TraceScope;
  static thread_local constinit TraceLog* innermost;
  void start_lap(std::string_view row, std::string_view kind, std::string_view what, ArgList args);
  void stop_lap() noexcept;

  mutable std::mutex mutex_;
  std::vector<Span> spans_;
  std::optional<size_t> lap_;  ///< of the rank's thread
};

/// Makes `trace` the trace of this thread during its lifetime; each rank that is a thread makes one. Null: no trace.
class TraceScope {
 public:
  explicit TraceScope(std::shared_ptr<TraceLog> trace) noexcept;
  ~TraceScope();
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  std::shared_ptr<TraceLog> trace_;
  TraceLog* outer_;
};

/// A span from its construction until end() or its destruction. Without a trace it costs one test of a pointer.
class TraceSpan {
 public:
  /// Named "kind what", or "kind" if there is no `what`.
  TraceSpan(std::string_view row, std::string_view kind, std::string_view what = {}, TraceLog::ArgList args = {}) {
    if (TraceLog::current() != nullptr) begin(row, kind, what, args);
  }
  ~TraceSpan() { end(); }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

  void end() noexcept;

 private:
  void begin(std::string_view row, std::string_view kind, std::string_view what, TraceLog::ArgList args);

  std::shared_ptr<TraceLog> trace_;
  size_t number_ = 0;  ///< in trace_
};

}  // namespace caravan
