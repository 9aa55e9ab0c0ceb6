#include "caravan/techniques/compression/top_k.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/ops/empty.h>
#include <ATen/ops/topk.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/memory/held_blocks.h"
#include "caravan/comm/tensor.h"

namespace caravan {

TopKHook::TopKHook(double fraction) : fraction_(fraction) {
  if (fraction > 0 && fraction <= 1) return;
  throw UsageError({"topk", "fraction", fmt::format("{} of the entries", fraction), "", "use a value in (0, 1]"});
}

std::string TopKHook::name() const { return fmt::format("topk {}", fraction_); }

void TopKHook::reduce(const GradientRange& range, TransferStages& stages) {
  struct Message {
    int64_t chosen = 0;
    at::Tensor values;   ///< of all ranks, [n, chosen]
    at::Tensor indices;  ///< int32, or int64 if a bucket has more entries than that can index; the same
  };
  auto message = std::make_shared<Message>();
  const int64_t count = range.values.numel();
  message->chosen =
      std::clamp<int64_t>(std::llround(fraction_ * static_cast<double>(count)), std::min<int64_t>(1, count), count);
  stages.add([this, range, message, count] {
    const int64_t n = range.axis.size();
    const int64_t own = range.axis.coord();
    message->values = at::empty({n, message->chosen}, range.values.options());
    const bool is_small = count <= std::numeric_limits<int32_t>::max();
    message->indices = at::empty({n, message->chosen}, range.values.options().dtype(is_small ? at::kInt : at::kLong));
    const at::Tensor all = residual_.narrow(0, range.offset, count).add_(range.values);
    if (all.is_meta()) {  // torch's sort also takes a number and an index for each entry
      HeldBlocksScope::hold(16 * count);
      HeldBlocksScope::hold(-16 * count);
    }
    const at::Tensor indices = std::get<1>(at::topk(all.abs(), message->chosen, -1, true, /*sorted=*/false));
    message->values[own].copy_(all.index_select(0, indices));
    message->indices[own].copy_(indices);
    all.index_fill_(0, indices, 0);
    return all_gather_async(range.axis.comm(), message->indices[own], message->indices, {}, name());
  });
  stages.add([this, range, message] {
    return all_gather_async(range.axis.comm(), message->values[range.axis.coord()], message->values, {}, name());
  });
  stages.add_local([range, message] {
    range.values.zero_();
    for (int64_t rank = 0; rank < range.axis.size(); ++rank) {  // in order: the same bits on every rank
      range.values.index_add_(0, message->indices[rank].to(at::kLong), message->values[rank]);
    }
    *message = {};
  });
}

}  // namespace caravan
