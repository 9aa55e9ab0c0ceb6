#include "caravan/data/tasks/records.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/data/files/corpus.h"
#include "caravan/data/files/record.h"

namespace caravan {
namespace {

constexpr uint64_t kRecording = 1;  ///< increment when the same records give other ids or indices
constexpr int64_t kNumbers = 3;     ///< of each record in the index
constexpr int64_t kLargestNumber = int64_t{1} << 31;

std::optional<int64_t> whole_number_of(const std::string& label) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(label.data(), label.data() + label.size(), value);
  const bool is_whole = error == std::errc() && end == label.data() + label.size();
  return is_whole && std::to_string(value) == label ? std::optional(value) : std::nullopt;
}

ContentHash hash_of(std::string_view what, std::span<const std::string_view> records, const Tokenizer& tokenizer,
                    const std::vector<std::string>& classes, DataObserver& observer) {
  ContentHasher hasher;
  hasher.update(kRecording);
  hasher.update(what);
  hasher.update(tokenizer.hash().high);
  hasher.update(tokenizer.hash().low);
  const auto add = [&](std::string_view text) {
    hasher.update(static_cast<uint64_t>(text.size()));
    in_pieces(text, observer, [&](std::string_view piece) { hasher.update(piece); });
  };
  hasher.update(static_cast<uint64_t>(classes.size()));
  for (const std::string& name : classes) add(name);
  for (const std::string_view record : records) add(record);
  return hasher.value();
}

int32_t class_of(const Record& record, const std::vector<std::string>& classes,
                 const std::function<std::string()>& place) {
  if (classes.empty()) return 0;
  const auto found = std::ranges::find(classes, record.label);
  if (found != classes.end()) return static_cast<int32_t>(found - classes.begin());
  throw DataError({"data", place(), fmt::format("its label {} is none of the {} classes", record.label, classes.size()),
                   "",
                   fmt::format("the nearest is {}; data.classes can name more classes than training has",
                               nearest(record.label, classes))});
}

int64_t num_common(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return std::ranges::mismatch(a, b).in1 - a.begin();
}

/// Prompt and answers of a preference. A tokenizer may join the end of a prompt with an answer: the prompt ends where
/// the ids of the texts do, as in TRL.
RecordList::Texts encoded_preference(const Record& record, const Tokenizer& tokenizer,
                                     const std::function<std::string()>& place) {
  const std::vector<int32_t> prompt = tokenizer.encode(record.first);
  const std::vector<int32_t> chosen = tokenizer.encode(record.first + record.second);
  const std::vector<int32_t> rejected = tokenizer.encode(record.first + record.third);
  const int64_t count = std::min(num_common(prompt, chosen), num_common(prompt, rejected));
  for (const auto* answer : {&chosen, &rejected}) {
    if (std::ssize(*answer) > count) continue;
    throw DataError({"data", place(), "one of its answers adds no token to the prompt", "", "leave the line out"});
  }
  return {{prompt.begin(), prompt.begin() + count},
          {chosen.begin() + count, chosen.end()},
          0,
          {rejected.begin() + count, rejected.end()}};
}

}  // namespace

std::vector<std::string> class_names_of(std::span<const std::string_view> records) {
  std::set<std::string> labels;
  for (const std::string_view record : records) labels.insert(Record::from_json(record).label);
  std::vector<std::string> names(labels.begin(), labels.end());
  const auto is_number = [](const std::string& label) { return whole_number_of(label).has_value(); };
  if (std::ranges::all_of(names, is_number)) std::ranges::sort(names, {}, whole_number_of);
  return names;
}

RecordTokens open_or_build_records(const std::filesystem::path& cache_dir, std::span<const std::string_view> records,
                                   const Tokenizer& tokenizer, const std::vector<std::string>& classes,
                                   const PlaceOfRecord& place_of, DataObserver& observer) {
  SecondPass hashing(observer);
  const ContentHash of_tokens = hash_of("record tokens", records, tokenizer, classes, hashing);
  const ContentHash of_index = hash_of("record index", records, tokenizer, classes, hashing);
  const auto build = [&](TokenFileWriter& ids, TokenFileWriter& numbers) {
    observer.begin("tokenizing", num_bytes(records));
    int64_t bytes = 0;
    for (const std::string_view json : records) {
      const Record record = Record::from_json(json);
      const auto place = [&] { return place_of(json, record.line); };
      const bool is_preference = !record.third.empty();
      const RecordList::Texts texts =
          is_preference ? encoded_preference(record, tokenizer, place)
                        : RecordList::Texts{tokenizer.encode(record.first), tokenizer.encode(record.second),
                                            class_of(record, classes, place)};
      for (const auto* part : {&texts.first, &texts.second, &texts.third}) ids.append(*part);
      numbers.append(std::array{static_cast<int32_t>(texts.first.size()), static_cast<int32_t>(texts.second.size()),
                                static_cast<int32_t>(is_preference ? std::ssize(texts.third) : texts.label)});
      bytes += static_cast<int64_t>(record.first.size() + record.second.size() + record.third.size());
      observer.advance(static_cast<int64_t>(json.size()));
    }
    return bytes;
  };
  auto [tokens, index] = open_or_build_both(
      cache_dir, {of_tokens, tokenizer.vocab_size()}, {of_index, kLargestNumber}, build,
      [](const TokenFile&, const TokenFile&) { return true; }, observer);
  return {std::move(tokens), std::move(index)};
}

RecordList::RecordList(const TokenFile& tokens, const TokenFile& index, ThirdNumber third)
    : tokens_(&tokens), index_(&index), third_(third) {
  std::array<int64_t, kNumbers> numbers{};
  int64_t begin = 0;
  for (int64_t record = 0; record < index.size() / kNumbers; ++record) {
    index.read(record * kNumbers, numbers);
    begins_.push_back(begin);
    begin += numbers[0] + numbers[1] + (third == ThirdNumber::tokens ? numbers[2] : 0);
  }
}

RecordList::Size RecordList::size_of(int64_t record) const {
  std::array<int64_t, kNumbers> numbers{};
  index_->read(record * kNumbers, numbers);
  if (third_ == ThirdNumber::tokens) return {numbers[0], numbers[1], 0, numbers[2]};
  return {numbers[0], numbers[1], numbers[2]};
}

RecordList::Texts RecordList::read(int64_t record) const {
  const Size size = size_of(record);
  std::vector<int64_t> ids(static_cast<size_t>(size.first + size.second + size.third));
  tokens_->read(begins_[static_cast<size_t>(record)], ids);
  const auto middle = ids.begin() + size.first;
  const auto last = middle + size.second;
  return {{ids.begin(), middle}, {middle, last}, size.label, {last, ids.end()}};
}

}  // namespace caravan
