#include <vector>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/techniques/context/context_parallel.h"
#include "caravan/techniques/context/striped.h"
#include "caravan/techniques/technique_body.h"

namespace caravan {
namespace {

DimIndex striped_order(int64_t length, int n) {
  if (length % n != 0) {
    const int64_t below = length / n * n;
    throw ShapeError(
        {"context parallel", "sequence", fmt::format("{} tokens do not split into stripes of {} ranks", length, n), "",
         below > 0 ? fmt::format("use {} or {} tokens", below, below + n) : fmt::format("use {} tokens", n)});
  }
  std::vector<DimIndex::Run> tokens;
  tokens.reserve(static_cast<size_t>(length));
  for (int64_t coord = 0; coord < n; ++coord) {
    for (int64_t token = coord; token < length; token += n) tokens.push_back({token, 1});
  }
  return {std::move(tokens), length};
}

RingPart striped_part(int coord, int turn, int n, int64_t length) {
  const int from = (coord + n - turn) % n;
  if (from <= coord) return {from, 0, length, length, true};
  return {from, 1, length - 1, length - 1, true};
}

}  // namespace

RingOrder striped() { return {.name = "striped()", .pieces = 1, .tokens = striped_order, .part = striped_part}; }

Plan striped_body(const Splitting& to, const Setting&) {
  return context_parallel(
      to.model, to.mesh,
      {.ring = "cp", .head_parts = to.others.heads, .stream_parts = to.others.stream, .ring_order = striped()});
}

}  // namespace caravan
