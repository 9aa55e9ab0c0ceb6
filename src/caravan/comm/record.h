#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "caravan/comm/communicator.h"

namespace caravan {

/// The numbers of the last message of each label that recorded ranks have sent from memory. Ranks that are recorded one
/// after another with one of these tell each other so, the first of a pipeline the others, what shapes they send.
using RecordedNumbers = std::map<std::string, std::vector<int64_t>>;

struct RecordOptions {
  int ranks_per_host = 0;  ///< that many neighbouring ranks share memory (Communicator::shares_memory); 0: none do
  /// Called with the name of each communicator that is split off, and its members as ranks of the world; may be empty.
  std::function<void(const std::string& name, const std::vector<int>& ranks)> on_split{};
  std::shared_ptr<RecordedNumbers> numbers{};  ///< null: no message brings any
};

/// Rank `rank` of a world of any size that sends nothing and counts everything (Communicator::traffic). `out` is not
/// written, so only shapes and counts mean anything. Buffers need no memory (meta tensors). An operation ends when it
/// is waited for, never by itself.
std::shared_ptr<Communicator> make_record_world(int rank, int size, const RecordOptions& options = {});

}  // namespace caravan
