#include "caravan/data/tokenizer/bpe_trainer.h"

#include <algorithm>
#include <array>
#include <queue>
#include <unordered_map>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/data/files/corpus.h"
#include "caravan/data/tokenizer/byte_alphabet.h"
#include "caravan/data/tokenizer/tokenizer_json.h"
#include "caravan/data/unicode/utf8.h"

namespace caravan {
namespace {

/// Counts the distinct words of a text.
class WordCounter final : public WordSink {
 public:
  explicit WordCounter(DataObserver& observer) : observer_(observer) {}

  void word(std::string_view word) override {
    bytes_ += static_cast<int64_t>(word.size());
    if (bytes_ >= kReportBytes) report();
    const auto found = index_.find(word);
    if (found != index_.end()) {
      ++counts_[found->second];
      return;
    }
    index_.emplace(word, counts_.size());
    words_.push_back(word);
    counts_.push_back(1);
  }

  void report() {
    observer_.advance(bytes_);
    bytes_ = 0;
  }

  const std::vector<std::string_view>& words() const noexcept { return words_; }
  const std::vector<int64_t>& counts() const noexcept { return counts_; }

 private:
  static constexpr int64_t kReportBytes = int64_t{1} << 18;

  DataObserver& observer_;
  int64_t bytes_ = 0;                                   // since the last report
  std::unordered_map<std::string_view, size_t> index_;  // keys point into the text
  std::vector<std::string_view> words_;
  std::vector<int64_t> counts_;
};

struct Pair {
  int32_t left;
  int32_t right;
  bool operator==(const Pair&) const = default;
  auto operator<=>(const Pair&) const = default;
};

struct PairHash {
  size_t operator()(const Pair& pair) const noexcept {
    const uint64_t key = static_cast<uint64_t>(pair.left) << 32 | static_cast<uint32_t>(pair.right);
    return key * 0x9E3779B97F4A7C15 >> 16;
  }
};

struct Candidate {
  int64_t count;
  Pair pair;
  /// Lower priority: less frequent, or equally frequent with larger ids.
  bool operator<(const Candidate& other) const noexcept {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

/// The words as sequences of ids, and for each adjacent pair its count and the words that contain it.
class BpeTrainer {
 public:
  BpeTrainer(const WordCounter& counter, const std::vector<std::string>& special, WrittenTokenizer& out)
      : counts_(counter.counts()), special_(special), out_(out) {
    std::array<int32_t, 256> byte_ids{};
    for (int32_t id = 0; id < 256; ++id) {
      byte_ids[ByteAlphabet::instance().order()[static_cast<size_t>(id)]] = id;
      out_.tokens.emplace_back(1, static_cast<char>(ByteAlphabet::instance().order()[static_cast<size_t>(id)]));
      ids_by_bytes_.emplace(out_.tokens.back(), id);
    }
    for (const std::string& token : special_) {
      out_.special_ids.push_back(static_cast<int32_t>(out_.tokens.size()));
      out_.tokens.push_back(token);
    }
    for (const std::string_view word : counter.words()) {
      std::vector<int32_t>& ids = words_.emplace_back();
      ids.reserve(word.size());
      for (const char byte : word) ids.push_back(byte_ids[static_cast<unsigned char>(byte)]);
    }
  }

  void run(int64_t vocab_size, int64_t min_frequency, DataObserver& observer) {
    for (uint32_t w = 0; w < words_.size(); ++w) {
      if (w % 4096 == 0) observer.advance(0);
      for (size_t i = 0; i + 1 < words_[w].size(); ++i) change({words_[w][i], words_[w][i + 1]}, w, counts_[w]);
    }
    queue_grown();
    while (static_cast<int64_t>(out_.tokens.size()) < vocab_size && !queue_.empty()) {
      observer.advance(0);
      const Candidate best = queue_.top();
      queue_.pop();
      const int64_t count = pairs_[best.pair].count;
      if (count != best.count) {  // stale: the count shrank since; pairs that grow are queued again
        if (count > 0 && count < best.count) queue_.push({count, best.pair});
        continue;
      }
      if (count < std::max<int64_t>(min_frequency, 1)) break;
      merge(best.pair);
    }
  }

 private:
  struct Occurrences {
    int64_t count = 0;
    std::vector<uint32_t> words;  // may contain words that have lost the pair
    bool has_grown = false;
  };

  void change(Pair pair, uint32_t word, int64_t by) {
    Occurrences& occurrences = pairs_[pair];
    occurrences.count += by;
    if (by < 0) return;
    if (occurrences.words.empty() || occurrences.words.back() != word) occurrences.words.push_back(word);
    if (!occurrences.has_grown) grown_.push_back(pair);
    occurrences.has_grown = true;
  }

  void queue_grown() {
    for (const Pair& pair : grown_) {
      Occurrences& occurrences = pairs_[pair];
      occurrences.has_grown = false;
      if (occurrences.count > 0) queue_.push({occurrences.count, pair});
    }
    grown_.clear();
  }

  void merge(Pair pair) {
    const std::string bytes =
        out_.tokens[static_cast<size_t>(pair.left)] + out_.tokens[static_cast<size_t>(pair.right)];
    if (std::ranges::find(special_, bytes) != special_.end()) {  // plain text must never produce a special token
      pairs_.erase(pair);
      return;
    }
    // Two merges can produce the same token: "th" + "e" and "t" + "he".
    const auto [known, is_new] = ids_by_bytes_.emplace(bytes, static_cast<int32_t>(out_.tokens.size()));
    if (is_new) out_.tokens.push_back(bytes);
    out_.merges.push_back({pair.left, pair.right, known->second});
    std::vector<uint32_t> words = std::move(pairs_[pair].words);
    pairs_.erase(pair);
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    for (const uint32_t word : words) merge_in_word(word, pair, known->second);
    pairs_.erase(pair);  // overlaps as in "aaa" have inserted it again
    queue_grown();
  }

  void merge_in_word(uint32_t word, Pair pair, int32_t result) {
    std::vector<int32_t>& ids = words_[word];
    size_t end = 0;  // of the rewritten part
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i + 1 == ids.size() || ids[i] != pair.left || ids[i + 1] != pair.right) {
        ids[end++] = ids[i];
        continue;
      }
      if (end > 0) {
        change({ids[end - 1], pair.left}, word, -counts_[word]);
        change({ids[end - 1], result}, word, counts_[word]);
      }
      if (i + 2 < ids.size()) {
        change({pair.right, ids[i + 2]}, word, -counts_[word]);
        change({result, ids[i + 2]}, word, counts_[word]);
      }
      ids[end++] = result;
      ++i;
    }
    ids.resize(end);
  }

  const std::vector<int64_t>& counts_;
  const std::vector<std::string>& special_;
  WrittenTokenizer& out_;
  std::vector<std::vector<int32_t>> words_;
  std::unordered_map<std::string, int32_t> ids_by_bytes_;
  std::unordered_map<Pair, Occurrences, PairHash> pairs_;
  std::vector<Pair> grown_;
  std::priority_queue<Candidate> queue_;
};

}  // namespace

Tokenizer train_bpe(std::span<const std::string_view> documents, int64_t vocab_size, const BpeTrainerOptions& options,
                    DataObserver& observer) {
  std::vector<std::string> special;
  if (!options.end_of_text.empty()) special.push_back(options.end_of_text);
  special.insert(special.end(), options.more_special.begin(), options.more_special.end());
  const int64_t least = 256 + std::ssize(special);
  if (vocab_size < least) {
    const std::string others =
        special.size() > 1 ? fmt::format(" and {} special tokens", special.size()) : " and the end-of-text token";
    throw UsageError({.op = "tokenizer",
                      .subject = fmt::format("a vocabulary of {} tokens", vocab_size),
                      .fact = fmt::format("is too small for the 256 bytes{}", special.empty() ? "" : others),
                      .action = fmt::format("use at least {}", least)});
  }
  observer.begin("training the tokenizer", num_bytes(documents));
  WordCounter counter(observer);
  PreTokenizer::Scratch scratch;
  const PreTokenizer cut = PreTokenizer::gpt2();
  for (const std::string_view document : documents) {
    SecondPass checking(observer);
    check_utf8(document, "tokenizer", "the training text", checking);
    cut.split({document}, scratch, counter);
    counter.report();
  }
  WrittenTokenizer out;
  BpeTrainer(counter, special, out).run(vocab_size, options.min_frequency, observer);
  const auto id_of = [&](std::string_view token) -> std::optional<int32_t> {
    const auto found = std::ranges::find(special, token);
    if (found == special.end()) return std::nullopt;
    return out.special_ids[static_cast<size_t>(found - special.begin())];
  };
  const auto begin = id_of("[CLS]"), end = id_of("[SEP]");
  if (begin && end) {
    out.before = begin;
    out.after = end;
  } else if (options.ends_texts) {
    out.after = id_of(options.end_of_text);
  }
  return Tokenizer::from_json(write_tokenizer_json(out), "the trained tokenizer");
}

}  // namespace caravan
