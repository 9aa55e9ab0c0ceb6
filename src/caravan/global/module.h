#pragma once

#include <string>
#include <vector>

#include "caravan/global/context.h"
#include "caravan/mesh/layout.h"

namespace torch::nn {
class Module;
}

namespace caravan {

/// The layout of the parameters and buffers whose dotted names match; * stands for any characters.
struct NamedLayout {
  std::string pattern;
  Layout layout;
};

/// Makes the parameters and buffers of `net` global tensors, in place, so that references which the net and its
/// children hold see them. The last pattern that matches a name decides; the others are replicated. Every rank calls it
/// with the same values. The gradients of a backward pass are brought to the layouts of their parameters at its end:
/// those that lie alike, by one collective per axis.
///
/// Those that are global already, as CreatesGlobal leaves them, are redistributed.
///
/// Sends 8 bytes to every other rank, to compare the values. Throws UsageError, on every rank and before the net is
/// changed, for a pattern that matches nothing (naming the nearest), for parameters that are global tensors of another
/// context, and for values that differ between ranks (naming the ranks and the first parameter); LayoutError and
/// ShapeError for a layout that does not fit, naming the parameter.
void distribute_module(torch::nn::Module& net, const std::vector<NamedLayout>& layouts, const GlobalContext& context);

/// The layout that the last pattern which matches gives `name`; none: replicated.
const Layout& layout_for(const std::string& name, const std::vector<NamedLayout>& layouts);
/// Throws UsageError, as `op`, for a pattern that matches none of the names.
void check_layout_patterns(const std::vector<std::string>& names, const std::vector<NamedLayout>& layouts,
                           const Mesh& mesh, const char* op);

}  // namespace caravan
