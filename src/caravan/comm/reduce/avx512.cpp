#include "caravan/comm/shared/reduce_loops.h"

namespace caravan::shared {

void reduce_avx512(const Reduction& reduction) { reduce(reduction); }

}  // namespace caravan::shared
