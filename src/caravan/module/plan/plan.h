#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "caravan/mesh/layout.h"
#include "caravan/module/module.h"

namespace caravan {

/// Layouts of a sharded and an unsharded parameter (module/parameter.h).
struct ParameterLayouts {
  Layout sharded;
  Layout unsharded;
};

/// A tensor technique as data: how the parameters of some modules are laid out on its axes, and the layouts of these
/// modules' inputs and outputs. The rest follows: apply() inserts the redistributions and checks the whole model by the
/// typing rule before anything runs.
///
/// A row of Megatron's tensor parallelism (arXiv 1909.08053):
///   {.pattern = "*.mlp", .inputs = {R}}
///   {.pattern = "*.mlp.up", .parameters = {{"weight", S(0)}, {"bias", S(0)}}}
///   {.pattern = "*.mlp.down", .parameters = {{"weight", S(1)}, {"bias", I, I, P}}, .outputs = {I}}
///
/// A layout of a row applies to the axes that it names. On other axes an activation keeps its layout, and a parameter
/// has the layout that other rows or data_axes give it, else I. So plans of different axes can be joined. Rows may
/// overlap where they agree. The typing rule decides whether the whole is correct.
struct Plan {
  struct ParameterRow {
    std::string name;                   ///< within the module: "weight"
    Layout sharded;                     ///< I or S on each axis
    std::optional<Layout> unsharded{};  ///< default: the same
    std::optional<Layout>
        compute{};  ///< default: that of the unsharded parameter; else redistributed from it, differentiably
  };
  /// Tells a module what no layout can express: the first row of its piece of a table, or the ranks to reduce
  /// statistics with. Returns a function that undoes it.
  using Prepare = std::function<std::function<void()>(Module& module)>;
  struct Row {
    std::string pattern;  ///< of module names; * stands for any characters
    std::vector<ParameterRow> parameters{};
    /// Layouts of the module's inputs and outputs, by index; nothing: unchanged.
    std::vector<std::optional<Layout>> inputs{};
    std::vector<std::optional<Layout>> outputs{};
    Prepare prepare{};
    /// A hook around the module's forward, inside the redistributions of the plan. It runs in dry runs too (meta
    /// tensors, ForwardContext::layouts), where it sets the layouts of its results if `next` does not.
    Around around{};
  };

  std::string name;                      ///< for messages: "tensor_1d"
  std::vector<std::string> axes{};       ///< axes that it uses
  std::vector<std::string> data_axes{};  ///< those on which a sharded parameter is I and the unsharded one R
  std::vector<Row> rows{};
  /// Layouts of the model's inputs (ids, labels) on these axes; default I: every rank is given the same, whole. The
  /// caller of the model cuts them accordingly. Positions and documents of the context are given whole, and cut where
  /// they are needed.
  std::vector<Layout> inputs{};
};

/// Combines both plans. A dim that both split is split by the axes of `major` first. Throws UsageError if they share an
/// axis.
Plan join(Plan major, const Plan& minor);

/// An applied plan: its hooks stay in place as long as this lives. The derivations of parameters stay for good.
class AppliedPlan {
 public:
  AppliedPlan() = default;
  const std::string& name() const noexcept { return name_; }
  /// Layouts of every parameter of the model on the axes of the plan, which a data technique completes with its own
  /// axes.
  const std::map<std::string, ParameterLayouts>& layouts() const noexcept { return layouts_; }
  /// Layout of the model's first output for inputs {ids, labels}: the loss, I or P on each axis of the plan.
  const Layout& loss_layout() const noexcept { return loss_layout_; }
  /// The number of rows of a generation pass is a multiple of this, since ranks split them.
  int64_t num_row_parts() const noexcept { return num_row_parts_; }
  /// A line for each module and parameter: its layout, and each redistribution with the bytes that this rank sends for
  /// it in a forward pass in fp32.
  std::string to_string() const;

 private:
  friend AppliedPlan apply(const Plan& plan, Module& model, const Mesh& mesh,
                           const std::vector<std::vector<int64_t>>& input_shapes,
                           const std::vector<std::vector<int64_t>>& generation_shapes);
  std::string name_;
  std::map<std::string, ParameterLayouts> layouts_;
  Layout loss_layout_;
  int64_t num_row_parts_ = 1;
  std::vector<std::string> lines_;
  std::vector<Hook> hooks_;
};

/// Applies `plan` to a model that has no memory yet and whose parameters have no other derivations. Runs the model on
/// meta tensors, without communication, and applies the typing rule to every operation; then installs the
/// redistributions as hooks and derivations. Every rank calls it. An error leaves the model unchanged.
///   input_shapes       of the int64 inputs, {ids, labels}, as one rank of the plan's axes gets them
///   generation_shapes  the same for a pass in Phase::generate, {ids}; empty: the model does not generate
///
/// Hooks also set ForwardContext::index, positions and documents to those of the activations of each module, so that
/// neither random numbers nor positions depend on the plan. Dims of an activation are [batch, sequence, feature] or
/// [batch, sequence, head, ..]; the first input of a module decides.
///
/// In Phase::generate sequences are whole and there are no gradients: S(1) of an activation, and R, are I.
///
/// A plan without axes lays out nothing and checks no types.
///
/// Throws UsageError for a pattern that matches no module, or a parameter that the module does not have (naming the
/// nearest), for rows that contradict each other, an axis that the plan or the mesh does not have, and a model that has
/// memory or another plan; LayoutError where a producer and a consumer do not fit, naming both modules, both layouts
/// and the redistribution that would fix it, for a tensor that came from an operation without a type, for a module that
/// is run with two layouts, for a sharded parameter that is neither I nor S, and for a loss that is R or S; ShapeError
/// for a dim that does not divide.
AppliedPlan apply(const Plan& plan, Module& model, const Mesh& mesh,
                  const std::vector<std::vector<int64_t>>& input_shapes,
                  const std::vector<std::vector<int64_t>>& generation_shapes = {});

}  // namespace caravan
