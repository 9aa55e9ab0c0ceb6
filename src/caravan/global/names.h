#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/global/module.h"
#include "caravan/mesh/layout.h"
#include "caravan/mesh/mesh.h"

namespace caravan {

/// Names of the dims of the parameters and buffers that match a pattern: "ff embed" for a weight [64, 16]. A dim made
/// of several, the slowest first, stands in parentheses: "(three heads width) embed" for a fused qkv. "_" is no name.
struct DimNames {
  std::string pattern;
  std::string dims;
};

/// Which mesh axes cut which named dim, as in Mesh-TensorFlow (Shazeer et al., arXiv 1811.02084): {"ff -> tp",
/// "batch -> dp", "vocab -> tp dp"}, of several axes the major one first. All tensors with the name are cut alike.
class DimRules {
 public:
  DimRules() = default;
  /// Throws UsageError for a text that is no rule, and for two rules of one name.
  DimRules(std::initializer_list<std::string_view> rules);
  explicit DimRules(const std::vector<std::string>& rules);

  /// The axes that cut the dim; none for a name without a rule.
  const std::vector<std::string>& axes(const std::string& name) const;
  const std::map<std::string, std::vector<std::string>>& all() const noexcept { return rules_; }
  DimRules without(const std::string& name) const;
  /// "{"ff -> tp", "batch -> dp"}".
  std::string to_string() const;

 private:
  void add(std::string_view rule);
  std::map<std::string, std::vector<std::string>> rules_;
};

/// Numbers of elements of named dims, for those in parentheses that do not follow from the size of the dim: one of them
/// does.
using DimExtents = std::map<std::string, int64_t, std::less<>>;

/// The layout of a tensor of these sizes: where a rule cuts a dim of several names, between elements of that name, in
/// blocks of those before it. Throws ShapeError for another number of dims and for sizes that the names do not
/// multiply to, LayoutError for an axis that would cut two dims, or a dim with fewer elements than the axis has ranks,
/// UsageError for an axis that the mesh does not have; each says what to change.
Layout named_layout(std::string_view dims, const std::vector<int64_t>& sizes, const DimRules& rules, const Mesh& mesh,
                    const DimExtents& extents = {}, std::string_view what = {});

/// The layouts of the parameters and buffers of a net, for distribute_module(). Those without names are replicated.
/// Throws as named_layout, naming the parameter; for conflicts, with the largest set of rules that has none; UsageError
/// for a pattern without a match, for rules of which none is of a name that a tensor has, or one is nearly, and for a
/// name with two sizes.
std::vector<NamedLayout> named_layouts(const torch::nn::Module& net, const std::vector<DimNames>& names,
                                       const DimRules& rules, const Mesh& mesh, const DimExtents& extents = {});

/// Names of the dims of the parameters of MultiheadAttention, TransformerEncoderLayer and TransformerDecoderLayer
/// wherever they are in `net`: "three", "heads", "width", "embed", "ff". Names of one's own come behind them and win.
std::vector<DimNames> standard_names(const torch::nn::Module& net);
/// The numbers of heads for standard_names().
DimExtents standard_extents(const torch::nn::Module& net);
/// Megatron's tensor parallelism with them: heads, ff and vocab over `tp`, and the batch over `dp`.
DimRules transformer_rules(const std::string& tp = "tp", const std::string& dp = "dp");

}  // namespace caravan
