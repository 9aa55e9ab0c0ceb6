#pragma once

#include <string>
#include <vector>

#include "caravan/comm/algorithms/problem.h"

namespace caravan::algorithms::testing {

/// One collective: of `verb`, `size` ranks and about `count` elements, with uneven parts where the verb takes them.
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
/// Of rank i, at i.
std::vector<Problem> problems_of(const Case& one);
std::vector<Schedule> schedules_of(const Case& one);

/// Every verb with every algorithm that serves it.
std::vector<Case> every_algorithm();

/// What rank `from` sends to rank `to` in an all_to_all of about `count` elements.
int64_t exchanged(int from, int to, int64_t count);

}  // namespace caravan::algorithms::testing
