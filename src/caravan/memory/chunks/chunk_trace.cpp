#include "caravan/memory/chunks/chunk_trace.h"

#include <algorithm>

#include "caravan/base/error.h"
#include "caravan/base/text.h"

namespace caravan {
namespace {

[[noreturn]] void refuse_trace(std::string subject, std::string fact, std::string action) {
  throw UsageError({.op = "chunks",
                    .subject = std::move(subject),
                    .fact = std::move(fact),
                    .where = {},
                    .action = std::move(action)});
}

std::string at_moment(const ChunkUse& use) {
  return "chunk " + std::to_string(use.chunk) + " at moment " + std::to_string(use.moment);
}

}  // namespace

std::vector<int64_t> ChunkTrace::used_bytes() const {
  std::vector<int64_t> used(budget_bytes.size(), 0);
  for (const ChunkUse& use : uses)
    if (!use.is_on_host) used[static_cast<size_t>(use.moment)] += chunk_bytes[static_cast<size_t>(use.chunk)];
  return used;
}

void ChunkTrace::validate() const {
  std::vector<int> last(chunk_bytes.size(), -1);
  std::vector<bool> is_consumed(chunk_bytes.size(), false);
  int moment = 0;
  for (const ChunkUse& use : uses) {
    if (use.chunk < 0 || use.chunk >= static_cast<int>(chunk_bytes.size()) || use.moment >= num_moments())
      refuse_trace(at_moment(use), "does not exist", "give every chunk its bytes and every moment its budget");
    const auto chunk = static_cast<size_t>(use.chunk);
    if (use.moment < moment || last[chunk] == use.moment)
      refuse_trace(at_moment(use), "is out of order or used twice", "list uses by moment, a chunk once for each");
    if (is_consumed[chunk] && use.access != ChunkAccess::overwrite)
      refuse_trace(at_moment(use), "reads contents that have been consumed", "overwrite it first");
    is_consumed[chunk] = use.access == ChunkAccess::consume;
    moment = last[chunk] = use.moment;
  }
  const std::vector<int64_t> used = used_bytes();
  for (size_t m = 0; m < used.size(); ++m)
    if (used[m] > budget_bytes[m])
      refuse_trace("moment " + std::to_string(m),
                   "uses " + format_bytes(used[m]) + " of chunks, of " + format_bytes(budget_bytes[m]),
                   "use smaller chunks, or leave more memory for them");
}

}  // namespace caravan
