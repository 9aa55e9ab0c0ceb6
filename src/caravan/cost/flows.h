#pragma once

#include <cstddef>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace caravan {

/// What one rank sends, on a clock. Transfers of one channel follow each other; others run at the same time and share
/// links: where all that run together need a level for longer than there is time, each of those which use it is slowed
/// by that factor.
class Flows {
 public:
  struct Transfer {
    double ready = 0;             ///< not before `begin` of the last compute(), nor the last end that was asked for
    double seconds = 0;           ///< if it is alone
    std::vector<double> loads{};  ///< by level of links: share of its time in which it keeps the level busy
  };
  struct Interval {
    double begin = 0, end = 0;
  };

  /// Returns its number.
  size_t add(const std::string& channel, Transfer transfer);
  /// The same for a transfer that others wait for too: it ends when it would if nothing were added, whatever is.
  Interval add_fixed(const std::string& channel, Transfer transfer);
  /// Runs until a transfer is through. Once for each number.
  Interval finish(size_t number);
  /// Runs kernels of `seconds` from `begin` on, which take 1 + `slowdown` times as long while a transfer runs. Returns
  /// when they are through.
  double compute(double begin, double seconds, double slowdown);
  /// When all that has been added to a channel is through, if nothing else is added.
  double is_free(const std::string& channel) const;

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  struct Flow {
    size_t number = 0, channel = 0;
    Transfer transfer;
    double left = 0;        ///< seconds, if it were alone
    double begin = kNever;  ///< until it runs
    double fixed = kNever;  ///< when it ends whatever happens
    double end = kNever;    ///< if nothing changes; of those that run
    bool runs() const noexcept { return begin < kNever; }
  };

  size_t channel_of(const std::string& name) { return channels_.try_emplace(name, channels_.size()).first->second; }
  Flow& push(const std::string& channel, Transfer transfer);
  bool is_running() const;
  void start_ready();
  /// To the next change, but not beyond `limit`.
  void step(double limit);
  void run_until(double time);

  double now_ = 0;
  size_t num_added_ = 0;
  std::vector<Flow> open_;  ///< not through, in the order in which they were added
  std::map<size_t, Interval> through_;
  std::map<std::string, size_t> channels_;
};

}  // namespace caravan
