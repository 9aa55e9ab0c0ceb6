#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "caravan/data/tokenizer/tokenizer.h"
#include "caravan/engine/engine.h"
#include "caravan/formats/huggingface/load_model.h"
#include "caravan/generate/text_model.h"
#include "caravan/mesh/mesh.h"
#include "caravan/models/model.h"

namespace caravan {

class EvaluationScope;
class StageRunner;
struct MicroBatch;
struct StrategyChoice;

/// How ranks share a model, and where its weights rest.
struct LoadOptions {
  /// Parts of each layer (tp), of the experts (ep), stages of layers (pp). Their product is the number of ranks. 0: tp
  /// takes the ranks that the others leave, pp and ep are 1.
  int tp = 0, pp = 0, ep = 0;
  at::ScalarType dtype = at::kFloat;  ///< of the weights, and of the arithmetic: fp32, bf16 or fp16
  /// Where the weights of a layer rest while it does not run. On host and disk, a layer is loaded while the one before
  /// it runs, and freed after its own pass (techniques/offload/offload.h). A pass reads all weights of the rank from
  /// there.
  Tier parameters = Tier::device;
  std::vector<std::filesystem::path> disk_dirs{};  ///< of Tier::disk: folders on local disks, over which it is striped
  StoredWeights weights = StoredWeights::last;     ///< of a run
  /// Whether to stop: asked between tensors, and before each pass. If it is true on some rank, every rank throws
  /// Interrupted. Empty: never. The end of a process by a signal leaves files in disk_dirs, which the next user of a
  /// folder removes.
  TextModel::ShouldStop should_stop{};
};

/// A model with weights that do not change, in a layout of its own over the ranks of a job: what generate continues
/// texts with, its draft, and the reference model of a run. It has no gradients and no state of an optimizer.
class FrozenModel {
 public:
  /// Loads a Hugging Face folder, a run (its newest checkpoint) or a checkpoint over all ranks of `ranks`: see load().
  static FrozenModel load(const std::filesystem::path& source, const Mesh& ranks, const LoadOptions& options = {});

  /// Loads it beside the model of a run, on the run's mesh: split over its axes tp and pp, by layers of equal cost, and
  /// whole on each coordinate of dp, over which it sends nothing. Computes in `dtype`: fp32, bf16 or fp16. Every rank
  /// calls it. Throws as load(), and UsageError, naming `key`, for a mesh with other axes and for a model that its
  /// degrees do not divide.
  static FrozenModel beside(const std::filesystem::path& source, const Mesh& mesh, at::ScalarType dtype,
                            const std::string& key);
  /// The same without values, on the meta device, for a rehearsal.
  static FrozenModel rehearsed(const ModelConfig& config, const Mesh& mesh, at::ScalarType dtype,
                               const std::string& key);

  FrozenModel(FrozenModel&&) noexcept;
  FrozenModel& operator=(FrozenModel&&) = delete;
  ~FrozenModel();

  /// A forward pass without gradients: the output of the model on the ranks of its last stage, undefined on others.
  /// Every rank of a coordinate of dp calls it with the same batch.
  at::Tensor run(const MicroBatch& batch);
  /// For continuing texts. Throws InternalError for a model beside a run.
  const TextModel& text_model() const;

  const ModelConfig& config() const noexcept { return model_->config(); }
  const Tokenizer& tokenizer() const { return of_folder().tokenizer; }
  const TextSettings& text() const { return of_folder().text; }
  const std::string& origin() const { return of_folder().origin; }  ///< the folder, for messages
  /// Whether its folder has a head: else it is a base model, which has states (embed) and no logits.
  bool has_head() const { return of_folder().has_head; }
  const Mesh& mesh() const noexcept { return mesh_; }  ///< axes pp, dp, ep, tp
  const Model& model() const noexcept { return *model_; }
  const Engine* engine() const noexcept { return engine_.get(); }  ///< null for one rank with the weights in memory
  /// Bytes of the parameters of this rank, wherever they rest.
  int64_t parameter_bytes() const noexcept;

  /// Throws UsageError with `op` and `subject` unless its texts are those of a model with this tokenizer, which
  /// `origin` names: it has a head, the same tokenizer, and logits of all of its tokens.
  void check_companion(const Tokenizer& tokenizer, const std::string& origin, const char* op,
                       const char* subject) const;

 private:
  struct Folder {
    Tokenizer tokenizer;
    TextSettings text;
    std::string origin;
    bool has_head = true;
  };
  FrozenModel(Mesh mesh, const ModelConfig& config, const StrategyChoice& choice, at::ScalarType dtype,
              at::Device device, bool has_engine);
  void fill(const StoredModel& stored, const TextModel::ShouldStop& should_stop);
  const Folder& of_folder() const;

  // In the order in which they are made.
  Mesh mesh_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<EvaluationScope> evaluation_;  ///< beside a run
  std::unique_ptr<StageRunner> runner_;
  std::unique_ptr<TextModel> text_model_;  ///< of a job of its own
  std::optional<Folder> folder_{};         ///< none in a rehearsal
};

}  // namespace caravan
