#include "caravan/engine/agreement.h"

#include <fmt/format.h>

#include "caravan/comm/same.h"

namespace caravan {
namespace {

Schedule with_actions(const Schedule& events, const Units& units, const Strategy& strategy) {
  return with_update(
      with_reductions(with_gathers(events, units, strategy.gathers), units, strategy.completes_each_micro_batch()));
}

/// A table as a fact: short, but the first entries help to see what differs.
std::string text_of(const Schedule& table) {
  constexpr size_t kShown = 60;
  const std::string text = to_string(table);
  return fmt::format("{}{} ({:016x})", text.substr(0, kShown), text.size() > kShown ? " .." : "", digest(table));
}

}  // namespace

Schedule agreed_table(const Strategy& strategy, const Units& units, int num_micro_batches, const Mesh& mesh) {
  const bool has_stages = !strategy.pipeline_axis.empty();
  const int num_ranks = has_stages ? mesh[strategy.pipeline_axis].size() : 1;
  std::vector<Schedule> tables;
  std::vector<SharedFact> facts{{"micro-batches", std::to_string(num_micro_batches)}};
  for (int rank = 0; rank < num_ranks; ++rank) {
    tables.push_back(strategy.table ? strategy.table(units, num_micro_batches, rank)
                                    : with_actions(expand(accumulate(num_micro_batches), units), units, strategy));
    facts.push_back({fmt::format("table of stage {}", rank), text_of(tables.back())});
  }
  check_same_on_all_ranks(mesh.world(), strategy.name, facts, "tables");
  check(tables, units, strategy.rank_of_stage);
  return std::move(tables[static_cast<size_t>(has_stages ? mesh[strategy.pipeline_axis].coord() : 0)]);
}

Schedule agreed_recording(const Schedule& events, int num_micro_batches, const Units& units, const Strategy& strategy,
                          const Mesh& mesh) {
  const std::vector<SharedFact> facts{{"micro-batches of begin_step", std::to_string(num_micro_batches)},
                                      {"order of units in the step", text_of(events)}};
  check_same_on_all_ranks(mesh.world(), strategy.name, facts, "tables");
  return with_actions(events, units, strategy);
}

}  // namespace caravan
