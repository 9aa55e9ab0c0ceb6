#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace caravan {

class Setting;

/// Properties of a technique that other techniques and the settings of a run require. All are positive, so that a
/// technique without a statement is refused instead of assumed to work.
enum class Trait : uint8_t {
  whole_gradient,      ///< each step has one gradient of the whole model and of all ranks
  clips_norm,          ///< knows the norm by which a gradient is clipped
  scales_loss,         ///< one loss scale for all ranks, and skipped steps
  rounds_gradients,    ///< gradients are kept in 16 bits
  rounds_reductions,   ///< gradients are reduced in 16 bits
  bounded_lead,        ///< no rank is ahead of another by more than a number of steps known in advance
  ties_weights,        ///< updates a weight that layers share at once
  splits_layers,       ///< runs models whose layers or sequences are split over ranks
  splits_stages,       ///< runs models that are cut into pipeline stages
  runs_processes,      ///< ranks may be processes
  whole_weights,       ///< every rank holds whole weights, between steps too
  all_reduces,         ///< gradients are summed by all-reduces
  rehearses,           ///< what it sends does not depend on what it receives
  many_reductions,     ///< gradients may be reduced more than once in a step
  threads_may_differ,  ///< gives the same bits on ranks with other numbers of threads
  offloads,            ///< its state may rest outside of the device
  whole_matrices,      ///< one update of all parameters on the device, in which ranks may exchange pieces of matrices
};

/// The traits of a setting.
struct Traits {
  std::set<Trait> has;
  /// What it requires of the other techniques, and why: {whole_weights, "pipedream keeps versions of whole weights"}.
  std::map<Trait, std::string> needs{};
  std::string because{};  ///< why it lacks the others: "workers do not wait for each other"
  /// Values of its own keys with which it has more traits, the nearest first: {{"mode", "bounded"}, {"mode", "sync"}}.
  std::vector<std::pair<std::string, std::string>> instead{};
};

/// The traits of ranks that step together and hold whole weights, as under DDP. A new trait is added here once all
/// entries that use this set are known to have it.
std::set<Trait> usual_traits();
/// The traits of an entry that has these and requires nothing.
Traits usual_traits_of(const Setting& setting);

}  // namespace caravan
