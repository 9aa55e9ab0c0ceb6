#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "caravan/data/chat/chat_tokens.h"
#include "caravan/data/files/documents.h"
#include "caravan/data/windows/pieces.h"
#include "caravan/data/windows/token_streams.h"
#include "caravan/data/windows/whole_documents.h"

namespace caravan {

/// How to separate documents or chats that share a window: see Documents.
struct PackRule {
  int64_t end_of_text = 0;  ///< of documents
  bool restarts = true;
};

/// The order in which training visits a streamed text: shard after shard, epoch after epoch, and inside a shard as
/// Sampler does, or with a FillRule of the streams as WholeDocuments. Rows do not cross shards; each epoch leaves out
/// fewer than two windows of tokens of each shard, others in the next. Sample k depends only on (the text, context,
/// seed, k), not on the progress of tokenization.
class StreamedWindows {
 public:
  /// The streams outlive this. Throws ShapeError for context < 1, InternalError for a FillRule of another one.
  StreamedWindows(TokenStreams& streams, size_t text, int64_t context, uint64_t seed, std::optional<PackRule> packs);

  /// A shard in memory.
  struct Shard {
    int64_t index;
    TokenFile tokens;
    std::optional<TokenFile> marks{};  ///< of chats
    std::optional<Documents> documents{};
    std::optional<WholeDocuments> whole{};  ///< with a FillRule
    std::optional<AnswerCounts> answers{};  ///< of chats in windows
  };
  struct Row {
    std::shared_ptr<const Shard> shard;
    std::vector<TextPiece> pieces;         ///< of the shard
    std::optional<int64_t> num_targets{};  ///< with a FillRule
  };
  /// The row of sample k >= 0. Waits for its shard unless the sample is prepared; throws as TokenStreams::open, and
  /// DataError if no shard of the text has a row: context + 1 tokens, or a document with a target, or if its first
  /// shard has chats whose answers are all empty.
  Row row(int64_t sample);

  struct Seen {
    int64_t shard;
    ContentHash content;
  };
  /// Waits for the shards of the samples [first, end), and returns them. Until the next call they stay open, so that
  /// the cache keeps them and `row` does not wait. Afterwards is_ready(end).
  std::vector<Seen> prepare(int64_t first, int64_t end, DataObserver& observer = DataObserver::none());
  /// Whether prepare() has seen the shards of all samples before `end`.
  bool is_ready(int64_t end) const;

  /// Rows of an epoch, once all shards are known.
  std::optional<int64_t> rows_per_epoch() const;
  bool has_whole_documents() const noexcept { return streams_.fill().has_value(); }
  /// What the user should know of the first shard, once it has been open.
  std::vector<std::string> first_notes() const;
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
  int64_t rows_of(const ShardRecord& record) const;
  uint64_t seed_of(int64_t shard) const;
  std::shared_ptr<const Shard> open(int64_t shard, DataObserver& observer);
  std::shared_ptr<const Shard> find(int64_t shard);

  TokenStreams& streams_;
  size_t text_;
  int64_t context_;
  uint64_t seed_;
  std::optional<PackRule> packs_;
  mutable std::mutex mutex_;
  std::vector<int64_t> ends_;  ///< rows of an epoch up to the end of each shard
  bool is_whole_ = false;      ///< includes the last shard
  std::vector<std::string> first_notes_;
  int64_t ready_until_ = 0;
  std::map<int64_t, std::shared_ptr<const Shard>> prepared_;
  std::list<std::shared_ptr<const Shard>> open_;  ///< others, the most recently used first
};

}  // namespace caravan
