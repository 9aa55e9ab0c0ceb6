#pragma once

#include <chrono>

#include "caravan/comm/job_key.h"

namespace caravan {

/// The lines a server writes about connections it refused: at most kLinesASecond, so that a flood of strangers does
/// not become a flood of lines; those left out are counted. Used by one thread.
class StoreLog {
 public:
  static constexpr int kLinesASecond = 10;

  explicit StoreLog(LogLine line) : line_(std::move(line)) {}
  ~StoreLog() { tell_left_out(); }
  StoreLog(const StoreLog&) = delete;
  StoreLog& operator=(const StoreLog&) = delete;

  void refused(const std::string& peer, const std::string& reason);

  /// When `tell_left_out` is next to be called.
  std::chrono::steady_clock::time_point due() const noexcept;
  void tell_left_out();

 private:
  LogLine line_;
  std::chrono::steady_clock::time_point second_begins_{};
  int in_this_second_ = 0;
  int left_out_ = 0;
};

}  // namespace caravan
