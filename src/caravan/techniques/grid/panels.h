#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace caravan {

/// The schedule of a product whose operands are gathered in panels: y = sum over t of x_t W_t, and its backward.
struct PanelAction {
  enum class Kind : uint8_t {
    gather,    ///< starts the broadcasts of panel t
    multiply,  ///< waits for them, and multiplies
    free,      ///< drops the panel
    reduce,    ///< starts the reduction of the gradients computed by multiply
    finish,    ///< waits for that reduction
  } kind;
  int panel;
  bool operator==(const PanelAction&) const noexcept = default;
};

/// A panel is in flight while the previous one is multiplied, so at most two are resident; the same for gradients, if
/// the product `reduces` some. Without `overlaps` each is waited for at once.
std::vector<PanelAction> panel_schedule(int num_panels, bool reduces, bool overlaps = true);

/// Throws InternalError, naming rank and action, unless all ranks of a grid start their collectives in one order, each
/// waits only for what it has started, and what is multiplied or reduced is there. `tables`: of all ranks. Every rank
/// shares an axis with others, and collectives on an axis match in order. A pure function.
void check_panels(std::span<const std::span<const PanelAction>> tables, int num_panels, bool reduces);

/// panel_schedule, checked by check_panels at the first call for a grid of num_panels x num_panels ranks. Thread-safe.
std::vector<PanelAction> checked_panel_schedule(int num_panels, bool reduces, bool overlaps);

/// "gather 0, gather 1, multiply 0, free 0, ..".
std::string to_string(const std::vector<PanelAction>& schedule);

}  // namespace caravan
