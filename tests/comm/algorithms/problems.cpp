#include "tests/comm/algorithms/problems.h"

#include "caravan/comm/operations.h"

namespace caravan::algorithms::testing {

std::string text(const Case& one) {
  return std::string(name(one.algorithm)) + " " + std::string(caravan::name(one.verb)) + ", " +
         std::to_string(one.size) + " ranks, " + std::to_string(one.count) + " elements, root " +
         std::to_string(one.root) + ", segments of " + std::to_string(one.segment) + (one.uneven ? ", uneven" : "");
}

int64_t exchanged(int from, int to, int64_t count) { return (count + 3 * from + 5 * to) % (count / 2 + 3); }

Problem problem_of_rank(const Case& one, int rank) {
  Problem problem{.verb = one.verb, .rank = rank, .size = one.size, .root = one.root, .count = one.count};
  for (int peer = 0; peer < one.size; ++peer) {
    const int64_t even = one.count / one.size + (peer < one.count % one.size ? 1 : 0);
    problem.parts.push_back(one.uneven ? exchanged(0, peer, one.count) : even);
    problem.send_counts.push_back(exchanged(rank, peer, one.count));
    problem.recv_counts.push_back(exchanged(peer, rank, one.count));
  }
  return problem;
}

std::vector<Problem> problems_of(const Case& one) {
  std::vector<Problem> problems;
  for (int rank = 0; rank < one.size; ++rank) problems.push_back(problem_of_rank(one, rank));
  return problems;
}

std::vector<MessagePlan> plans_of(const Case& one) {
  std::vector<MessagePlan> plans;
  for (const Problem& problem : problems_of(one)) {
    plans.push_back(make_plan(one.algorithm, problem, one.segment));
  }
  return plans;
}

Operation operation_of(const Case& one, int rank, const Buffer& in, const Buffer& out, ReduceOp op) {
  const Problem problem = problem_of_rank(one, rank);
  switch (one.verb) {
    case Verb::all_reduce: return all_reduce_operation(in, out, op, {});
    case Verb::all_gather: return all_gather_operation(in, out, problem.parts, one.size, {});
    case Verb::reduce_scatter: return reduce_scatter_operation(in, out, op, problem.parts, one.size, {});
    case Verb::all_to_all: return all_to_all_operation(in, out, problem.send_counts, problem.recv_counts, one.size, {});
    case Verb::broadcast: return broadcast_operation(out, one.root, {});
    default: return reduce_operation(in, out, op, one.root, {});
  }
}

Choice choice_of(const Case& one, Dtype dtype) {
  return {one.algorithm, one.algorithm == Algorithm::chain ? one.segment * size_bytes(dtype) : 0};
}

std::vector<Case> every_algorithm() {
  std::vector<Case> cases;
  for (const Verb verb : kVerbs) {
    for (const Algorithm algorithm : algorithms_for(verb)) cases.push_back({.verb = verb, .algorithm = algorithm});
  }
  return cases;
}

}  // namespace caravan::algorithms::testing
