#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace caravan {

/// A table lists what one rank does in a step, in order: pure data that can be built, checked, printed, costed and
/// compared before anything runs. A technique is a function from a table to a table; one executor runs them all
/// (engine.h).
///
/// Events are computations: a unit's forward, recompute, backward, or weight gradients, for one micro-batch. Actions
/// move data and come between events: they are performed when the execution reaches their position.
struct Action {
  enum class Kind : uint8_t {
    forward,    ///< F  of `unit`, `micro_batch`
    recompute,  ///< C  its forward again, inside the backward of a recomputed unit around it
    backward,   ///< B  input gradients; weight gradients too unless the table has a W for it
    weight,     ///< W  weight gradients that its B has deferred
    gather,     ///< G  fills the unsharded parameters of group `unit`
    free,       ///< X  frees them
    reduce,     ///< R  starts the reduction of the group's gradients, complete with those of `micro_batch`
    send,       ///< >  the input of `unit` to stage `peer`; in backward its gradient
    recv,       ///< <  the same, received
    update,     ///< U  waits for all reductions, clips, steps the optimizer
    fetch,      ///< L  starts to load from host or disk what the device needs soon
    evict,      ///< E  starts to store there what it does not need for a while
    step,       ///< S  steps the optimizer for group `unit` alone
  };
  /// What fetch and evict move.
  enum class Moved : uint8_t {
    parameters,  ///< of group `unit`; what is freed is dropped, but for chunks, which have slots: evict drops these
    gradients,   ///< sums of group `unit`, after `micro_batch`
    activations  ///< that the backward of `unit` in `micro_batch` needs
  };
  Kind kind = Kind::forward;
  int unit = 0;  ///< index of a unit; for gather, free, reduce, step, and most moves, of a parameter group
  int micro_batch = 0;
  int peer = -1;             ///< of send and recv: the other stage
  bool is_gradient = false;  ///< of send and recv
  Moved moved = Moved::parameters;

  bool is_event() const noexcept { return kind <= Kind::weight; }
  bool is_of_group() const noexcept {
    const bool is_move = kind == Kind::fetch || kind == Kind::evict;
    return kind == Kind::gather || kind == Kind::free || kind == Kind::reduce || kind == Kind::step ||
           (is_move && moved != Moved::activations);
  }
  /// "F3.1" (unit 3, micro-batch 1), "G4", "R4.1", "<3.1@0" (activation from stage 0), ">g3.1@0" (its gradient), "U",
  /// "L4" (parameters of group 4), "Eg4.1" (its gradients), "La3.1" (activations of unit 3), "S4".
  std::string to_string() const;
  bool operator==(const Action&) const noexcept = default;
};

using Schedule = std::vector<Action>;

/// "<1.0@0 G1 F1.0 X1 >2.0@2": the entries, separated by blanks.
std::string to_string(const Schedule& table);

/// A hash that is equal for equal tables, on every machine.
uint64_t digest(const Schedule& table);

/// What tables are built from: units in forward order, and the groups in which parameters are gathered, freed and
/// reduced.
struct Units {
  struct Unit {
    std::string name;
    int stage = 0;                 ///< 0 first, then the same or one more
    std::vector<int> groups = {};  ///< that its forward and backward read, ascending, without those of its children
    bool has_backward = true;      ///< false: neither it nor a unit before it is trained, so backward does not reach it
    bool is_recomputed = false;    ///< its forward is repeated in its backward: its B covers both
    int parent = -1;  ///< the unit in whose forward it runs; -1: none. Its children follow a parent directly
    bool moves_activations = false;  ///< they are away between its forward and its backward
  };
  struct Group {
    std::string name;
    bool is_trained = true;
    bool is_gathered = false;  ///< its unsharded parameters need a gather before use
    bool is_joint = false;     ///< used by stages of several ranks: gathered and reduced once a step, by all of them
    bool is_fetched = false;  ///< its parameters rest outside of the device: is_gathered, and a fetch precedes a gather
    bool is_chunk = false;    ///< fetched into a slot of the device, which it has until it is evicted: is_fetched
    bool is_whole = false;    ///< of a chunk: its slot has all of it, so that it is there while the group is gathered
    bool moves_gradients = false;  ///< its sums are away between micro-batches
    bool steps_early = false;      ///< it is updated as soon as its last reduction has begun
  };
  std::vector<Unit> units;
  std::vector<Group> groups;

  int num_stages() const noexcept { return units.empty() ? 0 : units.back().stage + 1; }
  /// The unit whose input is the input of `stage`.
  int first_unit(int stage) const;
  /// Whether any unit of `stage` has a backward. If not, no gradient is sent to this stage.
  bool has_backward(int stage) const noexcept;
  /// The groups whose unsharded parameters must have memory at `event`, ascending: those of its unit and of the
  /// enclosing units whose own pass is not over yet. Throws UsageError if there is no such unit.
  std::vector<int> groups_of(const Action& event) const;
  /// Throws UsageError naming the first unit whose stage, parent, groups or has_backward is inconsistent.
  void validate() const;
};

/// A pass of one rank through a stage, the element of pipeline schedules.
struct Pass {
  enum class Kind : uint8_t {
    forward,    ///< F
    recompute,  ///< C  repeats the forward of a stage that has kept only its input; before its backward
    backward,   ///< B  input gradients; weight gradients too unless the order has a W for it
    weight,     ///< W
    update,     ///< U  of asynchronous pipelines: the stage steps its own optimizer
  };
  Kind kind = Kind::forward;
  int micro_batch = 0;
  int stage = 0;
  bool operator==(const Pass&) const noexcept = default;
};
using PassOrder = std::vector<Pass>;

/// Gradient accumulation on one stage: F0 B0 F1 B1 ..: holds the activations of one micro-batch.
/// Throws UsageError for fewer than one micro-batch.
PassOrder accumulate(int num_micro_batches, int stage = 0);
/// Forward passes only. Throws UsageError for fewer than one micro-batch.
PassOrder forward_only(int num_micro_batches, int stage = 0);

/// The events of one pass. Forward: the units in order. Backward: in reverse, but a unit before its children, since its
/// output is the first that a gradient reaches; then, if it is recomputed, C of all units inside it, in order; then the
/// children. (Recompute inside recompute runs the innermost units once for each.) Weight: the units in reverse. Units
/// without backward have neither B nor W. Throws UsageError if the stage does not exist.
Schedule events_of(const Pass& pass, const Units& units);

/// The events of one rank's `order`, with sends and receives between stages: a receive right before the pass that needs
/// it, a send right after the pass that produces it. `rank_of_stage`: which coordinate of the pipeline holds each
/// stage; empty: one stage a rank. A crossing between two stages of one rank sends nothing, nor does the gradient for a
/// stage without backward. Throws UsageError if a stage does not exist or the order has stages of several ranks.
Schedule expand(const PassOrder& order, const Units& units, std::span<const int> rank_of_stage = {});

/// The tables of all ranks, `orders[p]` of rank p. A rank receives what another sends it in the order of the sends:
/// where it needs a later message first, as in interleaved pipelines, the receives of the earlier ones stand before it.
std::vector<Schedule> expand(std::span<const PassOrder> orders, const Units& units,
                             std::span<const int> rank_of_stage = {});

struct GatherOptions {
  bool free_after_forward = true;  ///< false: parameters stay unsharded from the first gather to the last use of the
                                   ///< step
  int prefetch = 0;                ///< number of events by which a gather precedes its use
};
/// Adds gathers and frees of the gathered groups: a gather directly before the first event that reads a group (see
/// groups_of) while it is not there, a free directly after the last event before a gap in its use. A gap is more than
/// `prefetch` other events: a shorter one would immediately regather what was just freed. A gather moves up by at most
/// `prefetch` events and passes neither another gather nor the first event. A reduction of the group counts as a use.
/// Joint groups: one gather at the very beginning, one free at the end, in the order of groups.
Schedule with_gathers(const Schedule& table, const Units& units, const GatherOptions& options = {});

/// The groups whose gradients may change at each entry of `table`: the trained ones of a B or W and of the enclosing
/// units (also around a C) whose backward is not over yet; at B and C not those of a unit with a W. Nothing for
/// actions.
std::vector<std::vector<int>> additions(const Schedule& table, const Units& units);

/// Adds the reductions: one for each trained group, directly after the last entry that adds to its gradient; with
/// `each_micro_batch`, after the last such entry of every micro-batch. Joint groups: one at the end of the table,
/// before their free, in the order of groups: their ranks must start them in the same order.
Schedule with_reductions(const Schedule& table, const Units& units, bool each_micro_batch = false);

/// Adds fetches and evictions to a table with gathers and reductions, but those of chunks (with_chunk_moves). A fetch
/// begins `ahead` events before what needs it, but after the eviction of the same; what is needed again within `ahead`
/// events stays, activations within one more.
Schedule with_moves(const Schedule& table, const Units& units, int ahead);

/// Adds the step of each group that steps_early: after the last reduction of the next one, so that its own is not
/// waited for at once.
Schedule with_steps(const Schedule& table, const Units& units);

/// Adds the update at the end; call it last.
Schedule with_update(Schedule table);

/// Checks the tables of all ranks of a pipeline (rank p holds the stages that rank_of_stage maps to p; empty: stage p)
/// by executing them symbolically: a send waits while `capacity` messages of its kind (inputs of stages, gradients) on
/// the way to the same rank have not been received, as StageLinks does (0: never), a receive waits for its message, the
/// gather of a joint group for all its ranks. A stage may send, receive, gather .. anywhere, and passes may come in any
/// order that obeys the rules. Throws UsageError naming rank, position and entry of the first that breaks one:
///   - each stage has every micro-batch 0, 1 .., at least one: F once, then, if any table has a B, B once (stages that
///     have backward), then W or not. A pass goes through the units as events_of says and ends before the next begins
///   - no event and no reduction reads a gathered group that is not there; nothing is gathered or freed twice; nothing
///     gathered stays at the end; a group is used on one rank or is joint; joint groups are gathered at most once
///   - a trained group is reduced once, after everything that adds to its gradient, or (not if it is joint) once for
///     each micro-batch, after everything of the micro-batch. Joint groups are reduced in the same order everywhere
///   - parameters of a group that is fetched, activations and gradients that are away, are fetched once before they
///     are used; a group steps after its last reduction
///   - a chunk is gathered from its slot; there are at most `chunk_slots` slots, and none when its group steps and at
///     the end
///   - if any table has a B, each ends with an update, else none has one: clipping needs all ranks
///   - what is sent exists and is what the other stage needs; each send has its recv; from one rank to another,
///     messages are received in the order in which they are sent; no rank waits forever: the whole cycle is named
void check(std::span<const Schedule> tables, const Units& units, std::span<const int> rank_of_stage = {},
           int capacity = 0, int chunk_slots = 0);

}  // namespace caravan
