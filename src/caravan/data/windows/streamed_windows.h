#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "caravan/data/files/documents.h"
#include "caravan/data/windows/token_streams.h"

namespace caravan {

/// How to separate documents that share a window: see Documents.
struct PackRule {
  int64_t end_of_text = 0;
  bool restarts = true;
};

/// The order in which training visits a streamed text: shard after shard, epoch after epoch, and inside a shard as
/// Sampler does. Windows do not cross shards; each epoch leaves out fewer than two windows of tokens of each shard,
/// others in the next. Sample k depends only on (the text, context, seed, k), not on the progress of tokenization.
class StreamedWindows {
 public:
  /// The streams outlive this. Throws ShapeError for context < 1.
  StreamedWindows(TokenStreams& streams, size_t text, int64_t context, uint64_t seed, std::optional<PackRule> packs);

  /// A shard in memory.
  struct Shard {
    int64_t index;
    TokenFile tokens;
    std::optional<Documents> documents;
  };
  struct Window {
    std::shared_ptr<const Shard> shard;
    int64_t offset;  ///< of its first token in the shard
  };
  /// The window of sample k >= 0. Waits for its shard unless the sample is prepared; throws as TokenStreams::open, and
  /// DataError if no shard of the text has context + 1 tokens.
  Window window(int64_t sample);

  struct Seen {
    int64_t shard;
    ContentHash content;
  };
  /// Waits for the shards of the samples [first, end), and returns them. Until the next call they stay open, so that
  /// the cache keeps them and `window` does not wait. Afterwards is_ready(end).
  std::vector<Seen> prepare(int64_t first, int64_t end, DataObserver& observer = DataObserver::none());
  /// Whether prepare() has seen the shards of all samples before `end`.
  bool is_ready(int64_t end) const;

  /// Windows of an epoch, once all shards are known.
  std::optional<int64_t> windows_per_epoch() const;
  /// Number of open shards: at most those of the prepared samples, and kMostOpen others.
  int64_t num_open() const;
  static constexpr size_t kMostOpen = 2;

 private:
  struct Place {
    int64_t shard;
    int64_t index;  ///< index among the samples of the shard, in all epochs
    int64_t left;   ///< samples of this epoch from here to the end of the shard
  };
  Place place_of(int64_t sample, DataObserver& observer);
  void learn_next_shard(DataObserver& observer);
  int64_t windows_of(int64_t num_tokens) const;
  uint64_t seed_of(int64_t shard) const;
  std::shared_ptr<const Shard> open(int64_t shard, DataObserver& observer) const;
  std::shared_ptr<const Shard> find(int64_t shard);

  TokenStreams& streams_;
  size_t text_;
  int64_t context_;
  uint64_t seed_;
  std::optional<PackRule> packs_;
  mutable std::mutex mutex_;
  std::vector<int64_t> ends_;  ///< windows of an epoch up to the end of each shard
  bool is_whole_ = false;      ///< includes the last shard
  int64_t ready_until_ = 0;
  std::map<int64_t, std::shared_ptr<const Shard>> prepared_;
  std::list<std::shared_ptr<const Shard>> open_;  ///< others, the most recently used first
};

}  // namespace caravan
