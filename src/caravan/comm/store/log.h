#pragma once

#include <chrono>

#include "caravan/comm/store/secret/job_key.h"

namespace caravan {

/// Logs refused connections. At most kMaxLinesPerSecond, so that a flood of connections does not flood the log; the
/// number of omitted lines is logged, too. Not thread-safe.
class StoreLog {
 public:
  static constexpr int kMaxLinesPerSecond = 10;

  explicit StoreLog(LogLine line) : line_(std::move(line)) {}
  ~StoreLog() { log_omitted(); }
  StoreLog(const StoreLog&) = delete;
  StoreLog& operator=(const StoreLog&) = delete;

  void refused(const std::string& peer, const std::string& reason);

  /// When to call log_omitted() next.
  std::chrono::steady_clock::time_point due() const noexcept;
  void log_omitted();

 private:
  LogLine line_;
  std::chrono::steady_clock::time_point second_begins_{};
  int num_in_second_ = 0;
  int num_omitted_ = 0;
};

}  // namespace caravan
