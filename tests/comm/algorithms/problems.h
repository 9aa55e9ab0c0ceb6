#pragma once

#include <string>
#include <vector>

#include "caravan/comm/algorithms/problem.h"

namespace caravan::algorithms::testing {

/// One collective: of `verb`, `size` ranks and about `count` elements, with uneven parts if the verb supports them.
struct Case {
  Verb verb = Verb::all_reduce;
  Algorithm algorithm = Algorithm::direct;
  int size = 1;
  int root = 0;
  int64_t count = 0;
  int64_t segment = 1;  ///< elements, of chain
  bool uneven = false;
};
std::string text(const Case& one);

Problem problem_of_rank(const Case& one, int rank);
/// By rank.
std::vector<Problem> problems_of(const Case& one);
std::vector<MessagePlan> plans_of(const Case& one);

/// `one` as rank `rank` calls it; broadcast takes `out` only.
Operation operation_of(const Case& one, int rank, const Buffer& in, const Buffer& out, ReduceOp op);
/// The algorithm of `one`, for elements of `dtype`.
Choice choice_of(const Case& one, Dtype dtype);

/// Every verb with every algorithm that serves it.
std::vector<Case> every_algorithm();

/// What rank `from` sends to rank `to` in an all_to_all of about `count` elements.
int64_t exchanged(int from, int to, int64_t count);

}  // namespace caravan::algorithms::testing
