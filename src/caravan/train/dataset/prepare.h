#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "caravan/comm/communicator.h"
#include "caravan/train/dataset/dataset.h"

namespace caravan {

/// The progress of this rank's data.
struct DataProgress {
  std::string_view stage;  ///< "tokenizing"
  int64_t done = 0;        ///< bytes of text
  int64_t total = 0;       ///< 0: unknown
};

/// How a rank takes part in work that may take long on some ranks. The functions are called on the calling thread.
struct JointWork {
  /// Interval of exchanges with the other ranks; well below the communicator's time-out.
  std::chrono::milliseconds beat{100};
  std::function<bool()> stop_requested = {};               ///< empty: never
  std::function<void(const DataProgress&)> progress = {};  ///< called at each beat while this rank works; may be empty
};

/// Runs `work` of this rank (may be empty), and returns when the work of all ranks is done. Every rank calls it. `work`
/// runs on a separate thread and reports to the given observer. Meanwhile the ranks exchange 24 bytes at each beat: no
/// rank times out while the others are alive, and the loss of a rank is noticed as in any collective.
///
/// Throws what `work` throws, and a CommError that repeats it on the other ranks; Interrupted on every rank, within a
/// beat, once stop_requested() is true on one; CommError if a rank is lost. In each case `work` is cancelled and has
/// ended on return.
void work_jointly(Communicator& world, const std::function<void(DataObserver&)>& work, const JointWork& options);

/// A name that is the same for ranks on one host, and different on different hosts.
std::string host_name();

/// open_dataset on every rank: on each host the first rank opens it, building what is missing in the cache, then the
/// others open what it has built; that rank continues to tokenize streamed texts. Every rank calls it. `host`:
/// host_name(), or another name in tests; `context`: as for open_dataset. Errors as those of open_dataset and
/// work_jointly.
Dataset prepare_dataset(const Recipe::Data& data, const DataFolders& folders, Communicator& world,
                        const JointWork& options, const std::string& host = host_name(), int64_t context = 0);

/// Waits until every rank can fill the samples [first, end) of streamed texts without waiting, and checks that all
/// hosts have the same text. Rank 0 sends the records of its shards to the ranks that do not build. `rows` belong to
/// `streams`. Every rank calls it with the same samples. Cheap if they are ready. Throws DataError naming a shard whose
/// content differs between ranks; also throws as TaskRows::prepare and work_jointly, on every rank.
void prepare_samples(TokenStreams& streams, const TaskRows& rows, int64_t first, int64_t end, Communicator& world,
                     const JointWork& options);

}  // namespace caravan
