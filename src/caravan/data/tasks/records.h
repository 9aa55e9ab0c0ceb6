#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/data/tokenizer/tokenizer.h"
#include "caravan/data/windows/token_file.h"

namespace caravan {

/// Token ids of records, without special tokens, and three numbers for each record, in files of the cache: the tokens
/// of its first text, those of its second, and its class; of preferences, those of its third text. The prompt of a
/// preference has the ids with which both texts of prompt and answer begin, and its answers the others.
struct RecordTokens {
  TokenFile tokens;
  TokenFile index;
};

/// The names of the classes of training records (documents of Record::to_json), without repetitions: sorted as numbers
/// if all are whole numbers, else as bytes.
std::vector<std::string> class_names_of(std::span<const std::string_view> records);

/// Where a record stands, "file:line", for errors.
using PlaceOfRecord = std::function<std::string(std::string_view record, int64_t line)>;

/// As open_or_build, for documents of Record::to_json. `classes`: the names of the classes, by number; empty for
/// records without labels. Also throws DataError with the place of a record whose label is none of them, and of a
/// preference one of whose answers adds no token to the prompt.
RecordTokens open_or_build_records(const std::filesystem::path& cache_dir, std::span<const std::string_view> records,
                                   const Tokenizer& tokenizer, const std::vector<std::string>& classes,
                                   const PlaceOfRecord& place_of, DataObserver& observer = DataObserver::none());

/// What the third number of a record is.
enum class ThirdNumber : uint8_t { label, tokens };

/// Reads records. Keeps 8 bytes for each; the files outlive it. Any number of threads may read.
class RecordList {
 public:
  RecordList(const TokenFile& tokens, const TokenFile& index, ThirdNumber third = ThirdNumber::label);

  struct Size {
    int64_t first = 0;  ///< tokens
    int64_t second = 0;
    int64_t label = 0;
    int64_t third = 0;
  };
  struct Texts {
    std::vector<int32_t> first, second;
    int64_t label = 0;
    std::vector<int32_t> third{};
  };
  int64_t size() const noexcept { return static_cast<int64_t>(begins_.size()); }
  Size size_of(int64_t record) const;
  Texts read(int64_t record) const;

 private:
  const TokenFile* tokens_;
  const TokenFile* index_;
  ThirdNumber third_;
  std::vector<int64_t> begins_;  ///< first token of each record
};

}  // namespace caravan
