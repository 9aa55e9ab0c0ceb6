#include "caravan/techniques/compression/compress_hook.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "caravan/base/error.h"
#include "caravan/comm/tensor.h"

namespace caravan {

void CompressHook::reduce(const GradientRange& range, TransferStages& stages) {
  auto message = std::make_shared<at::Tensor>();
  stages.add([this, range, message] {
    *message = compress_(range.values).contiguous();
    return all_reduce_async(range.axis.comm(), *message, *message, ReduceOp::sum, name_);
  });
  stages.add_local([this, range, message] {
    const at::Tensor sum = decompress_(*message);
    if (sum.sizes() != range.values.sizes()) {
      const std::string first = range.pieces.empty() ? "" : range.pieces.front().name;
      throw UsageError({name_, first,
                        fmt::format("the hook returns [{}] for gradients of [{}]", fmt::join(sum.sizes(), ", "),
                                    fmt::join(range.values.sizes(), ", ")),
                        range.axis.where(), "let decompress return the shape that compress is given"});
    }
    range.values.copy_(sum);
    *message = at::Tensor();
  });
}

}  // namespace caravan
