#include "caravan/optim/muon.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/module/path.h"
#include "caravan/optim/check_on_device.h"
#include "caravan/optim/matrix_owners.h"
#include "caravan/optim/newton_schulz.h"
#include "caravan/optim/zeros_of_slots.h"

namespace caravan {
namespace {

constexpr const char* kMuonMomentum = "momentum";
constexpr const char* kMuonMoment = "exp_avg";
constexpr const char* kMuonSquares = "exp_avg_sq";
constexpr double kUpdateSize = 0.2;  // root mean square of the elements of an update, as of AdamW's usually

const Mesh& mesh_of_matrices(const FlatState& state) {
  if (state.mesh) return *state.mesh;
  throw InternalError({"optimizer", "muon", "the flat state is not that of an engine", "", ""});
}

}  // namespace

Muon::Muon(FlatState& state, const MuonOptions& options)
    : Optimizer(state, {},
                [](const Part&, double, double) -> bool {
                  throw InternalError({"optimizer", "muon", "is asked to update a part of the parameters", "", ""});
                }),
      options_(options) {
  check_option("momentum", options.momentum, {.low = 0, .high = 1, .has_high = false});
  check_option("newton_schulz_steps", static_cast<double>(options.newton_schulz_steps), {.low = 1, .high = 100});
  AdamW::check(options.adamw);
  check_on_device(state, "muon", "needs whole matrices");
  owners_ = std::make_unique<MatrixOwners>(state, mesh_of_matrices(state), WholeUnits::matrices, "muon");
  make_state();
}

Muon::~Muon() = default;

/// A momentum for matrices, two moments for the rest.
void Muon::make_state() {
  for (const char* name : {kMuonMomentum, kMuonMoment, kMuonSquares}) {
    moments_.emplace_back(name, zeros_of_slots(state_, [&](const Slot& slot) { return keeps(name, slot); }));
  }
}

bool Muon::keeps(const std::string& moment, const Slot& slot) const {
  if (moment == kAverage) return slot.parameter->requires_grad();
  return slot.parameter->requires_grad() && is_of_matrices(*slot.parameter) == (moment == kMuonMomentum);
}

void Muon::check_parts() const {
  throw UsageError({"optimizer", "muon", "needs whole matrices, but is asked to update one bucket", "",
                    "use AdamW where ranks step apart or groups step early"});
}

bool Muon::step_all(double lr, double gradient_scale) {
  begin_average();
  add_momentum(gradient_scale);
  step_matrices(lr, gradient_scale);
  step_others(lr, gradient_scale);
  add_to_average();
  return true;
}

void Muon::add_momentum(double gradient_scale) {
  const FlatMemory& momentum = moments_[0].second;
  for (const Slot& slot : state_.layout.slots()) {
    if (!keeps(kMuonMomentum, slot)) continue;
    // In parts: a gradient of another dtype is converted.
    FlatMemory::for_each_part(slot.sharded_offset, slot.sharded_count(), [&](int64_t offset, int64_t count) {
      const at::Tensor v = momentum.narrow(offset, count);
      v.mul_(options_.momentum).add_(state_.gradients.narrow(offset, count).to(v.scalar_type()), gradient_scale);
    });
  }
}

void Muon::step_matrices(double lr, double gradient_scale) {
  const MatrixPlan& plan = owners_->plan;
  const auto offset_of = [this](const WholeMatrix& matrix) {
    return state_.layout.slots()[matrix.slot].sharded_offset;
  };
  const auto read = [&](const WholeMatrix& matrix, int64_t first, const at::Tensor& elements) {
    const int64_t offset = offset_of(matrix) + first;
    elements.copy_(state_.gradients.narrow(offset, elements.numel())).mul_(gradient_scale);
    elements.add_(moments_[0].second.narrow(offset, elements.numel()), options_.momentum);
  };
  const auto write = [&](const WholeMatrix& matrix, int64_t first, const at::Tensor& elements) {
    const int64_t offset = offset_of(matrix) + first;
    const Parameter& parameter = *state_.layout.slots()[matrix.slot].parameter;
    Part part;
    part.decays = parameter.spec().decays;
    part.rule = parameter.update_rule();
    const double own_lr = lr * part.rule.lr_factor;
    const double size = kUpdateSize * std::sqrt(static_cast<double>(std::max(matrix.rows, matrix.columns)));
    const at::Tensor values = state_.values.narrow(offset, elements.numel());
    values.mul_(1 - own_lr * part.decay(options_.adamw.weight_decay)).add_(elements, -own_lr * size);
    if (state_.copies.has(offset)) state_.copies.narrow(offset, elements.numel()).copy_(values);
  };
  for (const MatrixPlan::Round& round : plan.rounds()) {
    std::vector<at::Tensor> own;
    for (const size_t i : round.matrices) {
      const WholeMatrix& matrix = plan.matrices()[i];
      const bool is_own = matrix.owner == owners_->ranks.rank();
      own.push_back(is_own ? at::empty({matrix.rows, matrix.columns}, state_.values.options()) : at::Tensor());
    }
    owners_->exchange.gather(round, own, read);
    for (const at::Tensor& matrix : own) {
      if (!matrix.defined()) continue;
      newton_schulz(matrix, options_.newton_schulz_steps);
      take_path("newton_schulz", matrix);
    }
    owners_->exchange.scatter(round, own, write);
  }
}

void Muon::step_others(double lr, double gradient_scale) {
  for (const Slot& slot : state_.layout.slots()) {
    const int64_t offset = slot.sharded_offset, count = slot.sharded_count();
    if (!keeps(kMuonMoment, slot) || count == 0) continue;
    Part part{.values = state_.values.narrow(offset, count),
              .gradients = state_.gradients.narrow(offset, count),
              .moments = {moments_[1].second.narrow(offset, count), moments_[2].second.narrow(offset, count)},
              .copies = state_.copies.has(offset) ? state_.copies.narrow(offset, count) : at::Tensor(),
              .decays = slot.parameter->spec().decays,
              .rule = slot.parameter->update_rule(),
              .number = num_steps()};
    const bool has_copied = AdamW::update(part, options_.adamw, lr * part.rule.lr_factor, gradient_scale);
    if (!has_copied && part.copies.defined()) part.copies.copy_(part.values);
  }
}

}  // namespace caravan
