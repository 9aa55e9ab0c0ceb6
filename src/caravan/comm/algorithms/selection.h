#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/comm/algorithms/algorithm.h"

namespace caravan::algorithms {

/// An algorithm with its parameter.
struct Choice {
  Algorithm algorithm = Algorithm::direct;
  int64_t segment_bytes = 0;  ///< chain: what travels at a time; of no other algorithm
  bool operator==(const Choice&) const = default;
};

/// "ring", "chain of 64 KiB".
std::string to_string(const Choice& choice);

/// One line of the table: what `verb` takes on up to `max_ranks` ranks and `max_bytes` bytes.
struct Rule {
  static constexpr int kAnyRanks = std::numeric_limits<int>::max();
  static constexpr int64_t kAnyBytes = std::numeric_limits<int64_t>::max();

  std::string backend;  ///< "gloo", "mpi", ..; "": any
  Verb verb = Verb::all_reduce;
  int max_ranks = kAnyRanks;
  int64_t max_bytes = kAnyBytes;
  Choice choice;
  bool operator==(const Rule&) const = default;
};

/// Which algorithm a collective takes, by back-end, ranks and bytes: the first rule that fits. Bytes are those of the
/// whole vector, equal on every rank: the buffer of all_reduce, broadcast and reduce; all parts together of all_gather
/// and reduce_scatter; 0 for all_to_all. All ranks of a communicator need equal tables.
class SelectionTable {
 public:
  /// The built-in table: reasons in docs/design/collectives.md.
  SelectionTable();
  /// `rules`, in this order. Throws UsageError if one names an algorithm that does not serve its verb or a chain
  /// without a segment, can never be reached, or if a verb has no rule without bounds for any back-end.
  explicit SelectionTable(std::vector<Rule> rules);

  Choice choose(std::string_view backend, Verb verb, int ranks, int64_t bytes) const;
  const std::vector<Rule>& rules() const noexcept { return rules_; }

  /// This table with `rules` before its own, in place of its own rules for the back-ends that they name.
  SelectionTable with(std::vector<Rule> rules) const;

  /// Reads what `save` wrote, or a hand-written part of it: what the file says nothing of is decided by the built-in
  /// rules. Throws DataError with the line of a syntax error, or the key and the nearest valid name.
  static SelectionTable load(const std::filesystem::path& path);
  static SelectionTable from_json(std::string_view text, std::string_view file);
  std::string to_json() const;
  /// Throws ResourceError.
  void save(const std::filesystem::path& path) const;

  /// A table for people: one line a rule.
  std::string to_string() const;

  bool operator==(const SelectionTable&) const = default;

 private:
  void check() const;
  static std::vector<Rule> with_built_in(std::vector<Rule> rules);

  std::vector<Rule> rules_;
};

}  // namespace caravan::algorithms
