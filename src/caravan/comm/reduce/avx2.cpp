#include "caravan/comm/reduce/loops.h"

namespace caravan::shared {

void reduce_avx2(const Reduction& reduction) { reduce(reduction); }

}  // namespace caravan::shared
