#pragma once

#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "caravan/engine/engine.h"
#include "caravan/engine/training_state.h"
#include "caravan/formats/checkpoint/checkpoint.h"
#include "caravan/session/kept.h"

namespace caravan {

class StateCollector;
class WholeParameters;

/// What a program has attached to its checkpoints, by name. Values are tensors "attached.NAME", which rank 0 could
/// write alone; of an optimizer, "attached.NAME.lr", "attached.NAME.number.STEPS" and
/// "attached.NAME.moment.MOMENT.PARAMETER".
class Attachments final : public StateOwner {
 public:
  /// `engine` outlives this, and so does `whole`: what optimizers update in place of parts of parameters; null: none.
  explicit Attachments(Engine& engine, const WholeParameters* whole = nullptr);

  /// Throws UsageError for a name that is taken, or has other characters than letters, digits, - and _; and, where
  /// parameters are sharded, for an optimizer that needs whole ones and does not get them.
  void add(const std::string& name, Kept kept);
  bool is_empty() const noexcept { return entries_.empty(); }
  /// Whether the learning rates of an optimizer are kept.
  bool has_rates() const;

  /// What to say of an optimizer, by its name, that does not say whether it needs whole parameters, and gets parts; ""
  /// of any other.
  std::string risk_of(const std::string& name, const Kept& kept) const;

  /// Takes the values that a save writes. Every rank calls it. Throws UsageError on every rank for other names on two
  /// ranks, for a tensor that cannot be saved, and, if it `compares`, for a value in which two ranks differ. Sends 32
  /// bytes; the states of generators; and for an optimizer 8 bytes for each moment.
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
  };

  /// Of the entries that are optimizers, by moment, the pieces of every parameter that some rank has it for.
  void add_moments(const std::list<StateCollector>& collectors);
  void take_entry(size_t entry, std::list<StateCollector>& collectors);
  void gather_generator(Piece& piece);
  void expect_piece(Piece& piece, const Manifest& manifest) const;

  Engine& engine_;
  const WholeParameters* whole_;
  std::vector<Parameter*> parameters_;
  std::vector<Entry> entries_;
  std::vector<Piece> pieces_;
};

}  // namespace caravan
