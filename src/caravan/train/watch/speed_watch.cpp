#include "caravan/train/watch/speed_watch.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>

#include "caravan/comm/measure/statistics.h"

namespace caravan {
namespace {

/// The rank that needs most more than usual, and how much more.
struct Most {
  size_t rank = 0;
  double more_ms = 0;
};

Most most_of(const std::vector<RankTimes>& now, const std::vector<RankTimes>& usual, double RankTimes::*part) {
  Most most;
  for (size_t rank = 0; rank < now.size(); ++rank) {
    const double more = now[rank].*part - usual[rank].*part;
    if (more > most.more_ms) most = {rank, more};
  }
  return most;
}

double least_of(const std::vector<RankTimes>& now, const std::vector<RankTimes>& usual, double RankTimes::*part) {
  double least = now[0].*part - usual[0].*part;
  for (size_t rank = 1; rank < now.size(); ++rank) least = std::min(least, now[rank].*part - usual[rank].*part);
  return least;
}

}  // namespace

SpeedWatch::Window SpeedWatch::usual() const {
  const auto median = [&](const std::function<double(const Window&)>& of) {
    std::vector<double> numbers;
    for (const Window& window : windows_) numbers.push_back(of(window));
    return measure::quantile(numbers, 0.5);
  };
  Window usual{.step_ms = median([](const Window& window) { return window.step_ms; })};
  for (size_t rank = 0; rank < windows_.front().ranks.size(); ++rank) {
    const auto part = [&](double RankTimes::*of) {
      return median([&](const Window& window) { return window.ranks[rank].*of; });
    };
    usual.ranks.push_back({part(&RankTimes::busy_ms), part(&RankTimes::data_ms), part(&RankTimes::save_ms)});
  }
  return usual;
}

/// What accounts for at least half of the additional time.
std::string SpeedWatch::cause_of(const Window& now, const Window& usual) {
  const double half = (now.step_ms - usual.step_ms) / 2;
  const bool is_alone = now.ranks.size() == 1;
  const auto of_rank = [&](const Most& most) {
    return is_alone ? std::string() : fmt::format(" of rank {}", most.rank);
  };
  const Most save = most_of(now.ranks, usual.ranks, &RankTimes::save_ms);
  if (save.more_ms >= half) return fmt::format("checkpoints{} take {:.1f} ms of a step", of_rank(save), save.more_ms);
  const Most data = most_of(now.ranks, usual.ranks, &RankTimes::data_ms);
  if (data.more_ms >= half) {
    return fmt::format("the data{} take {:.1f} ms of a step, {:.1f} before", of_rank(data),
                       now.ranks[data.rank].data_ms, usual.ranks[data.rank].data_ms);
  }
  const Most busy = most_of(now.ranks, usual.ranks, &RankTimes::busy_ms);
  if (busy.more_ms < half) return "the ranks compute as fast as before and wait longer for messages: the network";
  const double busy_ms = now.ranks[busy.rank].busy_ms, before_ms = usual.ranks[busy.rank].busy_ms;
  if (is_alone || least_of(now.ranks, usual.ranks, &RankTimes::busy_ms) >= half) {
    return fmt::format("{} for {:.1f} ms of a step, {:.1f} before: do other programs use the processors?",
                       is_alone ? "it computes" : "all ranks compute more slowly, one", busy_ms, before_ms);
  }
  return fmt::format("rank {} computes for {:.1f} ms of a step, {:.1f} before, and the others wait", busy.rank, busy_ms,
                     before_ms);
}

std::string SpeedWatch::add(double step_ms, const std::vector<RankTimes>& ranks) {
  Window now{step_ms, ranks};
  if (windows_.size() >= kLeast) {
    const Window before = usual();
    const bool is_slow = step_ms > kSlower * before.step_ms && step_ms > before.step_ms + kLeast_ms;
    if (is_slow && ++num_slow_ <= kNewLevel) {
      if (num_slow_ > 1) return "";
      return fmt::format("a step takes {:.1f} ms, {:.1f} before: {}", step_ms, before.step_ms, cause_of(now, before));
    }
    if (is_slow) windows_.clear();
    const bool was_slow = num_slow_ > 0 && !is_slow;
    num_slow_ = 0;
    windows_.push_back(std::move(now));
    if (windows_.size() > kWindows) windows_.pop_front();
    return was_slow ? fmt::format("a step takes {:.1f} ms again", step_ms) : "";
  }
  windows_.push_back(std::move(now));
  return "";
}

}  // namespace caravan
