#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "caravan/module/plan/layout_table.h"
#include "caravan/module/plan/plan_rows.h"

namespace caravan {

/// A module under a plan.
struct PlanSite {
  /// A tensor that enters or leaves the module.
  struct Port {
    std::optional<Layout> wanted{};  ///< as a row of the plan says, on the axes that it names
    std::optional<Layout> found{};   ///< as found by the dry run
    std::optional<Layout> target{};  ///< the wanted layout, on every axis
    int64_t num_dims = 0;            ///< as found by the dry run
    int64_t bytes = 0;               ///< that this rank would have sent in the dry run
    bool moves() const { return target && !(*target == *found); }
    /// The layout from here on; null: not known.
    const Layout* layout() const { return target ? &*target : found ? &*found : nullptr; }
  };
  /// State of a kind of pass: with gradients, or in Phase::generate.
  struct Way {
    std::vector<Port> inputs{};
    std::vector<Port> outputs{};
    bool sets_index = false;  ///< the index differs from that of the enclosing module
    bool needs_hook() const;
  };

  std::string name;
  Way training{};
  Way generation{};
  /// Its blocks set their own index, since stages of a pipeline run some of them with other inputs.
  bool is_of_blocks = false;
  Way& way(Phase phase) { return phase == Phase::generate ? generation : training; }
  bool needs_hook() const { return training.needs_hook() || generation.needs_hook(); }
};

/// What a plan does around each module. First in dry runs, on a mesh that sends nothing: finds the layouts, checks that
/// they are known, and decides which sites need a hook. Then, after start(), on the real mesh. Not thread-safe, as
/// Module.
class PlanHooks {
 public:
  PlanHooks(std::string plan, const PlanRows& rows, Mesh record);
  /// `table` is for the dry run that follows, and lives until the next one or start().
  void begin_dry_run(LayoutTable& table) { table_ = &table; }
  void start(const Mesh& mesh);

  std::map<std::string, PlanSite>& sites() noexcept { return sites_; }
  Tensors run(PlanSite& site, Tensors inputs, const ForwardContext& context, const Next& next);

 private:
  void pass(Tensors& tensors, std::vector<PlanSite::Port>& ports, const std::string& name, const char* kind);
  at::Tensor learn(const at::Tensor& x, PlanSite::Port& port, const std::string& what);
  at::Tensor redistributed(const at::Tensor& x, const PlanSite::Port& port, const std::string& what) const;
  ForwardContext inside(const std::string& name, const PlanSite::Way& way, const Tensors& inputs,
                        const ForwardContext& context);
  using LocalRows = std::vector<std::vector<RowRun>>;  ///< see local_rows
  at::Tensor rows_of_tokens(const at::Tensor& given, const Layout& layout, const LocalRows& local);
  void remember_cut(const at::Tensor& rows, const at::Tensor& whole, const Layout& layout);

  std::string plan_;
  Mesh mesh_;
  LayoutTable* table_ = nullptr;  ///< of the dry run; null afterwards
  bool generates_ = false;        ///< there was a dry run of generation
  std::map<std::string, PlanSite> sites_;
  /// Positions and documents that hooks have cut, each with its whole tensor: a module inside may need other rows of
  /// it.
  std::vector<std::pair<at::Tensor, at::Tensor>> cuts_;
};

/// The layout of an activation in Phase::generate: whole sequences, no gradients.
Layout in_generation(const Layout& layout);

}  // namespace caravan
