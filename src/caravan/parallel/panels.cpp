#include "caravan/parallel/panels.h"

#include <fmt/format.h>

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

std::string to_string(const std::vector<PanelAction>& schedule) {
  std::vector<std::string> texts;
  for (const PanelAction& action : schedule) texts.push_back(fmt::format("{} {}", name(action.kind), action.panel));
  return join(texts, ", ");
}

}  // namespace caravan
