#include "caravan/engine/chunk_report.h"

#include <algorithm>
#include <map>

#include "caravan/engine/engine.h"
#include "caravan/schedule/chunk_order.h"

namespace caravan {

ChunkReport chunk_report(Engine& engine, int num_micro_batches) {
  const ParameterChunks& chunks = engine.strategy().chunks;
  if (chunks.num_chunks == 0) return {};
  const FlatState& state = engine.state();
  const Units& units = state.layout.units();
  const Schedule& table = engine.table(num_micro_batches);
  ChunkReport report{.chunk_bytes = chunks.slot_bytes,
                     .num_chunks = chunks.num_chunks,
                     .num_parts = chunks.num_parts,
                     .waste = chunks.waste,
                     .slots = chunks.slots(table, units, engine.strategy().fetch_ahead),
                     .num_micro_batches = num_micro_batches};
  std::map<int, int64_t> bytes_of;  // by group
  for (const Bucket& bucket : state.layout.buckets()) {
    const auto element = static_cast<int64_t>(c10::elementSize(state.source(bucket).scalar_type()));
    bytes_of[bucket.group] += bucket.sharded_count * element;
  }
  const ChunkComparison found = compare_chunk_orders(table, units, report.slots);
  for (const ChunkLoads& loads : found.policies) {
    ChunkReport::Loads sum{std::string(name(loads.policy)), static_cast<int64_t>(loads.groups.size()), 0};
    for (const int group : loads.groups) sum.bytes += bytes_of[group];
    report.policies.push_back(std::move(sum));
  }
  std::ranges::stable_partition(report.policies,
                                [&](const auto& loads) { return loads.policy == name(chunks.policy); });
  report.least = found.least;
  return report;
}

}  // namespace caravan
