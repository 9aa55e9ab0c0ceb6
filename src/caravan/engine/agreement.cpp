#include "caravan/engine/agreement.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/comm/calls/same.h"
#include "caravan/schedule/chunk_order.h"

namespace caravan {
namespace {

/// With the slots that its chunks need at most.
Schedule with_actions(const Schedule& events, const Units& units, const Strategy& strategy, int& slots) {
  Schedule table =
      with_reductions(with_gathers(events, units, strategy.gathers), units, strategy.completes_each_micro_batch());
  if (strategy.is_offloaded()) {
    table = with_steps(table, units);
    ChunkRoom room{.policy = strategy.chunks.policy, .prefetch = strategy.fetch_ahead};
    room.slots = strategy.chunks.slots(table, units, strategy.fetch_ahead);
    slots = std::max(slots, room.slots);
    table = with_moves(with_chunk_moves(table, units, room), units, strategy.fetch_ahead);
  }
  const bool has_update = !table.empty() && table.back().kind == Action::Kind::update;
  return has_update ? table : with_update(std::move(table));
}

/// A table as a fact: short, but with its first entries, which help to see the difference.
std::string text_of(const Schedule& table) {
  constexpr size_t kShown = 60;
  const std::string text = to_string(table);
  return fmt::format("{}{} ({:016x})", text.substr(0, kShown), text.size() > kShown ? " .." : "", digest(table));
}

}  // namespace

Schedule agreed_table(const Strategy& strategy, const Units& units, int num_micro_batches, const Mesh& mesh) {
  const std::vector<PassOrder> orders =
      strategy.passes ? strategy.passes(num_micro_batches) : std::vector<PassOrder>{accumulate(num_micro_batches)};
  std::vector<Schedule> tables = expand(orders, units, strategy.rank_of_stage);
  std::vector<SharedFact> facts{{"micro-batches", std::to_string(num_micro_batches)}};
  int slots = 0;
  for (size_t rank = 0; rank < tables.size(); ++rank) {
    tables[rank] = with_actions(tables[rank], units, strategy, slots);
    facts.push_back({fmt::format("table of stage {}", rank), text_of(tables[rank])});
  }
  check_same_on_all_ranks(mesh.world(), strategy.name, facts, "tables");
  check(tables, units, strategy.rank_of_stage, /*capacity=*/1, slots);
  return std::move(
      tables[strategy.pipeline_axis.empty() ? 0 : static_cast<size_t>(mesh[strategy.pipeline_axis].coord())]);
}

Schedule agreed_recording(const Schedule& events, int num_micro_batches, const Units& units, const Strategy& strategy,
                          const Mesh& mesh) {
  const std::vector<SharedFact> facts{{"micro-batches of begin_step", std::to_string(num_micro_batches)},
                                      {"order of units in the step", text_of(events)}};
  check_same_on_all_ranks(mesh.world(), strategy.name, facts, "tables");
  int slots = 0;
  return with_actions(events, units, strategy, slots);
}

}  // namespace caravan
