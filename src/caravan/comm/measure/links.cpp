#include "caravan/comm/measure/links.h"

#include <chrono>

#include "caravan/comm/measure/pattern.h"
#include "caravan/comm/measure/statistics.h"

namespace caravan::measure {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kLongBytes = int64_t{4} << 20;
constexpr int kWarmUps = 5;
constexpr int kShortRepeats = 101;
constexpr int kLongRepeats = 7;
constexpr double kBudget_s = 0.2;  // a slow link is repeated less often

double elapsed_s(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

/// The two ends of one link.
class Line {
 public:
  Line(Communicator& world, int from, int to) : world_(world), from_(from), to_(to) {
    long_.resize(static_cast<size_t>(kLongBytes));
  }

  Link measure() {
    Link link{.from = from_, .to = to_};
    link.is_right = payload_is_right();
    link.latency_us = median_seconds(8, kShortRepeats) / 2 * 1e6;
    link.bandwidth_gb_s = static_cast<double>(kLongBytes) / median_seconds(kLongBytes, kLongRepeats) / 1e9;
    return link;
  }

 private:
  bool sends() const { return world_.rank() == from_; }

  /// `bytes` there, 8 bytes back.
  void round_trip(int64_t bytes) {
    const Buffer there{long_.data(), bytes, Dtype::uint8};
    const Buffer back{&answer_, 8, Dtype::uint8};
    if (sends()) {
      world_.send(there, to_, "link");
      world_.recv(back, to_, "link");
    } else {
      world_.recv(there, from_, "link");
      world_.send(back, from_, "link");
    }
  }

  double median_seconds(int64_t bytes, int repeats) {
    std::vector<double> taken;
    const auto begin = Clock::now();
    for (int i = 0; i < (bytes == 8 ? kWarmUps : 1); ++i) round_trip(bytes);
    for (int i = 0; i < repeats; ++i) {
      const auto start = Clock::now();
      round_trip(bytes);
      taken.push_back(elapsed_s(start));
      // The sender decides, and sends its decision, since both must do the same number.
      int64_t goes_on = i < 2 || elapsed_s(begin) < kBudget_s ? 1 : 0;
      const Buffer word{&goes_on, 1, Dtype::int64};
      if (sends()) world_.send(word, to_, "link");
      if (!sends()) world_.recv(word, from_, "link");
      if (goes_on == 0) break;
    }
    return quantile(taken, 0.5);
  }

  bool payload_is_right() {
    const Pattern pattern = Pattern::of_rank(Dtype::uint8, from_, world_.size());
    if (sends()) pattern.write(long_.data(), kLongBytes);
    round_trip(kLongBytes);
    int64_t right = 1;
    const Buffer word{&right, 1, Dtype::int64};
    if (sends()) {
      world_.recv(word, to_, "link");
    } else {
      right = pattern.difference(long_.data(), kLongBytes).empty() ? 1 : 0;
      world_.send(word, from_, "link");
    }
    return right == 1;
  }

  Communicator& world_;
  int from_;
  int to_;
  std::vector<std::byte> long_;
  int64_t answer_ = 0;
};

}  // namespace

std::vector<Link> measure_links(Communicator& world) {
  std::vector<Link> links;
  for (int from = 0; from < world.size(); ++from) {
    for (int to = 0; to < world.size(); ++to) {
      if (from == to) continue;
      world.barrier("next link");
      Link link{.from = from, .to = to};
      if (world.rank() == from || world.rank() == to) link = Line(world, from, to).measure();
      world.broadcast({&link, sizeof(link), Dtype::uint8}, from, "link's time");
      links.push_back(link);
    }
  }
  return links;
}

}  // namespace caravan::measure
