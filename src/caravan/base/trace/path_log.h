#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

namespace caravan {

/// How often each path of execution was taken: a kernel, a ring pass, an algorithm of a collective, a message of a
/// schedule. {"fused attention", 8}.
using PathCounts = std::map<std::string, int64_t>;

inline void add_paths(PathCounts& sum, const PathCounts& more) {
  for (const auto& [path, count] : more) sum[path] += count;
}

/// The path as which a planted fault is counted.
std::string fault_in(std::string_view path);

/// Counts the paths that code takes while a PathScope makes this the log of its thread. A proof that executes other
/// code than the run proves nothing about the run, so `prove` compares these counts (prove/prove_recipe.h).
///
/// A log can also plant a fault: the result of a path with a planted factor is multiplied by it. That tests whether a
/// proof would notice. Paths without a floating-point result are only counted.
///
/// Thread-safe.
class PathLog {
 public:
  explicit PathLog(std::map<std::string, double, std::less<>> planted = {}) : planted_(std::move(planted)) {}

  /// Counts one execution. Returns the factor that the caller has to multiply the path's result by: 1 unless planted.
  [[nodiscard]] double take(std::string_view path);
  /// Counts one execution of a path that has no result to multiply.
  void count(std::string_view path);

  PathCounts counts() const;
  /// Clears the counts, not the planted factors.
  void clear();

  /// The log of this thread, or null.
  static PathLog* current() noexcept;

 private:
  friend class PathScope;
  mutable std::mutex mutex_;
  std::map<std::string, int64_t, std::less<>> counts_;
  std::map<std::string, double, std::less<>> planted_;
};

/// While it lives, `log` is the log of this thread; null suspends counting.
class PathScope {
 public:
  explicit PathScope(PathLog* log) noexcept;
  ~PathScope();
  PathScope(const PathScope&) = delete;
  PathScope& operator=(const PathScope&) = delete;

 private:
  PathLog* before_;
};

/// PathLog::count in this thread's log, if there is one.
inline void count_path(std::string_view path) {
  if (PathLog* log = PathLog::current()) log->count(path);
}

/// PathLog::take in this thread's log, if there is one; else 1.
[[nodiscard]] inline double take_path(std::string_view path) {
  PathLog* log = PathLog::current();
  return log == nullptr ? 1 : log->take(path);
}

}  // namespace caravan
