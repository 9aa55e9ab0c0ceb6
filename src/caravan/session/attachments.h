#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "caravan/engine/engine.h"
#include "caravan/engine/training_state.h"
#include "caravan/formats/checkpoint/checkpoint.h"
#include "caravan/session/kept.h"

namespace caravan {

class StateCollector;
class WholeParameters;

/// The forms of what visit.state() names: a tensor, one without dims, none.
inline constexpr const char *kState = "state", *kScalarState = "scalar", *kNoState = "none";
/// "shampoo.scalar.L.0.weight" as "shampoo.state.L.0.weight"; other parts of an optimizer as they are.
std::string part_as_state(const std::string& part);

/// A tensor as checkpoints take it. Throws UsageError, naming `name`, for one that they do not.
at::Tensor savable(const at::Tensor& tensor, const std::string& name);

/// What a program has attached to its checkpoints, by name. Values are tensors "attached.NAME", which rank 0 could
/// write alone; of an optimizer, "attached.NAME.lr", "attached.NAME.number.STEPS",
/// "attached.NAME.moment.MOMENT.PARAMETER", and for visit.state() one of "attached.NAME.state.STATE.PARAMETER",
/// "attached.NAME.scalar.STATE.PARAMETER" (it has no dims) and "attached.NAME.none.STATE.PARAMETER" (undefined).
class Attachments final : public StateOwner {
 public:
  /// `engine` outlives this, and so does `whole`: what optimizers update in place of parts of parameters; null: none.
  explicit Attachments(Engine& engine, const WholeParameters* whole = nullptr);

  /// Throws UsageError for a name that is taken, or has other characters than letters, digits, - and _; and, where
  /// parameters are sharded, for an optimizer that needs whole ones, or visits state of them, and does not get them.
  void add(const std::string& name, Kept kept);
  bool is_empty() const noexcept { return entries_.empty(); }
  /// Whether the learning rates of an optimizer are kept.
  bool has_rates() const;

  /// What to say of an optimizer, by its name, that does not say whether it needs whole parameters, and gets parts; ""
  /// of any other.
  std::string risk_of(const std::string& name, const Kept& kept) const;

  /// Takes the values that a save writes. Every rank calls it. Throws UsageError on every rank for other names on two
  /// ranks, for a tensor that cannot be saved, and, if it `compares`, for a value in which two ranks differ. Sends 32
  /// bytes; the states of generators; and for an optimizer 8 bytes for each moment, and a line for each state.
  void take(bool compares);
  /// After take(): makes room for what a checkpoint has. Throws DataError, naming the nearest, for what only one of
  /// program and checkpoint has, and for a value of another type or shape. Changes nothing in the program.
  void expect(const Manifest& manifest);
  /// After expect(): gives the program its values. What its functions throw becomes a DataError.
  void load_values(CheckpointReader& reader);
  /// The same for optimizers, after the pieces of the walk have been read.
  void load_optimizers();

  /// What was taken, or is expected.
  void walk(const Visit& visit) override;

 private:
  struct Entry {
    std::string name;
    Kept kept;
  };
  struct Piece {
    std::string name;  ///< in checkpoints
    size_t entry = 0;
    at::Tensor tensor{};
    const Parameter* parameter = nullptr;  ///< null: a value
    std::shared_ptr<Parameter> own{};      ///< of a state: `parameter`, with the shape of the state
    bool is_state = false;
  };
  /// A tensor of visit.state(): the same on all ranks but for its tensors.
  struct State {
    size_t entry = 0;
    std::string part;      ///< "L.0.weight"
    size_t parameter = 0;  ///< of parameters_
    at::Tensor tensor{};   ///< as this rank has it; undefined: it has none
    at::Tensor loaded{};   ///< what it becomes
  };

  /// Of the entries that are optimizers, by moment, the pieces of every parameter that some rank has it for.
  void add_moments(const std::list<StateCollector>& collectors);
  /// Of the entries that are optimizers, what visit.state() names.
  void take_states(const std::list<StateCollector>& collectors);
  void check_states_whole(const std::string& name, const Kept& kept) const;
  void expect_states(const Manifest& manifest);
  std::string name_of(const State& state, const char* form) const;
  void add_state(const State& state, const char* form, const at::Tensor& tensor, const std::vector<int64_t>& shape);
  void take_entry(size_t entry, std::list<StateCollector>& collectors);
  void gather_generator(Piece& piece);
  void expect_piece(Piece& piece, const Manifest& manifest) const;

  Engine& engine_;
  const WholeParameters* whole_;
  std::vector<Parameter*> parameters_;
  std::vector<Entry> entries_;
  std::vector<State> states_;
  std::vector<Piece> pieces_;
};

}  // namespace caravan
