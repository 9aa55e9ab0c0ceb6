#include "caravan/techniques/context/ring_order.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/divisors.h"
#include "caravan/base/error.h"

namespace caravan {

DimIndex zigzag_order(int64_t length, int n) {
  if (n == 1) return {0, length, length};
  const int64_t chunks = 2 * int64_t{n};
  if (length % chunks != 0) {
    throw ShapeError({"context parallel", "sequence",
                      fmt::format("{} tokens do not split into 2 chunks for each of {} ranks", length, n), "",
                      fmt::format("use {} tokens", multiples_near(length, chunks))});
  }
  const int64_t count = length / chunks;
  std::vector<DimIndex::Run> runs;
  for (int64_t k = 0; k < n; ++k) {
    runs.push_back({k * count, count});
    runs.push_back({(chunks - 1 - k) * count, count});
  }
  return {std::move(runs), length};
}

RingPart zigzag_part(int coord, int turn, int n, int64_t length) {
  const int from = (coord + n - turn) % n;
  // For a coordinate before this one, all queries see the first chunk and none the second; for one after it, the second
  // chunk of queries sees both.
  if (from == coord) return {from, 0, length, length, true};
  if (from < coord) return {from, 0, length, length / 2, false};
  return {from, length / 2, length / 2, length, false};
}

RingOrder zigzag() { return {.name = "zigzag_order", .pieces = 2, .tokens = zigzag_order, .part = zigzag_part}; }

}  // namespace caravan
