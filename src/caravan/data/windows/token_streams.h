#pragma once

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

#include "caravan/data/tokenizer/tokenizer.h"
#include "caravan/data/windows/streamed_text.h"
#include "caravan/data/windows/token_file.h"

namespace caravan {

/// The record of a shard that has been tokenized.
struct ShardRecord {
  ContentHash content;  ///< of its token file
  int64_t num_tokens = 0;
  TextPlace end;
  bool is_last = false;
  std::optional<int64_t> num_sequences{};  ///< with a FillRule
  std::optional<ChatCounts> chats{};       ///< of chats
};

/// The tokens of a shard, and of chats their marks.
struct ShardTokens {
  TokenFile tokens;
  std::optional<TokenFile> marks{};
};

/// Rows are whole documents or chats in sequences, and not windows: see WholeDocuments.
struct FillRule {
  int64_t end_of_text = 0;  ///< of documents
  int64_t context = 0;
};

/// The texts of a run as token files in the cache, one for each shard. They are built in the background during the run,
/// a few shards ahead of the requested ones. The record of a shard is kept in the cache, too, so that a resumed run
/// does not tokenize earlier shards again.
///
/// One process of a host builds. The others with the same cache read its files: they receive the records, and never
/// wait or read the texts.
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
    int64_t num_ahead = 4;  ///< shards that are built before they are requested
    std::optional<FillRule> fill{};
    bool are_chats = false;  ///< the texts have a format with a chat template
  };
  TokenStreams(std::vector<Text> texts, Tokenizer tokenizer, Options options);
  /// Cancels what is being built.
  ~TokenStreams();
  TokenStreams(const TokenStreams&) = delete;
  TokenStreams& operator=(const TokenStreams&) = delete;

  size_t size() const noexcept { return texts_.size(); }
  const std::string& name(size_t text) const { return texts_[text].name; }
  /// Identifies the text: see StreamedText::content.
  ContentHash content(size_t text) const { return texts_[text].content; }

  /// Identifies each file of a text: see StreamedText::file_contents.
  std::vector<StreamedText::FileContent> file_contents(size_t text) const { return texts_[text].text.file_contents(); }
  bool builds() const noexcept { return options_.builds; }
  const std::optional<FillRule>& fill() const noexcept { return options_.fill; }
  bool are_chats() const noexcept { return options_.are_chats; }

  /// The record of a shard, which follows one that is not the last. Any thread. A process that builds waits until the
  /// shard has been tokenized, and throws the errors of tokenization and of `observer`; later calls rethrow the error
  /// of tokenization. One that does not build throws ResourceError if it has not received the record.
  ShardRecord record(size_t text, int64_t shard, DataObserver& observer = DataObserver::none());
  /// The same, and opens its tokens. A process that builds rebuilds them if the cache has removed them; one that does
  /// not throws ResourceError if they are not in its cache.
  ShardTokens open(size_t text, int64_t shard, DataObserver& observer = DataObserver::none());

  /// The records added since the last call, for the processes that do not build.
  std::string take_new_records();
  /// Adds the result of take_new_records() of the first process; a process that builds keeps its own records.
  void add_records(const std::string& records);

  /// How many shards of a text this process knows.
  int64_t num_known(size_t text) const;

 private:
  struct Progress {
    StreamedText text;
    std::string name;
    ContentHash content;
    ContentHash identity;
    std::vector<ShardRecord> records{};
    size_t num_taken = 0;              ///< number of records returned by take_new_records()
    int64_t wanted = -1;               ///< the furthest requested shard
    std::optional<int64_t> removed{};  ///< requested, but its tokens are no longer in the cache
    /// Keeps the cache from removing shards ahead of the run, and rebuilt shards until they are opened.
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
  void wait(std::unique_lock<std::mutex>& lock, DataObserver& observer);
  ShardTokens make_tokens(const std::vector<std::string>& documents, DataObserver& observer) const;
  std::optional<TokenFile> find_file(const ContentHash& content, const ShardRecord& record) const;
  std::optional<ShardTokens> find_tokens(const ShardRecord& record) const;
  ShardRecord empty_record() const;
  std::filesystem::path record_path(const Work& work) const;
  std::filesystem::path tokens_path(const ContentHash& content) const;

  std::vector<Progress> texts_;
  const Tokenizer tokenizer_;
  const Options options_;
  CacheTrimmer trimmer_;      ///< of the thread that builds
  mutable std::mutex mutex_;  ///< guards records, wanted, removed, in_use and what follows
  std::condition_variable changed_;
  bool is_cancelled_ = false;
  std::exception_ptr error_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace caravan
