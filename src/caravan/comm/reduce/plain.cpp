#include "caravan/comm/reduce/loops.h"

namespace caravan::shared {

void reduce_plain(const Reduction& reduction) { reduce(reduction); }

}  // namespace caravan::shared
