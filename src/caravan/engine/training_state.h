#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/module/parameter.h"

namespace caravan {

class Engine;
class FlatMemory;
struct Slot;

/// Prefixes of the names of checkpoint tensors other than parameters: training state, which inference does not need.
inline constexpr const char* kOptimizerTensors = "optimizer.";
inline constexpr const char* kHookTensors = "hook.";
inline constexpr const char* kStepperTensors = "stepper.";
inline constexpr const char* kLossScaleTensor = "loss_scale";
inline constexpr const char* kSpikeTensor = "guard.spikes";
bool is_training_state(const std::string& name);

/// A tensor kept across steps, as this rank has it.
struct StatePiece {
  enum class Kind : uint8_t {
    parameter,
    buffer,    ///< of a module
    moment,    ///< of each parameter, kept by an optimizer or a stepper
    count,     ///< number of steps
    scale,     ///< scale of the loss
    window,    ///< numbers of the last steps; without it a run begins a new one
    residual,  ///< of a communication hook: what this rank has not sent
    shared     ///< of a communication hook: equal on its ranks
  };
  /// Which ranks have which part.
  enum class Spread : uint8_t {
    like_parameter,  ///< cut as the sharded `parameter`
    per_coordinate,  ///< the same, but each coordinate of `axis`, on which the sharded `parameter` is I, has its own:
                     ///< in checkpoints, a tensor with an additional dim 0 of the size of the axis. Without that dim,
                     ///< it is common to all
    on_axis,         ///< whole, and equal on the ranks of `axis`; ranks that differ on other axes use other names
    everywhere,      ///< whole, and equal on all ranks
    on_rank_0        ///< whole; that of rank 0 is saved, others may differ
  };
  /// How to read a checkpoint with another number of coordinates.
  enum class Combine : uint8_t {
    sum,  ///< only the sum matters: coordinate 0 gets it, the others zeros; without such a tensor, all get zeros
    mean  ///< all get the mean
  };

  Kind kind;
  std::string name;   ///< in checkpoints: the name of a parameter or buffer, else one of those above
  at::Tensor tensor;  ///< without memory if it rests on disk: `read` and `write` move it
  const Parameter* parameter = nullptr;
  Spread spread = Spread::like_parameter;
  std::string axis{};
  Combine combine = Combine::sum;
  /// A load calls it after it has written `tensor`, if that is a copy of what the owner keeps.
  std::function<void()> loaded{};
  /// Of a piece on disk: its values in a new tensor; replaces them by such a tensor.
  std::function<at::Tensor()> read{};
  std::function<void(const at::Tensor&)> write{};
};

/// Makes `piece` that of a parameter in a flat buffer, wherever this rests.
void set_tensor(StatePiece& piece, const FlatMemory& flat, const Slot& slot);

/// An owner of tensors that are kept across steps: a model, an optimizer, a hook, or a stepper, for example outer
/// momentum and anchors of local steps. To give each replica its own optimizer, an owner walks another and changes the
/// spread of its pieces.
class StateOwner {
 public:
  using Visit = std::function<void(StatePiece piece)>;
  /// The tensors of a checkpoint: shapes by name.
  using Saved = std::map<std::string, std::vector<int64_t>>;

  StateOwner() = default;
  virtual ~StateOwner() = default;
  StateOwner(const StateOwner&) = delete;
  StateOwner& operator=(const StateOwner&) = delete;

  /// Visits the present pieces, between steps, in the same order on every rank: the tensors themselves, or copies with
  /// `loaded`. Does not communicate.
  virtual void walk(const Visit& visit) = 0;
  /// For tensors that are created in the first steps. A load calls it: creates those tensors of the checkpoint that
  /// this owner can use, and visits them. Does not communicate. StateReader::Options must allow unknown names for them.
  virtual void walk_saved(const Saved& saved, const Visit& visit) { (void)saved, (void)visit; }
};

/// All training state kept across steps. Checkpoints are written and read by this walk
/// (formats/checkpoint/state_checkpoint.h), and memory reports use it. Owners of further tensors are added.
class TrainingState {
 public:
  /// `owner` outlives this. Owners are walked in the order of addition.
  void add(StateOwner& owner) { owners_.push_back(&owner); }
  void add(std::unique_ptr<StateOwner> owner);

  void walk(const StateOwner::Visit& visit) const;
  void walk_saved(const StateOwner::Saved& saved, const StateOwner::Visit& visit) const;
  /// Bytes of the tensors of each kind on this rank, with the gaps of flat buffers.
  std::map<StatePiece::Kind, int64_t> bytes() const;

 private:
  std::vector<StateOwner*> owners_;
  std::vector<std::unique_ptr<StateOwner>> own_;
};

/// Sharded parameters and buffers of the model. `engine` outlives it.
std::unique_ptr<StateOwner> state_of_model(Engine& engine);
/// State of the communication hook of `engine`, which outlives it; empty without a hook.
std::unique_ptr<StateOwner> state_of_hook(Engine& engine);

}  // namespace caravan
