#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "caravan/data/streamed_text.h"
#include "caravan/data/token_file.h"
#include "caravan/data/tokenizer.h"

namespace caravan {

/// What is known of a shard once it has been tokenized.
struct ShardRecord {
  ContentHash content;  ///< of its token file
  int64_t num_tokens = 0;
  TextPlace end;
  bool is_last = false;
};

/// The texts of a run as token files in the cache, one for each shard, which are made in the background while the run
/// goes on: a few shards ahead of those that were asked for. The record of a shard is kept in the cache, too: where a
/// run is resumed, the shards before its place are not tokenized again.
///
/// One process of a host builds; the others, with the same cache, wait for its files.
class TokenStreams {
 public:
  struct Text {
    StreamedText text;
    std::string name;  ///< for errors
  };
  struct Options {
    std::filesystem::path cache;
    std::optional<int64_t> cache_limit_bytes{};
    bool builds = true;
    int64_t num_ahead = 4;               ///< shards that are built before anybody asks for them
    std::chrono::seconds patience{600};  ///< how long a process that does not build waits for one shard
  };
  TokenStreams(std::vector<Text> texts, Tokenizer tokenizer, Options options);
  /// Cancels what is being built.
  ~TokenStreams();
  TokenStreams(const TokenStreams&) = delete;
  TokenStreams& operator=(const TokenStreams&) = delete;

  size_t size() const noexcept { return texts_.size(); }
  const std::string& name(size_t text) const { return texts_[text].name; }
  /// What tells the text from others: see StreamedText::content.
  ContentHash content(size_t text) const { return texts_[text].content; }

  /// Waits until the shard, which follows one that is not the last, has been tokenized. Any thread. Throws what reading
  /// and tokenizing have thrown, which no later call gets past; ResourceError naming the shard after `patience`; what
  /// `observer` throws.
  ShardRecord record(size_t text, int64_t shard, DataObserver& observer = DataObserver::none());
  /// The same, and its tokens. If the cache has removed them, they are made again.
  TokenFile open(size_t text, int64_t shard, DataObserver& observer = DataObserver::none());

  /// How many shards of a text are known to this process.
  int64_t num_known(size_t text) const;

 private:
  struct Progress {
    StreamedText text;
    std::string name;
    ContentHash content;
    ContentHash identity;
    std::vector<ShardRecord> records{};
    int64_t wanted = -1;               ///< the furthest that was asked for
    std::optional<int64_t> removed{};  ///< asked for, but its tokens are no longer in the cache
    /// Keeps the cache from removing what is ahead of the run.
    std::map<int64_t, std::vector<std::shared_ptr<const CacheLock>>> in_use{};
  };
  struct Work {
    size_t text;
    int64_t shard;
  };
  class Cancel;

  void run();
  std::optional<Work> next_work();
  void build(const Work& work);
  ShardRecord tokenize(const Work& work, TextPlace begin);
  void wait(std::unique_lock<std::mutex>& lock, const Work& work, std::chrono::steady_clock::time_point since,
            DataObserver& observer);
  std::filesystem::path record_path(const Work& work) const;
  std::filesystem::path tokens_path(const ShardRecord& record) const;

  std::vector<Progress> texts_;
  const Tokenizer tokenizer_;
  const Options options_;
  mutable std::mutex mutex_;  ///< of records, wanted, removed, in_use and what follows
  std::condition_variable changed_;
  bool is_cancelled_ = false;
  std::exception_ptr error_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace caravan
