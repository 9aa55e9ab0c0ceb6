#include "caravan/comm/algorithms/problem.h"

#include <algorithm>
#include <numeric>

#include "caravan/base/error.h"
#include "caravan/comm/algorithms/binomial.h"
#include "caravan/comm/algorithms/chain.h"
#include "caravan/comm/algorithms/direct.h"
#include "caravan/comm/algorithms/rabenseifner.h"
#include "caravan/comm/algorithms/recursive_doubling.h"
#include "caravan/comm/algorithms/ring.h"

namespace caravan::algorithms {
namespace {

int64_t sum(const std::vector<int64_t>& counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

MessagePlan direct(const Problem& p) {
  switch (p.verb) {
    case Verb::all_reduce: return direct_all_reduce(p.rank, Parts::equal(p.count, p.size));
    case Verb::all_gather: return direct_all_gather(p.rank, Parts(p.parts));
    case Verb::reduce_scatter: return direct_reduce_scatter(p.rank, Parts(p.parts));
    case Verb::all_to_all: return direct_all_to_all(p.rank, p.send_counts, p.recv_counts);
    case Verb::broadcast: return direct_broadcast(p.rank, p.size, p.count, p.root);
    default: return direct_reduce(p.rank, Parts::equal(p.count, p.size), p.root);
  }
}

MessagePlan ring(const Problem& p) {
  switch (p.verb) {
    case Verb::all_gather: return ring_all_gather(p.rank, Parts(p.parts));
    case Verb::reduce_scatter: return ring_reduce_scatter(p.rank, Parts(p.parts));
    default: return ring_all_reduce(p.rank, Parts::equal(p.count, p.size));
  }
}

}  // namespace

Problem problem_of(const Operation& operation, int rank, int size) {
  Problem problem{.verb = operation.verb, .rank = rank, .size = size};
  switch (operation.verb) {
    case Verb::all_gather: problem.parts = operation.recv_counts; break;
    case Verb::reduce_scatter: problem.parts = operation.send_counts; break;
    case Verb::all_to_all:
      problem.send_counts = operation.send_counts;
      problem.recv_counts = operation.recv_counts;
      break;
    default: problem.root = operation.root; problem.count = operation.in.count;
  }
  return problem;
}

Frame frame_of(const Problem& problem) {
  const bool is_root = problem.rank == problem.root;
  const Range whole{0, problem.count};
  switch (problem.verb) {
    case Verb::all_gather: return {Parts(problem.parts)[problem.rank], Parts(problem.parts).all()};
    case Verb::reduce_scatter: return {Parts(problem.parts).all(), Parts(problem.parts)[problem.rank]};
    case Verb::all_to_all: {
      const int64_t received = sum(problem.recv_counts);
      return {{received, sum(problem.send_counts)}, {0, received}};
    }
    case Verb::broadcast: return {is_root ? whole : Range{}, whole};
    case Verb::reduce: return {whole, is_root ? whole : Range{}};
    default: return {whole, whole};
  }
}

MessagePlan make_plan(Algorithm algorithm, const Problem& problem, int64_t segment) {
  check_serves(algorithm, problem.verb);
  if (algorithm == Algorithm::chain && segment < 1) {
    throw UsageError(
        {.op = "broadcast", .fact = "a chain without segments", .action = "pass segments of at least 1 byte"});
  }
  switch (algorithm) {
    case Algorithm::direct: return direct(problem);
    case Algorithm::ring: return ring(problem);
    case Algorithm::recursive_doubling:
      return problem.verb == Verb::all_gather
                 ? recursive_doubling_all_gather(problem.rank, Parts(problem.parts))
                 : recursive_doubling_all_reduce(problem.rank, problem.size, problem.count);
    case Algorithm::rabenseifner: return rabenseifner_all_reduce(problem.rank, problem.size, problem.count);
    case Algorithm::binomial:
      return problem.verb == Verb::reduce ? binomial_reduce(problem.rank, problem.size, problem.count, problem.root)
                                          : binomial_broadcast(problem.rank, problem.size, problem.count, problem.root);
    case Algorithm::chain: return chain_broadcast(problem.rank, problem.size, problem.count, problem.root, segment);
  }
  return MessagePlan();
}

MessagePlan make_plan(const Choice& choice, const Operation& operation, int rank, int size) {
  const int64_t bytes = choice.segment_bytes;
  const int64_t segment = bytes == 0 ? 0 : std::max<int64_t>(bytes / size_bytes(operation.dtype), 1);
  return make_plan(choice.algorithm, problem_of(operation, rank, size), segment);
}

int64_t whole_bytes(const Operation& operation) {
  const int64_t each = size_bytes(operation.dtype);
  switch (operation.verb) {
    case Verb::all_gather: return operation.out.count * each;
    case Verb::all_to_all: return 0;
    default: return operation.in.count * each;
  }
}

}  // namespace caravan::algorithms
