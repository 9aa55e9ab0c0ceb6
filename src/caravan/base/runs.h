#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace caravan {

/// Visits the elements [begin, end) of a box of a row-major tensor, in order, as runs that are contiguous both in the
/// tensor and in the box: calls run(index in the global tensor, index in the box, length).
template <class Run>
void for_each_run(const std::vector<int64_t>& global_shape, const std::vector<int64_t>& offset,
                  const std::vector<int64_t>& size, int64_t begin, int64_t end, Run run) {
  // Trailing dims that the box spans are merged into one run with the innermost dim that it does not.
  int cut = static_cast<int>(size.size()) - 1;
  int64_t run_length = 1;
  int64_t stride = 1;  ///< global elements per index of dim `cut`
  for (; cut >= 0; --cut) {
    run_length *= size[cut];
    if (size[cut] != global_shape[cut]) break;
    stride *= global_shape[cut];
  }
  while (begin < end) {
    int64_t row = begin / run_length;
    const int64_t within = begin % run_length;
    int64_t global = cut >= 0 ? offset[cut] * stride : 0;
    for (int64_t dim = cut - 1, width = cut >= 0 ? stride * global_shape[cut] : 0; dim >= 0; --dim) {
      global += (offset[dim] + row % size[dim]) * width;
      row /= size[dim];
      width *= global_shape[dim];
    }
    const int64_t length = std::min(run_length - within, end - begin);
    run(global + within, begin, length);
    begin += length;
  }
}

}  // namespace caravan
