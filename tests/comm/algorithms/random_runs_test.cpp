#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "caravan/comm/algorithms/collectives.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "tests/comm/algorithms/problems.h"
#include "tests/comm/reference.h"

namespace caravan::algorithms::testing::random_runs_test {
namespace {

using caravan::testing::Data;
using caravan::testing::input_of;
using caravan::testing::inputs_of;
using caravan::testing::reduced;

struct Sum {
  Dtype dtype;
  ReduceOp op;
};

/// The expected result of `problem`'s rank.
Data expected(const Case& one, const Problem& problem, const Sum& sum) {
  const Range result = frame_of(problem).result;
  Data all(0, sum.dtype);
  switch (one.verb) {
    case Verb::broadcast: return input_of(one.root, one.count, sum.dtype);
    case Verb::all_gather:
      for (int rank = 0; rank < one.size; ++rank) {
        all.append(input_of(rank, problem.parts[static_cast<size_t>(rank)], sum.dtype));
      }
      return all;
    case Verb::all_to_all:
      for (int rank = 0; rank < one.size; ++rank) {
        const Problem sender = problem_of_rank(one, rank);
        const Range part = Parts(sender.send_counts)[problem.rank];
        all.append(input_of(rank, frame_of(sender).input.count, sum.dtype).copy_of_part(part.begin, part.count));
      }
      return all;
    default: {
      const int64_t total = frame_of(problem).input.count;
      const Data whole = reduced(inputs_of(one.size, total, sum.dtype), sum.op);
      return whole.copy_of_part(result.begin, result.count);
    }
  }
}

/// Runs `one` on a rank. Returns true if the result is right and the input was not written.
bool is_right(Communicator& comm, const Case& one, const Sum& sum) {
  const Problem problem = problem_of_rank(one, comm.rank());
  const Frame frame = frame_of(problem);
  const Data input = input_of(comm.rank(), frame.input.count, sum.dtype);
  Data in = input;
  Data out(frame.result.count, sum.dtype);
  if (one.verb == Verb::broadcast && comm.rank() == one.root) out = in;
  run(comm, operation_of(one, comm.rank(), in.buffer(), out.buffer(), sum.op), choice_of(one, sum.dtype));
  return in == input && out == expected(one, problem, sum);
}

RC_GTEST_PROP(RandomRuns, EqualTheReference, ()) {
  const std::vector<Case> all = every_algorithm();
  Case one = all[*rc::gen::inRange<size_t>(0, all.size())];
  one.size = *rc::gen::inRange(1, 6);
  one.root = *rc::gen::inRange(0, one.size);
  one.count = *rc::gen::inRange(0, 300);
  one.segment = *rc::gen::inRange(1, 200);
  one.uneven = *rc::gen::arbitrary<bool>();
  const Sum sum = *rc::gen::element(Sum{Dtype::fp32, ReduceOp::sum}, Sum{Dtype::bf16, ReduceOp::sum},
                                    Sum{Dtype::int32, ReduceOp::max});
  RC_LOG() << text(one) << ", " << caravan::name(sum.dtype) << "\n";
  std::vector<char> right(static_cast<size_t>(one.size));
  const CommOptions short_waits{.timeout = std::chrono::seconds(20)};
  run_thread_ranks(
      one.size,
      [&](const std::shared_ptr<Communicator>& world) {
        right[static_cast<size_t>(world->rank())] = is_right(*world, one, sum) ? 1 : 0;
      },
      short_waits);
  RC_ASSERT(std::ranges::count(right, 1) == one.size);
}

}  // namespace
}  // namespace caravan::algorithms::testing::random_runs_test
