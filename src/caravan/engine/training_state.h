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

/// How the names of tensors begin that a checkpoint has beside the parameters: state of training, which a model that is
/// only run does not need.
inline constexpr const char* kOptimizerTensors = "optimizer.";
inline constexpr const char* kHookTensors = "hook.";
inline constexpr const char* kStepperTensors = "stepper.";
inline constexpr const char* kLossScaleTensor = "loss_scale";
bool is_training_state(const std::string& name);

/// A tensor that one step hands on to the next, as this rank has it.
struct StatePiece {
  enum class Kind : uint8_t {
    parameter,
    buffer,    ///< of a module
    moment,    ///< what an optimizer, or a way of stepping, keeps for each parameter
    count,     ///< steps
    scale,     ///< of the loss
    residual,  ///< of a communication hook: what this rank has not sent
    shared     ///< of a communication hook: what its ranks have in common
  };
  /// Which ranks have which part of it.
  enum class Spread : uint8_t {
    like_parameter,  ///< cut as `parameter` at rest
    per_coordinate,  ///< so too, but each coordinate of `axis`, on which `parameter` rests invariant, has one of its
                     ///< own: in checkpoints, a tensor with a dim 0 more, of the size of the axis. Without that dim, it
                     ///< is one for all
    on_axis,         ///< whole, and equal on the ranks of `axis`; ranks that differ elsewhere use other names
    everywhere,      ///< whole, and equal on all ranks
    on_rank_0        ///< whole; that of rank 0 is saved, others may differ
  };
  /// What a checkpoint with another number of coordinates means.
  enum class Combine : uint8_t {
    sum,  ///< the sum counts: coordinate 0 gets it, the others zeros; without such a tensor, all get zeros
    mean  ///< all get the mean
  };

  Kind kind;
  std::string name;  ///< in checkpoints: of a parameter or a buffer its own, else one of those above
  at::Tensor tensor;
  const Parameter* parameter = nullptr;
  Spread spread = Spread::like_parameter;
  std::string axis{};
  Combine combine = Combine::sum;
  /// A load calls it when it has written `tensor`, if that is a copy of what the owner keeps.
  std::function<void()> loaded{};
};

/// Who keeps tensors from step to step: a model, an optimizer, a hook, or a stepper, for example outer momentum and
/// anchors of local steps. To give each replica an optimizer of its own, an owner walks another and changes the spread
/// of its pieces.
class StateOwner {
 public:
  using Visit = std::function<void(StatePiece piece)>;
  /// The tensors of a checkpoint: shapes by name.
  using Saved = std::map<std::string, std::vector<int64_t>>;

  StateOwner() = default;
  virtual ~StateOwner() = default;
  StateOwner(const StateOwner&) = delete;
  StateOwner& operator=(const StateOwner&) = delete;

  /// Visits what there is, between steps, in the same order on every rank: the tensors themselves, or copies with
  /// `loaded`. Does not communicate.
  virtual void walk(const Visit& visit) = 0;
  /// For tensors that come into being with the first steps. A load calls it: makes those of the checkpoint that this
  /// owner can use, and visits them. Does not communicate. StateReader::Options must let their names be unknown.
  virtual void walk_saved(const Saved& saved, const Visit& visit) { (void)saved, (void)visit; }
};

/// All that a training hands on from step to step. Checkpoints are written and read by this walk
/// (formats/checkpoint/state_checkpoint.h), and reports of memory go by it. Who keeps further tensors adds itself.
class TrainingState {
 public:
  /// `owner` outlives this. Owners are walked in the order in which they were added.
  void add(StateOwner& owner) { owners_.push_back(&owner); }
  void add(std::unique_ptr<StateOwner> owner);

  void walk(const StateOwner::Visit& visit) const;
  void walk_saved(const StateOwner::Saved& saved, const StateOwner::Visit& visit) const;
  /// What the tensors of each kind take in the memory of this rank, with the gaps of flat buffers.
  std::map<StatePiece::Kind, int64_t> bytes() const;

 private:
  std::vector<StateOwner*> owners_;
  std::vector<std::unique_ptr<StateOwner>> own_;
};

/// Parameters at rest and buffers of the model. `engine` outlives it.
std::unique_ptr<StateOwner> state_of_model(Engine& engine);
/// What the communication hook of `engine`, which outlives it, hands on; nothing without a hook.
std::unique_ptr<StateOwner> state_of_hook(Engine& engine);

}  // namespace caravan
