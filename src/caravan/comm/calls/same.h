#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/comm/communicator.h"
#include "caravan/comm/store/rendezvous.h"

namespace caravan {

/// Something that must be the same on every rank: an option, the shape of a parameter, the hash of a file.
struct SharedFact {
  std::string name;
  std::string value;
};

/// The first fact in which two ranks differ.
struct Disagreement {
  std::string name;
  int first_rank = 0;  ///< 0, unless the ranks were renumbered
  int other_rank = 0;  ///< the lowest rank that differs from it
  std::string first_value;
  std::string other_value;
  std::string to_string() const;  ///< `is "3e-3" on rank 0 and "1e-2" on rank 1`
};

/// Compares the facts of all ranks; nothing if they are equal. Every rank calls it and gets the same answer. Sends 16
/// bytes, and only where they differ the facts of two ranks.
std::optional<Disagreement> find_disagreement(Communicator& comm, const std::vector<SharedFact>& facts,
                                              const Call& call = {});

/// The same through the store, for what must agree before there is a communicator. Throws CommError naming the ranks
/// that do not come within `timeout`.
std::optional<Disagreement> find_disagreement(Store& store, const RankInfo& info, const std::vector<SharedFact>& facts,
                                              std::chrono::milliseconds timeout);

/// Throws UsageError on every rank, naming the first fact that differs and the values of two ranks, unless all ranks of
/// `comm` give the same facts. `op` begins the message. A technique whose collectives have sizes from its arguments
/// calls it before the first of them.
void check_same_on_all_ranks(Communicator& comm, std::string_view op, const std::vector<SharedFact>& facts,
                             const Call& call = {});

}  // namespace caravan
