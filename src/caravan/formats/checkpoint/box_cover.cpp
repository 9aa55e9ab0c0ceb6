#include "caravan/formats/checkpoint/box_cover.h"

#include <algorithm>
#include <utility>

namespace caravan {
namespace {

/// A box that is counted `sign` times.
struct SignedBox {
  const Box* box = nullptr;
  int sign = 1;
};

/// Whether the boxes, projected to `dims` from `next` on, add up to 0 everywhere. They do if and only if the sum does
/// not change at any coordinate of the next dim. A box enters the sum where it begins and leaves it where it ends.
bool adds_up_to_zero(const std::vector<SignedBox>& boxes, const std::vector<size_t>& dims, size_t next) {
  if (next == dims.size()) {
    int64_t sum = 0;
    for (const SignedBox& box : boxes) sum += box.sign;
    return sum == 0;
  }
  std::vector<std::pair<int64_t, SignedBox>> changes;
  changes.reserve(2 * boxes.size());
  for (const SignedBox& one : boxes) {
    const int64_t begin = one.box->offset[dims[next]], size = one.box->size[dims[next]];
    if (size == 0) continue;
    changes.push_back({begin, one});
    changes.push_back({begin + size, {one.box, -one.sign}});
  }
  std::ranges::sort(changes, {}, &std::pair<int64_t, SignedBox>::first);
  std::vector<SignedBox> here;
  for (size_t i = 0; i < changes.size(); ++i) {
    here.push_back(changes[i].second);
    if (i + 1 < changes.size() && changes[i + 1].first == changes[i].first) continue;
    if (!adds_up_to_zero(here, dims, next + 1)) return false;
    here.clear();
  }
  return true;
}

}  // namespace

std::vector<size_t> cut_dims(const std::vector<int64_t>& shape, const std::vector<Box>& boxes) {
  std::vector<size_t> dims;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (std::ranges::any_of(boxes, [&](const Box& box) { return box.size[d] != shape[d]; })) dims.push_back(d);
  }
  return dims;
}

bool covers_once(const std::vector<int64_t>& shape, const std::vector<Box>& boxes) {
  if (std::ranges::find(shape, 0) != shape.end()) return true;
  const Box whole{std::vector<int64_t>(shape.size(), 0), shape};
  std::vector<SignedBox> all{{&whole, -1}};
  for (const Box& box : boxes) all.push_back({&box, 1});
  return adds_up_to_zero(all, cut_dims(shape, boxes), 0);
}

}  // namespace caravan
