#include "caravan/engine/chunk_report.h"

#include <algorithm>
#include <map>
#include <set>

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
                     .slots = chunks.slots(table, units, engine.strategy().fetch_ahead),
                     .needed_slots = least_slots(table, units, 0),
                     .num_micro_batches = num_micro_batches};
  std::map<int, int64_t> elems_of;  // by group
  for (const Bucket& bucket : state.layout.buckets()) elems_of[bucket.group] += bucket.sharded_count;
  const ChunkComparison found = compare_chunk_orders(table, units, report.slots);
  for (const ChunkLoads& loads : found.policies) {
    ChunkReport::Loads sum{std::string(name(loads.policy)), static_cast<int64_t>(loads.groups.size()), 0};
    for (const int group : loads.groups) sum.bytes += elems_of[group] * chunks.slot_bytes / chunks.elems;
    report.policies.push_back(std::move(sum));
  }
  const std::vector<int>& loaded = found.policies.front().groups;
  int64_t used = 0;
  for (const int group : std::set<int>(loaded.begin(), loaded.end())) {
    ++report.num_chunks;
    used += elems_of[group];
  }
  if (report.num_chunks > 0)
    report.waste = 1 - static_cast<double>(used) / static_cast<double>(report.num_chunks * chunks.elems);
  std::ranges::stable_partition(report.policies,
                                [&](const auto& loads) { return loads.policy == name(chunks.policy); });
  report.least = found.least;
  return report;
}

}  // namespace caravan
