#pragma once

#include "caravan/base/memory/page_loan.h"

namespace at {
class Tensor;
}

namespace caravan {

/// A loan of the memory of a contiguous tensor, which outlives it. Of a meta tensor in a HeldBlocksScope: the same on
/// what is counted. It does nothing where the memory is not that of a Runtime's allocator.
PageLoan loan_of(const at::Tensor& tensor);

}  // namespace caravan
