#include <numeric>

#include "caravan/redistribute/cell.h"
#include "caravan/redistribute/redistribute.h"

namespace caravan {
namespace {

/// The collective of a cell from one rank's view: the arguments of wire_bytes.
struct Sent {
  Verb verb;
  int64_t in;       ///< elements of this rank's input
  int64_t own = 0;  ///< those of them that stay on this rank
  int root = -1;
};

int64_t elements(std::span<const int64_t> shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

Sent all_to_all(const Cell& cell, std::span<const int64_t> shape, int coord) {
  const Exchange rows = exchange_of(cell, coord);
  std::vector<int64_t> own(shape.begin(), shape.end());
  own[cell.to.dim()] = rows.send[coord];
  return {Verb::all_to_all, elements(shape), elements(own)};
}

Sent verb_of(const Cell& cell, std::span<const int64_t> shape, int coord) {
  const Placement& from = cell.from;
  const Placement& to = cell.to;
  const int64_t x = elements(shape);
  if (from.is_partial()) {
    if (to.is_whole()) return {Verb::all_reduce, x};
    if (to.owner() >= 0) return {Verb::reduce, x, 0, to.owner()};
    return {Verb::reduce_scatter, x, elements(shape_after(cell, shape, coord))};
  }
  if (to.is_whole()) {
    if (from.owner() < 0) return {Verb::all_gather, x};
    return {Verb::broadcast, elements(shape_after(cell, shape, coord)), 0, from.owner()};
  }
  if (from.owner() < 0 || to.owner() < 0) return all_to_all(cell, shape, coord);
  const bool sends = from.owner() != to.owner() && coord == from.owner();
  return {Verb::send, sends ? x : 0};
}

}  // namespace

int64_t redistribute_bytes(const std::vector<int64_t>& local_shape, int64_t element_bytes, const Placement& from,
                           const Placement& to, const MeshAxis& axis) {
  const CallSite site{"redistribute_bytes", local_shape, axis, nullptr, nullptr};
  check_dim(from, local_shape.size(), site);
  check_dim(to, local_shape.size(), site);
  if (from == to || axis.size() == 1) return 0;
  const Cell cell = make_cell(from, to, site);
  if (cell.is_same_data() || from.is_whole() || to.is_partial()) return 0;
  const Sent sent = verb_of(cell, local_shape, axis.coord());
  return wire_bytes(sent.verb, axis.coord(), axis.size(), sent.in * element_bytes, sent.own * element_bytes, sent.root);
}

}  // namespace caravan
