#include "caravan/optim/matrix_owners.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "caravan/base/error.h"
#include "caravan/comm/calls/agree.h"

namespace caravan {
namespace {

MatrixPlan planned_by_all(const FlatState& state, const MatrixRanks& ranks, WholeUnits units) {
  std::optional<MatrixPlan> plan;
  all_or_none(ranks.mesh().world(), [&] { plan.emplace(state.layout, ranks, units); });
  return std::move(*plan);
}

/// Compares what each owner knows of the pieces of others with what these hold.
void check_pieces(const MatrixPlan& plan, const MatrixRanks& ranks, const std::string& optimizer) {
  std::vector<int64_t> own, known, got(static_cast<size_t>(ranks.size()));
  for (int rank = 0; rank < ranks.size(); ++rank) {
    own.push_back(static_cast<int64_t>(plan.digest(ranks.rank(), rank)));
    known.push_back(static_cast<int64_t>(plan.digest(rank, ranks.rank())));
  }
  const auto buffer = [](std::vector<int64_t>& all) {
    return Buffer{all.data(), static_cast<int64_t>(all.size()), Dtype::int64};
  };
  if (ranks.size() > 1) ranks.comm().all_to_all(buffer(own), buffer(got), {}, {}, "pieces of matrices");
  all_or_none(ranks.mesh().world(), [&] {  // those of other stages, too
    if (ranks.size() == 1 || got == known || !ranks.comm().touches_memory()) return;
    throw UsageError({"optimizer", optimizer, "ranks cut the parameters of a layer in unlike ways",
                      ranks.mesh().where(),
                      "use degrees that divide heads and hidden widths, or an optimizer that needs no whole matrices"});
  });
}

}  // namespace

MatrixOwners::MatrixOwners(const FlatState& state, const Mesh& mesh, WholeUnits units, const std::string& optimizer)
    : ranks(mesh, {state.pipeline_axis, state.apart_axis}),
      plan(planned_by_all(state, ranks, units)),
      exchange(plan, ranks, state.values.options()) {
  check_pieces(plan, ranks, optimizer);
}

}  // namespace caravan
