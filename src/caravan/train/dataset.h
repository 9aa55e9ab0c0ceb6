#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "caravan/data/documents.h"
#include "caravan/data/token_file.h"
#include "caravan/data/tokenizer.h"
#include "caravan/train/recipe.h"

namespace caravan {

/// What a run reads: its tokenizer, and its two texts as ids.
struct Dataset {
  Tokenizer tokenizer;
  TokenFile train;
  TokenFile validation;
  struct Packed {
    Documents train;
    Documents validation;
  };
  std::optional<Packed> packed{};  ///< with data.pack = "documents"

  const Documents* documents_of_train() const noexcept { return packed ? &packed->train : nullptr; }
  const Documents* documents_of_validation() const noexcept { return packed ? &packed->validation : nullptr; }
};

/// Where files are looked up and kept. A relative path is looked up from the working folder, then from the folder of
/// the recipe, then from `home`.
struct DataFolders {
  std::filesystem::path home;                  ///< may be empty
  std::filesystem::path recipe{};              ///< the folder of the recipe; may be empty
  std::filesystem::path cache;                 ///< of token files and trained tokenizers, by content hash
  std::optional<int64_t> cache_limit_bytes{};  ///< of all files in the cache; files in use stay. None: no limit
};

/// Opens what `data` names. Token files and trained tokenizers come from the cache and are built where they are
/// missing; then the cache is trimmed to its limit. A tokenizer is trained on the training text alone. Any number of
/// processes may call it at once. Throws UsageError for data.pack = "documents" and a tokenizer without an end-of-text
/// token, DataError for text or tokenizer files that are missing, empty or of another
/// format, ResourceError if the cache cannot be written to, and what `observer` throws.
Dataset open_dataset(const Recipe::Data& data, const DataFolders& folders,
                     DataObserver& observer = DataObserver::none());

/// Replaces each path of `data` by the absolute path of the file, so that the recipe means the same files from another
/// folder. The path of a missing file stays as it is. Throws UsageError for an absolute path that is not UTF-8, which
/// no recipe can hold.
void resolve_files(Recipe::Data& data, const DataFolders& folders);

/// The absolute path of the file that `path` of a recipe means. Throws DataError naming the folders where it was looked
/// up if it is in none.
std::filesystem::path find_file(const std::string& path, const DataFolders& folders);

}  // namespace caravan
