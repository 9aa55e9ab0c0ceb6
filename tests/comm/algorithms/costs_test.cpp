#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/comm/algorithms/collectives.h"
#include "caravan/comm/record.h"
#include "tests/comm/algorithms/problems.h"

namespace caravan::algorithms::testing::costs_test {
namespace {

/// Elements and messages that a rank sends, by the formulas of the headers, with partial sums counted apart.
struct Sent {
  int64_t messages = 0;
  int64_t elems = 0;
  int64_t partial_elems = 0;
};

/// Evaluates the formulas on counts.
class Formula {
 public:
  Formula(const Case& one, int rank) : one_(one), n_(one.size), r_(rank) {
    const Problem problem = problem_of_rank(one, rank);
    parts_ = problem.parts;
    sends_ = problem.send_counts;
    if (one.verb == Verb::all_reduce || one.verb == Verb::reduce) parts_ = equal(one.count, n_);
  }

  Sent sent() const {
    if (n_ == 1) return {};
    switch (one_.algorithm) {
      case Algorithm::direct: return direct();
      case Algorithm::ring: return ring();
      case Algorithm::recursive_doubling: return one_.verb == Verb::all_gather ? bruck() : doubling();
      case Algorithm::rabenseifner: return rabenseifner();
      case Algorithm::binomial: return binomial();
      case Algorithm::chain: return chain();
    }
    return {};
  }

 private:
  static std::vector<int64_t> equal(int64_t count, int n) {
    std::vector<int64_t> parts;
    for (int i = 0; i < n; ++i) parts.push_back(count / n + (i < count % n ? 1 : 0));
    return parts;
  }
  int64_t part(int i) const { return parts_[static_cast<size_t>((i + n_) % n_)]; }
  int64_t total() const { return std::accumulate(parts_.begin(), parts_.end(), int64_t{0}); }
  /// All parts except part i, each as one message.
  Sent all_but(int i) const {
    const int64_t filled = std::ranges::count_if(parts_, [](int64_t count) { return count > 0; });
    return {filled - (part(i) > 0 ? 1 : 0), total() - part(i)};
  }
  Sent times(int64_t messages, int64_t each) const { return each > 0 ? Sent{messages, messages * each} : Sent{}; }
  static Sent sum(Sent a, Sent b) {
    return {a.messages + b.messages, a.elems + b.elems, a.partial_elems + b.partial_elems};
  }
  static Sent partial(Sent sent) { return {sent.messages, 0, sent.elems}; }

  Sent direct() const {
    switch (one_.verb) {
      case Verb::all_reduce: return sum(all_but(r_), times(n_ - 1, part(r_)));
      case Verb::all_gather: return times(n_ - 1, part(r_));
      case Verb::reduce_scatter: return all_but(r_);
      case Verb::reduce: return sum(all_but(r_), times(r_ == one_.root ? 0 : 1, part(r_)));
      case Verb::broadcast: return r_ == one_.root ? times(n_ - 1, one_.count) : Sent{};
      default: break;
    }
    Sent sent;
    for (int peer = 0; peer < n_; ++peer) {
      if (peer != r_) sent = sum(sent, times(1, sends_[static_cast<size_t>(peer)]));
    }
    return sent;
  }

  Sent ring() const {
    const Sent scatter = partial(all_but(r_));
    const Sent gather = all_but(r_ + 1);
    if (one_.verb == Verb::reduce_scatter) return scatter;
    return one_.verb == Verb::all_gather ? gather : sum(scatter, gather);
  }

  int log() const { return static_cast<int>(std::bit_width(static_cast<unsigned>(n_))) - 1; }
  int aside() const { return n_ - (1 << log()); }
  bool is_aside() const { return r_ < 2 * aside() && r_ % 2 == 0; }
  Sent result_to_aside() const { return times(r_ < 2 * aside() ? 1 : 0, one_.count); }

  Sent doubling() const {
    if (is_aside()) return partial(times(1, one_.count));
    return sum(partial(times(log(), one_.count)), result_to_aside());
  }

  Sent rabenseifner() const {
    if (is_aside()) return partial(times(1, one_.count));
    const int actors = 1 << log();
    const int actor = r_ < 2 * aside() ? r_ / 2 : r_ - aside();
    const std::vector<int64_t> parts = equal(one_.count, actors);
    const auto block = [&](int begin, int length) {
      return std::accumulate(parts.begin() + begin, parts.begin() + begin + length, int64_t{0});
    };
    Sent sent = result_to_aside();
    for (int length = 1; length < actors; length *= 2) {
      const int own = actor / length * length;
      const int other = actor / length % 2 == 0 ? own + length : own - length;
      sent = sum(sent, sum(partial(times(1, block(other, length))), times(1, block(own, length))));
    }
    return sent;
  }

  Sent bruck() const {
    Sent sent;
    for (int distance = 1; distance < n_; distance *= 2) {
      const int num = std::min(distance, n_ - distance);
      std::array<int64_t, 2> ranges{};  // before and after the end
      for (int i = r_; i < r_ + num; ++i) ranges[i < n_ ? 0 : 1] += part(i % n_);
      for (const int64_t range : ranges) sent = sum(sent, times(1, range));
    }
    return sent;
  }

  Sent binomial() const {
    const int v = (r_ - one_.root + n_) % n_;
    if (one_.verb == Verb::reduce) return partial(times(v == 0 ? 0 : 1, one_.count));
    int64_t children = 0;
    const int lowest_bit = v == 0 ? n_ : v & -v;
    for (int distance = 1; distance < lowest_bit; distance *= 2) children += v + distance < n_ ? 1 : 0;
    return times(children, one_.count);
  }

  Sent chain() const {
    const bool is_last = r_ == (one_.root + n_ - 1) % n_;
    return is_last ? Sent{} : Sent{(one_.count + one_.segment - 1) / one_.segment, one_.count};
  }

  const Case& one_;
  int n_;
  int r_;
  std::vector<int64_t> parts_;
  std::vector<int64_t> sends_;
};

void compare(const Case& one, int rank, Dtype dtype, ReduceOp op) {
  SCOPED_TRACE(text(one) + ", rank " + std::to_string(rank) + ", " + std::string(caravan::name(dtype)));
  const auto world = make_record_world(rank, one.size);
  const Frame frame = frame_of(problem_of_rank(one, rank));
  const Buffer in{nullptr, frame.input.count, dtype, {}};
  const Buffer out{nullptr, frame.result.count, dtype, {}};
  run(*world, operation_of(one, rank, in, out, op), choice_of(one, dtype));
  const Sent sent = Formula(one, rank).sent();
  const int64_t partial_bytes = (dtype == Dtype::bf16 && op == ReduceOp::sum) ? 4 : size_bytes(dtype);
  EXPECT_EQ(world->traffic().calls[static_cast<size_t>(Verb::send)], sent.messages);
  EXPECT_EQ(world->traffic().bytes[static_cast<size_t>(Verb::send)],
            sent.elems * size_bytes(dtype) + sent.partial_elems * partial_bytes);
  EXPECT_EQ(world->traffic().bytes[static_cast<size_t>(Verb::send)], world->traffic().total_bytes());
}

std::vector<int> some_ranks(int size) {
  if (size > 40) return {0, 1, 2, size / 2 - 1, size / 2, size - 1};
  std::vector<int> all(static_cast<size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

class Costs : public ::testing::TestWithParam<int> {};

TEST_P(Costs, MessagesAndBytesFollowTheFormulas) {
  for (Case one : every_algorithm()) {
    one.size = GetParam();
    one.root = one.size / 3;
    for (const int64_t count : {0, 1, 3, 7, 1000, 1'000'003}) {
      one.count = count;
      one.segment = 4099;
      for (const bool uneven : {false, true}) {
        one.uneven = uneven;
        for (const int rank : some_ranks(one.size)) compare(one, rank, Dtype::fp32, ReduceOp::sum);
      }
    }
  }
}

TEST_P(Costs, PartialSumsOf16BitFloatsTakeTwiceTheBytes) {
  for (Case one : every_algorithm()) {
    one.size = GetParam();
    one.count = 1001;
    one.segment = 100;
    for (const int rank : some_ranks(one.size)) {
      compare(one, rank, Dtype::bf16, ReduceOp::sum);
      compare(one, rank, Dtype::bf16, ReduceOp::max);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Costs, ::testing::Values(1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 31, 1024));

}  // namespace
}  // namespace caravan::algorithms::testing::costs_test
