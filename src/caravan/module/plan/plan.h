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

/// A tensor technique as data: how the parameters of some modules are laid out on its axes, in which layouts these
/// modules take their inputs, and in which they hand on their outputs. Everything between follows: apply() inserts the
/// redistributions and checks the whole model by the typing rule before anything runs.
///
/// A row of Megatron's tensor parallelism (arXiv 1909.08053):
///   {.pattern = "*.mlp", .inputs = {R}}
///   {.pattern = "*.mlp.up", .parameters = {{"weight", S(0)}, {"bias", S(0)}}}
///   {.pattern = "*.mlp.down", .parameters = {{"weight", S(1)}, {"bias", I, I, P}}, .outputs = {I}}
///
/// A layout of a row speaks of the axes that it names. An activation stays on the others as it comes; a parameter is
/// there what other rows say, else I, or what data_axes say. So plans of different axes join into one. Rows may overlap
/// where they agree. Whether the whole is right, the typing rule decides.
struct Plan {
  struct ParameterRow {
    std::string name;                   ///< within the module: "weight"
    Layout sharded;                     ///< I or S on each axis
    std::optional<Layout> unsharded{};  ///< default: the same
    std::optional<Layout>
        compute{};  ///< default: that of the unsharded parameter. Else redistributed from it, differentiably
  };
  /// Tells a module what no layout can: the first row of its piece of a table, whom to reduce statistics with. Returns
  /// what takes that back.
  using Prepare = std::function<std::function<void()>(Module& module)>;
  struct Row {
    std::string pattern;  ///< of module names; * stands for any characters
    std::vector<ParameterRow> parameters{};
    /// Of the module's inputs and outputs, by index; nothing: as they come.
    std::vector<std::optional<Layout>> inputs{};
    std::vector<std::optional<Layout>> outputs{};
    Prepare prepare{};
    /// Stands around the module's forward, inside the redistributions of the plan. It runs in dry runs too (meta
    /// tensors, ForwardContext::layouts), and there says how its results are laid out if `next` does not.
    Around around{};
  };

  std::string name;                      ///< for messages: "tensor_1d"
  std::vector<std::string> axes{};       ///< that it uses
  std::vector<std::string> data_axes{};  ///< of these, the ones on which a parameter is I at rest and R as a leaf
  std::vector<Row> rows{};
  /// Layouts of the model's inputs (ids, labels) on these axes; default I: every rank is given the same, whole. Whoever
  /// runs the model cuts them so. Positions and documents of the context are given whole: they are cut where they are
  /// needed.
  std::vector<Layout> inputs{};
};

/// Both plans in one. A dim that both split is split by the axes of `major` first. Throws UsageError if they share an
/// axis.
Plan join(Plan major, const Plan& minor);

/// A plan in force: its hooks stand as long as this lives. The derivations of parameters stay.
class AppliedPlan {
 public:
  AppliedPlan() = default;
  const std::string& name() const noexcept { return name_; }
  /// Of every parameter of the model, on the axes of the plan: what a data technique completes with its own axes.
  const std::map<std::string, ParameterLayouts>& layouts() const noexcept { return layouts_; }
  /// Of the model's first output with inputs {ids, labels}: the loss, I or P on each axis of the plan.
  const Layout& loss_layout() const noexcept { return loss_layout_; }
  /// The rows of a pass of generation are a multiple of this: ranks split them.
  int64_t num_row_parts() const noexcept { return num_row_parts_; }
  /// A line for each module and parameter: what is laid out how, and each redistribution with the bytes that this rank
  /// sends for it in a forward pass in fp32.
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

/// Puts `plan` in force on a model that has no memory yet, and before anything else derives its parameters. Runs the
/// model on meta tensors, without communication, and applies the typing rule to every operation; then installs the
/// redistributions as hooks and derivations. Every rank calls it. After an error the model is as it was.
///   input_shapes       of the int64 inputs, {ids, labels}, as one rank of the plan's axes gets them
///   generation_shapes  the same of a pass in Phase::generate, {ids}; none: the model does not generate
///
/// Hooks also set ForwardContext::index, positions and documents to those of the activations of each module, so that
/// neither random numbers nor positions depend on the plan. Dims of an activation are [batch, sequence, feature] or
/// [batch, sequence, head, ..]; the first input of a module decides for it.
///
/// In Phase::generate sequences are whole and there are no gradients: S(1) of an activation, and R, are I.
///
/// A plan without axes lays out nothing and checks no type.
///
/// Throws UsageError for a pattern that matches no module, or a parameter that the module does not have (naming the
/// nearest), for rows that contradict each other, an axis that the plan or the mesh does not have, and a model that has
/// memory or another plan; LayoutError where a producer and a consumer do not fit, naming both modules, both layouts
/// and the redistribution that would fix it, for a tensor that came from an operation without a type, for a module that
/// is run with two layouts, for a parameter that is not I or S at rest, and for a loss that is R or S; ShapeError for a
/// dim that does not divide.
AppliedPlan apply(const Plan& plan, Module& model, const Mesh& mesh,
                  const std::vector<std::vector<int64_t>>& input_shapes,
                  const std::vector<std::vector<int64_t>>& generation_shapes = {});

}  // namespace caravan
