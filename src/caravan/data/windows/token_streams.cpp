#include "caravan/data/windows/token_streams.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <sstream>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/system/file.h"
#include "caravan/data/chat/chat_tokens.h"
#include "caravan/data/windows/whole_documents.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kLookAgain{20};
/// The first word of a record of windows, and of one of sequences, whose number is known.
constexpr const char* kWindowsMagic = "caravan-shard-2";
constexpr const char* kSequencesMagic = "caravan-shard-3";

/// Thrown to end the building thread. Never leaves this file.
struct StreamsCancelled {};

std::string to_text(const ShardRecord& record) {
  std::string text = fmt::format("{} {} {} {} {} {:d}", record.content.high, record.content.low, record.num_tokens,
                                 record.end.file, record.end.offset, record.is_last);
  if (record.num_sequences) text += fmt::format(" {}", *record.num_sequences);
  if (const auto& chats = record.chats) {
    text += fmt::format(" {} {} {}", chats->last_alone, chats->answers, chats->empty);
  }
  return text;
}

std::istream& operator>>(std::istream& in, ShardRecord& record) {
  in >> record.content.high >> record.content.low >> record.num_tokens >> record.end.file >> record.end.offset >>
      record.is_last;
  if (record.num_sequences) in >> *record.num_sequences;
  if (auto& chats = record.chats) in >> chats->last_alone >> chats->answers >> chats->empty;
  return in;
}

/// The line of a file: the record, and a hash of it.
std::string line_of(const ShardRecord& record) {
  const std::string text =
      fmt::format("{} {}", record.num_sequences ? kSequencesMagic : kWindowsMagic, to_text(record));
  ContentHasher hasher;
  hasher.update(text);
  return text + " " + hasher.value().hex();
}

/// Nothing if there is no record with what `record` has, or a damaged one.
std::optional<ShardRecord> read_record(const fs::path& path, ShardRecord record) {
  std::ifstream file(path);
  std::string line, magic;
  std::getline(file, line);
  std::istringstream words(line);
  words >> magic;
  if (!(words >> record) || line != line_of(record)) return std::nullopt;
  return record;
}

void write_record(const fs::path& path, const ShardRecord& record) {
  write_file_durably(path, line_of(record) + "\n", "data");
}

std::optional<int64_t> num_sequences(const ShardTokens& shard, const std::optional<FillRule>& fill) {
  if (!fill) return std::nullopt;
  if (shard.marks) return WholeDocuments(*shard.marks, fill->context).size();
  return WholeDocuments(shard.tokens, fill->end_of_text, fill->context).size();
}

}  // namespace

/// Passed to the work of the building thread.
class TokenStreams::Cancel final : public DataObserver {
 public:
  explicit Cancel(const TokenStreams& streams) : streams_(streams) {}
  void advance(int64_t) override {
    const std::lock_guard lock(streams_.mutex_);
    if (streams_.is_cancelled_) throw StreamsCancelled();
  }

 private:
  const TokenStreams& streams_;
};

TokenStreams::TokenStreams(std::vector<Text> texts, Tokenizer tokenizer, Options options)
    : tokenizer_(std::move(tokenizer)),
      options_(std::move(options)),
      trimmer_(options_.cache, options_.cache_limit_bytes) {
  for (Text& text : texts) {
    const ContentHash content = text.text.content();
    const ContentHash identity = text.text.identity();
    if (!options_.builds) text.text.forget_template();
    texts_.push_back(
        {.text = std::move(text.text), .name = std::move(text.name), .content = content, .identity = identity});
  }
  if (options_.builds) thread_ = std::thread([this] { run(); });
}

TokenStreams::~TokenStreams() {
  {
    const std::lock_guard lock(mutex_);
    is_cancelled_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

int64_t TokenStreams::num_known(size_t text) const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(texts_[text].records.size());
}

/// With what a record of these streams has.
ShardRecord TokenStreams::empty_record() const {
  ShardRecord record;
  if (options_.fill) record.num_sequences = 0;
  if (options_.are_chats) record.chats.emplace();
  return record;
}

fs::path TokenStreams::record_path(const Work& work) const {
  ContentHasher hasher;
  const ContentHash& identity = texts_[work.text].identity;
  const ContentHash tokenizer = tokenizer_.hash();
  for (const uint64_t part :
       {identity.high, identity.low, tokenizer.high, tokenizer.low,
        static_cast<uint64_t>(tokenizer_.end_of_text().value_or(-1)), static_cast<uint64_t>(work.shard)}) {
    hasher.update(part);
  }
  if (options_.are_chats) {  // the tokens of the same chats
    hasher.update(kDecoding);
    hasher.update(kMarking);
  }
  if (options_.fill) hasher.update(static_cast<uint64_t>(options_.fill->context));
  return options_.cache / (hasher.value().hex() + ".shard");
}

fs::path TokenStreams::tokens_path(const ContentHash& content) const {
  return options_.cache / (content.hex() + ".tokens");
}

void TokenStreams::run() {
  try {
    while (const std::optional<Work> work = next_work()) build(*work);
  } catch (const StreamsCancelled&) {
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
    changed_.notify_all();
  }
}

/// What a caller waits for, else the text that is least ahead of the run. Waits for work; returns nothing if cancelled.
std::optional<TokenStreams::Work> TokenStreams::next_work() {
  std::unique_lock lock(mutex_);
  while (!is_cancelled_) {
    std::optional<Work> best;
    int64_t least = options_.num_ahead + 1;
    for (size_t i = 0; i < texts_.size(); ++i) {
      const Progress& text = texts_[i];
      if (text.removed) return Work{i, *text.removed};
      const auto next = static_cast<int64_t>(text.records.size());
      const bool is_whole = next > 0 && text.records.back().is_last;
      if (is_whole || next - text.wanted >= least) continue;
      best = {i, next};
      least = next - text.wanted;
    }
    if (best) return best;
    changed_.wait(lock);
  }
  return std::nullopt;
}

ShardTokens TokenStreams::make_tokens(const std::vector<std::string>& documents, DataObserver& observer) const {
  const std::vector<std::string_view> views(documents.begin(), documents.end());
  if (!options_.are_chats) return {open_or_build(options_.cache, views, tokenizer_, observer)};
  ChatTokens chats = open_or_build_chats(options_.cache, views, tokenizer_, observer);
  return {std::move(chats.tokens), std::move(chats.marks)};
}

ShardRecord TokenStreams::tokenize(const Work& work, TextPlace begin) {
  Cancel cancel(*this);
  Progress& text = texts_[work.text];
  const StreamedText::Shard shard = text.text.read(begin, cancel);
  const ShardTokens made = make_tokens(shard.documents, cancel);
  const TokenFile& tokens = made.tokens;
  ShardRecord record{.content = tokens.info().content,
                     .num_tokens = tokens.size(),
                     .end = shard.end,
                     .is_last = text.text.is_end(shard.end),
                     .num_sequences = num_sequences(made, options_.fill)};
  if (options_.are_chats) record.chats = shard.chats;
  write_record(record_path(work), record);
  std::vector<fs::path> files{tokens.path()};
  if (made.marks) files.push_back(made.marks->path());
  {
    const std::lock_guard lock(mutex_);
    auto& in_use = text.in_use[work.shard];
    in_use = {use_cache_file(record_path(work))};
    for (const fs::path& file : files) in_use.push_back(use_cache_file(file));
    std::erase_if(text.in_use,
                  [&](const auto& entry) { return entry.first < text.wanted - 1 && entry.first != work.shard; });
  }
  for (const fs::path& file : files) {
    std::error_code error;
    const auto bytes = fs::file_size(file, error);
    trimmer_.added(error ? 0 : static_cast<int64_t>(bytes));
  }
  return record;
}

void TokenStreams::build(const Work& work) {
  Progress& text = texts_[work.text];
  const bool is_next = work.shard == static_cast<int64_t>(text.records.size());  // only this thread adds records
  const TextPlace begin = work.shard == 0 ? TextPlace{} : text.records[static_cast<size_t>(work.shard - 1)].end;
  std::optional<ShardRecord> record;
  if (is_next) record = read_record(record_path(work), empty_record());
  if (!record) record = tokenize(work, begin);
  if (!is_next && record->content != text.records[static_cast<size_t>(work.shard)].content) {
    throw DataError({"data", fmt::format("shard {} of {}", work.shard, text.name),
                     "has changed since the run first read it", "",
                     "leave the texts of a run as they are, and start it again"});
  }
  const std::lock_guard lock(mutex_);
  if (is_next) text.records.push_back(*record);
  if (text.removed == work.shard) text.removed.reset();
  changed_.notify_all();
}

void TokenStreams::wait(std::unique_lock<std::mutex>& lock, DataObserver& observer) {
  if (error_) std::rethrow_exception(error_);
  changed_.wait_for(lock, kLookAgain);
  lock.unlock();
  observer.advance(0);
  lock.lock();
}

ShardRecord TokenStreams::record(size_t text, int64_t shard, DataObserver& observer) {
  Progress& progress = texts_[text];
  std::unique_lock lock(mutex_);
  while (static_cast<int64_t>(progress.records.size()) <= shard) {
    if (!options_.builds) {
      throw ResourceError({"data", fmt::format("shard {} of {}", shard, progress.name),
                           "was requested before the ranks prepared it together", "",
                           "prepare the samples of a step before they are read"});
    }
    if (shard > progress.wanted) {
      progress.wanted = shard;
      changed_.notify_all();
    }
    wait(lock, observer);
  }
  return progress.records[static_cast<size_t>(shard)];
}

/// Nothing if it is damaged, or not in the cache.
std::optional<TokenFile> TokenStreams::find_file(const ContentHash& content, const ShardRecord& record) const {
  std::error_code error;
  if (!fs::exists(tokens_path(content), error)) return std::nullopt;
  try {
    TokenFile file = TokenFile::open(tokens_path(content));
    if (file.info().content == content && file.size() == record.num_tokens) return file;
  } catch (const DataError&) {
    // Damaged, or removed meanwhile.
  }
  return std::nullopt;
}

std::optional<ShardTokens> TokenStreams::find_tokens(const ShardRecord& record) const {
  std::optional<TokenFile> tokens = find_file(record.content, record);
  if (!tokens) return std::nullopt;
  if (!options_.are_chats) return ShardTokens{std::move(*tokens)};
  std::optional<TokenFile> marks = find_file(content_of_marks(record.content), record);
  if (!marks) return std::nullopt;
  return ShardTokens{std::move(*tokens), std::move(marks)};
}

ShardTokens TokenStreams::open(size_t text, int64_t shard, DataObserver& observer) {
  const ShardRecord known = record(text, shard, observer);
  Progress& progress = texts_[text];
  std::unique_lock lock(mutex_);
  progress.wanted = std::max(progress.wanted, shard);
  changed_.notify_all();
  while (true) {
    if (std::optional<ShardTokens> found = find_tokens(known)) {
      if (shard < progress.wanted - 1) progress.in_use.erase(shard);  // the caller keeps it now
      return std::move(*found);
    }
    if (!options_.builds) {
      throw ResourceError(
          {"data", fmt::format("shard {} of {}", shard, progress.name),
           "is not in the cache, although another rank of this host has tokenized it",
           tokens_path(known.content).string(),
           "give all ranks of a host the same cache, on a file system with locks, or each rank its own"});
    }
    progress.removed = shard;
    changed_.notify_all();
    wait(lock, observer);
  }
}

std::string TokenStreams::take_new_records() {
  const std::lock_guard lock(mutex_);
  std::string lines;
  for (size_t text = 0; text < texts_.size(); ++text) {
    Progress& progress = texts_[text];
    for (; progress.num_taken < progress.records.size(); ++progress.num_taken) {
      lines += fmt::format("{} {}\n", text, to_text(progress.records[progress.num_taken]));
    }
  }
  return lines;
}

void TokenStreams::add_records(const std::string& records) {
  if (options_.builds) return;
  const std::lock_guard lock(mutex_);
  std::istringstream lines(records);
  size_t text = 0;
  ShardRecord record = empty_record();
  while (lines >> text >> record) texts_.at(text).records.push_back(record);
}

}  // namespace caravan
