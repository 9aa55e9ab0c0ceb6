#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "caravan/data/tokenizer/tokenizer.h"
#include "caravan/formats/huggingface/text_settings.h"
#include "caravan/mesh/mesh.h"
#include "caravan/models/model.h"

namespace caravan {

/// A model on disk: a checkpoint, or a Hugging Face folder.
struct StoredModel {
  ModelConfig config;
  Tokenizer tokenizer;
  TextSettings text;
  std::string origin;    ///< e.g. "runs/default-1/step_000500", for messages
  bool has_head = true;  ///< false: a base model alone, whose head is read as zeros
  std::string identity;  ///< equal on two ranks that opened the same model: hashes, see HuggingfaceWeights::fingerprint
  /// Compares what is stored with its hashes, where it has some, and with the model. Every rank of the world calls it
  /// before it uses what `read` gives. Throws DataError, on every rank for altered bytes.
  std::function<void(Communicator& world)> verify;
  /// Fills `out` with a piece of a parameter; reads no more than that from the files. Throws DataError for values that
  /// are not finite.
  std::function<void(const std::string& name, const std::vector<PieceBox>& boxes, const at::Tensor& out)> read;
};

/// Which weights of a run: those of its last step, or their average (optimizer.average).
enum class StoredWeights : uint8_t { last, average };
constexpr StoredWeights weights_of(bool is_average) {
  return is_average ? StoredWeights::average : StoredWeights::last;
}

/// Opens a run folder (its newest checkpoint), a checkpoint or a Hugging Face folder, and reads no weights. Throws
/// DataError for what is missing or damaged, UsageError for an average that is not there.
StoredModel open_model(const std::filesystem::path& source, StoredWeights weights = StoredWeights::last);

/// The same on every rank of `world`, which calls it with the same arguments. Throws on all ranks what one of them
/// throws, and UsageError for ranks that found different models.
StoredModel open_same_model(const std::filesystem::path& source, Communicator& world, StoredWeights weights);

/// Calls `use` with `source`, or with its newest checkpoint if it is a run: of the name that rank 0 found. A job that
/// goes on may remove it meanwhile, but then it has a newer one, with which `use` is called again. Every rank of
/// `world` calls it. `use` throws DataError on all ranks or on none.
void with_model_folder(const std::filesystem::path& source, Communicator& world,
                       const std::function<void(const std::filesystem::path& folder)>& use);

struct LoadedModel {
  std::unique_ptr<Model> model;
  Tokenizer tokenizer;
  TextSettings text;
  std::string origin;    ///< as in StoredModel
  std::string identity;  ///< the same
};

/// Loads a model for inference or export from a run folder (its newest checkpoint), a checkpoint or a Hugging Face
/// folder. Every rank of `mesh` gets the whole model. Throws as open_model, and DataError for weights that are not
/// finite.
LoadedModel load_model(const std::filesystem::path& source, const Mesh& mesh,
                       StoredWeights weights = StoredWeights::last);

}  // namespace caravan
