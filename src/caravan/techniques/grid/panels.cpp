#include "caravan/techniques/grid/panels.h"

#include <algorithm>
#include <map>
#include <tuple>

#include <fmt/format.h>

#include "caravan/base/checked_once.h"
#include "caravan/base/error.h"
#include "caravan/base/text.h"

namespace caravan {
namespace {

const char* name(PanelAction::Kind kind) {
  switch (kind) {
    case PanelAction::Kind::gather: return "gather";
    case PanelAction::Kind::multiply: return "multiply";
    case PanelAction::Kind::free: return "free";
    case PanelAction::Kind::reduce: return "reduce";
    case PanelAction::Kind::finish: return "finish";
  }
  return "";
}

/// Executes the table of one rank without data.
class PanelRun {
 public:
  PanelRun(std::span<const PanelAction> table, size_t rank, int num_panels, bool reduces)
      : table_(table), rank_(rank), num_panels_(num_panels), reduces_(reduces) {}

  void run() {
    for (; at_ < table_.size(); ++at_) step(table_[at_]);
    for (const PanelAction::Kind kind : {PanelAction::Kind::multiply, PanelAction::Kind::free}) {
      require(done(kind) == num_panels_, "a panel is not multiplied or not freed");
    }
    require(done(PanelAction::Kind::finish) == (reduces_ ? num_panels_ : 0), "gradients are not reduced");
  }

  /// The actions that start collectives, in order.
  std::vector<PanelAction> collectives() const {
    std::vector<PanelAction> some;
    std::ranges::copy_if(table_, std::back_inserter(some), [](const PanelAction& action) {
      return action.kind == PanelAction::Kind::gather || action.kind == PanelAction::Kind::reduce;
    });
    return some;
  }

  void require(bool holds, const std::string& fact) const {
    if (holds) return;
    const std::string place = at_ < table_.size() ? fmt::format("action {} ({})", at_, text(table_[at_])) : "the end";
    throw InternalError({.op = "panels",
                         .subject = fmt::format("rank {}, {}", rank_, place),
                         .fact = fact,
                         .action = "report this as a bug: the schedule of the panels is wrong"});
  }

 private:
  static std::string text(const PanelAction& action) { return to_string(std::vector{action}); }
  int done(PanelAction::Kind kind) const {
    const auto found = done_.find(kind);
    return found == done_.end() ? 0 : found->second;
  }

  void step(const PanelAction& action) {
    using enum PanelAction::Kind;
    require(action.panel >= 0 && action.panel < num_panels_, "there is no such panel");
    require(reduces_ || (action.kind != reduce && action.kind != finish), "this product reduces nothing");
    require(done(action.kind) == action.panel, "is there twice, or one of its kind before it is missing");
    switch (action.kind) {
      case gather: break;
      case multiply:
        require(done(gather) > action.panel && done(free) == action.panel, "its panel is not gathered");
        require(!reduces_ || done(reduce) == action.panel, "the gradients of the panel before are not reduced yet");
        break;
      case free: require(done(multiply) > action.panel, "its panel is not multiplied yet"); break;
      case reduce:
        require(done(multiply) == action.panel + 1, "its gradients are not computed, or are those of another panel");
        require(done(finish) == action.panel, "the reduction before it is not finished");
        break;
      case finish: require(done(reduce) == action.panel + 1, "its reduction is not started"); break;
    }
    ++done_[action.kind];
  }

  std::span<const PanelAction> table_;
  size_t rank_;
  int num_panels_;
  bool reduces_;
  size_t at_ = 0;
  std::map<PanelAction::Kind, int> done_;
};

}  // namespace

std::vector<PanelAction> panel_schedule(int num_panels, bool reduces, bool overlaps) {
  using enum PanelAction::Kind;
  std::vector<PanelAction> schedule;
  for (int panel = 0; panel < num_panels && !overlaps; ++panel) {
    for (const PanelAction::Kind kind : {gather, multiply, free, reduce, finish}) {
      if (reduces || (kind != reduce && kind != finish)) schedule.push_back({kind, panel});
    }
  }
  if (!overlaps) return schedule;
  for (int panel = 0; panel < num_panels; ++panel) {
    if (panel == 0) schedule.push_back({gather, 0});
    if (panel + 1 < num_panels) schedule.push_back({gather, panel + 1});
    schedule.push_back({multiply, panel});
    schedule.push_back({free, panel});
    if (!reduces) continue;
    if (panel > 0) schedule.push_back({finish, panel - 1});
    schedule.push_back({reduce, panel});
  }
  if (reduces && num_panels > 0) schedule.push_back({finish, num_panels - 1});
  return schedule;
}

void check_panels(std::span<const std::span<const PanelAction>> tables, int num_panels, bool reduces) {
  std::vector<PanelAction> first;
  for (size_t rank = 0; rank < tables.size(); ++rank) {
    PanelRun run(tables[rank], rank, num_panels, reduces);
    run.run();
    const std::vector<PanelAction> own = run.collectives();
    if (rank == 0) first = own;
    const auto [here, there] = std::ranges::mismatch(own, first);
    if (here == own.end() && there == first.end()) continue;
    const auto name_at = [&](const auto& list, auto at) {
      return at == list.end() ? std::string("nothing") : to_string(std::vector{*at});
    };
    run.require(false, fmt::format("collective {} is {}, that of rank 0 is {}", here - own.begin(), name_at(own, here),
                                   name_at(first, there)));
  }
}

std::vector<PanelAction> checked_panel_schedule(int num_panels, bool reduces, bool overlaps) {
  static CheckedOnce<std::tuple<int, bool, bool>, std::vector<PanelAction>> checked;
  return checked.get({num_panels, reduces, overlaps}, [&] {
    std::vector<PanelAction> table = panel_schedule(num_panels, reduces, overlaps);
    const auto num_ranks = static_cast<size_t>(num_panels) * static_cast<size_t>(num_panels);
    check_panels(std::vector<std::span<const PanelAction>>(num_ranks, table), num_panels, reduces);
    return table;
  });
}

std::string to_string(const std::vector<PanelAction>& schedule) {
  std::vector<std::string> texts;
  for (const PanelAction& action : schedule) texts.push_back(fmt::format("{} {}", name(action.kind), action.panel));
  return join(texts, ", ");
}

}  // namespace caravan
