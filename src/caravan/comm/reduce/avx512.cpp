#include "caravan/comm/reduce/loops.h"

namespace caravan::shared {

void reduce_avx512(const Reduction& reduction) { reduce(reduction); }

}  // namespace caravan::shared
