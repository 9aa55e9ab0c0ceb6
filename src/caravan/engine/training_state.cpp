#include "caravan/engine/training_state.h"

#include <set>

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "caravan/base/memory/memory_counter.h"
#include "caravan/engine/attached_tensors.h"
#include "caravan/engine/engine.h"

namespace caravan {
namespace {

class ModelState final : public StateOwner {
 public:
  explicit ModelState(Engine& engine) : engine_(engine) {}

  void walk(const Visit& visit) override {
    const FlatState& state = engine_.state();
    for (Parameter* parameter : engine_.model().parameters()) {
      StatePiece piece{.kind = StatePiece::Kind::parameter,
                       .name = parameter->whole_name(),
                       .tensor = parameter->sharded().detach(),
                       .parameter = parameter};
      if (state.layout.has(*parameter)) state.values.wait(state.layout.slot(*parameter).sharded_offset);
      if (state.values.is_on_disk()) {
        set_tensor(piece, state.values, state.layout.slot(*parameter));
        piece.loaded = [&state] { ++state.num_writes; };
      }
      visit(std::move(piece));
    }
    for (const auto& [name, buffer] : engine_.model().buffers()) {
      visit({.kind = StatePiece::Kind::buffer,
             .name = name,
             .tensor = buffer.detach(),
             .spread = StatePiece::Spread::on_rank_0});  // others may differ: Buffers::local
    }
  }

 private:
  Engine& engine_;
};

class HookState final : public StateOwner {
 public:
  explicit HookState(Engine& engine) : engine_(engine), hook_(engine.strategy().hook) {}

  void walk(const Visit& visit) override {
    if (hook_ == nullptr) return;
    const FlatLayout& layout = engine_.state().layout;
    for (const auto& [state, flat] : hook_->summands()) {
      for (const Slot& slot : layout.slots()) {
        if (!slot.parameter->requires_grad()) continue;
        visit({.kind = StatePiece::Kind::residual,
               .name = kHookTensors + state + "." + slot.parameter->whole_name(),
               .tensor = layout.view(flat, *slot.parameter),
               .parameter = slot.parameter,
               .spread = StatePiece::Spread::per_coordinate,
               .axis = engine_.strategy().hook_axis});
      }
    }
    walk_shared(visit);
  }

  void walk_saved(const Saved& saved, const Visit& visit) override {
    if (hook_ == nullptr) return;
    const std::string prefix = shared_prefix();
    const MemoryKindScope kind(MemoryKind::optimizer);
    for (const auto& [name, shape] : saved) {
      if (!name.starts_with(prefix)) continue;
      hook_->set_shared(name.substr(prefix.size()), at::zeros(shape, engine_.state().gradients.options()));
    }
    walk_shared(visit);
  }

 private:
  void walk_shared(const Visit& visit) const {
    for (const auto& [name, tensor] : hook_->shared()) {
      visit({.kind = StatePiece::Kind::shared,
             .name = shared_prefix() + name,
             .tensor = tensor,
             .spread = StatePiece::Spread::on_axis,
             .axis = engine_.strategy().hook_axis});
    }
  }

  /// Ranks that differ on axes other than the hook's reduce other pieces and share other tensors, so each of these
  /// places uses separate names.
  std::string shared_prefix() const {
    int index = 0;
    int count = 1;
    for (const MeshAxis& other : engine_.mesh().axes()) {
      if (other.name() == engine_.strategy().hook_axis) continue;
      index = index * other.size() + other.coord();
      count *= other.size();
    }
    return fmt::format("{}shared.{} of {}.", kHookTensors, index, count);
  }

  Engine& engine_;
  std::shared_ptr<CommHook> hook_;
};

}  // namespace

bool is_training_state(const std::string& name) {
  return name.starts_with(kOptimizerTensors) || name.starts_with(kHookTensors) || name.starts_with(kStepperTensors) ||
         name.starts_with(kAttachedTensors) || name == kLossScaleTensor || name == kSpikeTensor;
}

void set_tensor(StatePiece& piece, const FlatMemory& flat, const Slot& slot) {
  if (!flat.is_on_disk()) {
    piece.tensor = flat.narrow(slot.sharded_offset, slot.sharded_count()).view(slot.sharded_shape);
    return;
  }
  piece.tensor = without_memory(slot.sharded_shape, flat.options());
  piece.read = [&flat, &slot] { return flat.read(slot.sharded_offset, slot.sharded_count()).view(slot.sharded_shape); };
  piece.write = [&flat, &slot](const at::Tensor& from) { flat.write(slot.sharded_offset, from); };
}

void TrainingState::add(std::unique_ptr<StateOwner> owner) {
  add(*owner);
  own_.push_back(std::move(owner));
}

void TrainingState::walk(const StateOwner::Visit& visit) const {
  for (StateOwner* owner : owners_) owner->walk(visit);
}

void TrainingState::walk_saved(const StateOwner::Saved& saved, const StateOwner::Visit& visit) const {
  for (StateOwner* owner : owners_) owner->walk_saved(saved, visit);
}

std::map<StatePiece::Kind, int64_t> TrainingState::bytes() const {
  std::set<const c10::StorageImpl*> counted;
  std::map<StatePiece::Kind, int64_t> bytes;
  walk([&](const StatePiece& piece) {
    const c10::StorageImpl* storage = piece.tensor.storage().unsafeGetStorageImpl();
    if (piece.read) {
      bytes[piece.kind] += static_cast<int64_t>(piece.tensor.nbytes());
    } else if (counted.insert(storage).second) {
      bytes[piece.kind] += static_cast<int64_t>(storage->nbytes());
    }
  });
  return bytes;
}

std::unique_ptr<StateOwner> state_of_model(Engine& engine) { return std::make_unique<ModelState>(engine); }

std::unique_ptr<StateOwner> state_of_hook(Engine& engine) { return std::make_unique<HookState>(engine); }

}  // namespace caravan
