#include "caravan/base/trace/path_log.h"

namespace caravan {
namespace {

thread_local PathLog* current_log = nullptr;

}  // namespace

std::string fault_in(std::string_view path) { return "fault in " + std::string(path); }

void PathLog::count(std::string_view path) {
  const std::lock_guard lock(mutex_);
  const auto count = counts_.find(path);
  if (count == counts_.end()) {
    counts_.emplace(path, 1);
  } else {
    ++count->second;
  }
}

double PathLog::take(std::string_view path) {
  count(path);
  const auto factor = planted_.find(path);
  if (factor == planted_.end() || factor->second == 1) return 1;
  count(fault_in(path));
  return factor->second;
}

PathCounts PathLog::counts() const {
  const std::lock_guard lock(mutex_);
  return {counts_.begin(), counts_.end()};
}

void PathLog::clear() {
  const std::lock_guard lock(mutex_);
  counts_.clear();
}

PathLog* PathLog::current() noexcept { return current_log; }

PathScope::PathScope(PathLog* log) noexcept : before_(current_log) { current_log = log; }

PathScope::~PathScope() { current_log = before_; }

}  // namespace caravan
