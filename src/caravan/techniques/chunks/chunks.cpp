#include "caravan/techniques/chunks/chunks.h"

namespace caravan {

void add_chunks(Strategy& strategy, const ChunkOptions& options) {
  strategy.chunks = {
      .bytes = options.bytes, .is_used = true, .policy = options.policy, .device_bytes = options.device_bytes};
}

}  // namespace caravan
