#pragma once

#include <cstdint>

#include "caravan/comm/algorithms/message_plan.h"

namespace caravan::algorithms {

// A tree: in each step every rank that has the vector sends it to one that does not, first half the ring away, then a
// quarter, .. reduce runs the same tree backwards, with sums. n ranks, x bytes, k = ceil(log2 n):
//
//               steps  bytes sent by a rank               16-bit sums
//   broadcast   k      k x by the root, x/2 on average
//   reduce      k      x by all except the root           2x by all except the root
//
// It sends n - 1 messages in all, the minimum. Best for short vectors: every rank must receive all of a long one before
// it sends it on, while a chain forwards segments. Sums are a tree of neighbours, in the order of ranks from the root
// on: the same in every run with this root.
// Source: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, IJHPCA 19
// (2005).

MessagePlan binomial_broadcast(int rank, int size, int64_t count, int root);
MessagePlan binomial_reduce(int rank, int size, int64_t count, int root);

}  // namespace caravan::algorithms
