#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/comm/choice/algorithm.h"

namespace caravan::algorithms {

/// An algorithm with its parameter.
struct Choice {
  Algorithm algorithm = Algorithm::direct;
  int64_t segment_bytes = 0;  ///< chain: the size of one message; 0 for all other algorithms
  bool operator==(const Choice&) const = default;
};

/// "ring", "chain of 64 KiB".
std::string to_string(const Choice& choice);

/// One rule of the table: the algorithm of `verb` for up to `max_ranks` ranks and `max_bytes` bytes.
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

/// Chooses the algorithm of a collective by back-end, ranks and bytes: the first rule that matches. Bytes are those of
/// the whole vector, equal on every rank: the buffer of all_reduce, broadcast and reduce; the sum of all parts of
/// all_gather and reduce_scatter; 0 for all_to_all. All ranks of a communicator need equal tables.
class SelectionTable {
 public:
  /// The built-in table: reasons in docs/design/collectives.md.
  SelectionTable();
  /// `rules`, in this order. Throws UsageError if a rule names an algorithm that does not serve its verb, or a chain
  /// without a segment, or can never match, or if a verb has no rule without bounds that holds for any back-end.
  explicit SelectionTable(std::vector<Rule> rules);

  Choice choose(std::string_view backend, Verb verb, int ranks, int64_t bytes) const;
  const std::vector<Rule>& rules() const noexcept { return rules_; }

  /// This table with `rules` first. Its own rules for the back-ends that they name are dropped.
  SelectionTable with(std::vector<Rule> rules) const;

  /// Reads what `save` wrote, or part of it written by hand: the built-in rules decide what the file leaves out. Throws
  /// DataError with the line of a syntax error, or the key and the nearest valid name.
  static SelectionTable load(const std::filesystem::path& path);
  static SelectionTable from_json(std::string_view text, std::string_view file);
  std::string to_json() const;
  /// Throws ResourceError.
  void save(const std::filesystem::path& path) const;

  /// A readable table: one line per rule.
  std::string to_string() const;

  bool operator==(const SelectionTable&) const = default;

 private:
  void check() const;
  static std::vector<Rule> with_built_in(std::vector<Rule> rules);

  std::vector<Rule> rules_;
};

}  // namespace caravan::algorithms
