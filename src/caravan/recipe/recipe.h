#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "caravan/mesh/mesh.h"
#include "caravan/nn/config.h"
#include "caravan/optim/learning_rate.h"
#include "caravan/recipe/task_choice.h"
#include "caravan/registry/setting.h"
#include "caravan/registry/split.h"
#include "caravan/schedule/pipeline_choice.h"
#include "caravan/schedule/row_deal.h"
#include "caravan/techniques/precision_choice.h"

namespace caravan {

/// train.micro_batch = "auto": as many sequences as the memory of the rank allows. See resolve_micro_batch.
inline constexpr int64_t kAutoMicroBatch = -1;

/// All settings of a training run: those of a recipe file, with defaults for the others. The defaults are the default
/// recipe, which recipes/default.toml documents.
struct Recipe {
  ModelConfig model;

  struct Data {
    std::vector<std::string> text{"data/moby_dick.txt"};  ///< files, folders, patterns: see text_files
    std::vector<DataSource> sources{};                    ///< a mixture of texts, in place of `text`
    std::vector<std::string> validation{};                ///< a separate text; empty: a part of each file
    double validation_fraction = 0.1;                     ///< of each file
    bool streaming = false;                               ///< tokenize the text during training
    std::string field{};                                  ///< of JSON lines; "": "text", for chats "messages"
    bool skip_bad_lines = false;                          ///< skip bad JSON lines instead of failing
    std::string tokenizer;                                ///< "bytes" or the path of a tokenizer.json; "": train one
    int64_t trained_vocabulary = 2048;                    ///< of the tokenizer trained on the text
    std::string source_tokenizer{};  ///< of train.init_from, a folder's may be missing; "": it has none
    std::string format = "text";     ///< or "chat": the field has messages
    std::string chat_template{};     ///< a file; "": the one beside the tokenizer
    bool has_chats() const { return format == "chat"; }
    TaskChoice task{};
    std::string pack = "none";          ///< or "documents": documents in one sequence do not see each other
    std::string positions = "restart";  ///< of packed documents; or "continue"
    bool packs_documents() const { return pack == "documents"; }
    std::string fill{};  ///< "stream": sequences are windows; "best_fit": whole documents; "": the latter for chats
    bool fills_best() const { return fill.empty() ? has_chats() && !task.has_records() : fill == "best_fit"; }
  } data;

  struct Train {
    std::string init_from;  ///< weights to start with: a run, a checkpoint, a Hugging Face folder; "": random ones
    std::string adapter;    ///< adapters to start with, a folder in PEFT's format; "": new ones
    int64_t steps = 800;
    int64_t global_batch = 12;              ///< sequences per step, over all ranks
    int64_t micro_batch = kAutoMicroBatch;  ///< sequences that a rank computes at once; 0: all of its share
    /// Rows of the data-parallel ranks: "even" ones, "measured" by their speed, or a deals.jsonl, which is repeated.
    std::string balance = "even";
    bool is_even() const { return balance == "even"; }
    bool is_measured() const { return balance == "measured"; }
    int64_t seed = 1;
    int64_t eval_every = 200;    ///< steps; 0: only at the end
    int64_t eval_batches = 100;  ///< of global_batch sequences, spread over the validation text; 0: all of it
    int64_t log_every = 1;       ///< steps between two lines of train.log
  } train;

  struct Optimizer {
    Setting kind{"optimizer"};
    LearningRate rate{.lr = 3e-3, .warmup_steps = 50};  ///< total_steps is train.steps
    double clip_norm = 1.0;                             ///< 0: no clipping
    double skip_spikes = 0;                             ///< standard deviations; 0: none is skipped
    std::vector<ParameterGroup> groups{};               ///< a parameter is of the first that names it
  } optimizer;
  PrecisionChoice precision;

  struct Comm {
    std::string backend = "auto";
    double timeout_s = 300;
    int64_t threads_per_rank = 0;  ///< 0: cores / ranks on the host
    bool check = true;
    bool overlap = true;     ///< with mesh.tp or mesh.cp
    std::string algorithms;  ///< file of a SelectionTable written by `bench comm --tune`; "": the built-in table
  } comm;

  struct MeshSizes {
    int64_t dp = 0;  ///< 0: ranks / the product of the other axes
  } mesh;

  Setting data_parallel{"data_parallel"};  ///< over mesh.dp
  Setting hook{"hook"};
  Split tensor_parallel{Setting("tensor_parallel")};    ///< with mesh.tp
  Split context_parallel{Setting("context_parallel")};  ///< with mesh.cp
  Split expert_parallel{Setting("expert_parallel")};    ///< with mesh.ep
  PipelineChoice pipeline;                              ///< with mesh.pp

  Setting tiling{"tiling"};
  struct Memory {
    Setting recompute{"recompute"};
    bool keeps_frozen = false;  ///< frozen parameters that are gathered stay so (lora.keep_frozen)
  } memory;
  Setting offload{"offload"};
  Setting chunks{"chunks"};

  struct Log {
    bool csv = false;          ///< metrics.csv beside train.log
    bool tensorboard = false;  ///< event files
    int64_t tensors = 0;       ///< steps between two lines with the norms of each layer; 0: none
  } log;

  struct Checkpoint {
    std::string dir;         ///< "": runs/<recipe name>-N, a new N each time
    int64_t every = 200;     ///< steps; 0: only at the end
    int64_t keep = 2;        ///< newest checkpoints to keep; 0: all
    bool async = false;      ///< write a copy in the background during training
    bool keep_best = false;  ///< also keep the checkpoint of the lowest validation loss
  } checkpoint;

  struct Sample {
    std::string prompt = "Call me Ishmael.";
    int64_t tokens = 120;  ///< generated after training; 0: none
    int64_t every = 0;     ///< steps between samples during training; 0: only after it
    double temperature = 0.7;
    int64_t top_k = 20;
    double top_p = 1.0;
  } sample;

  std::string name = "default";  ///< of the run folder; the file's stem
  std::filesystem::path folder;  ///< of the file; relative paths of data are also looked up there

  /// Where each key was given: "recipe.toml:12", "--set train.steps=3". Other keys have their default.
  std::map<std::string, std::string> locations;
  std::string where(const std::string& key) const;
  /// The same, or else where other keys of its section were given: one of two conflicting keys may be a default.
  std::string where_given(const std::string& key) const;
  /// Throws UsageError about the value of `key`.
  [[noreturn]] void refuse(const std::string& key, const std::string& fact, const std::string& action) const;
};

/// Reads a recipe file ("": the defaults) and applies `overrides` of the form "section.key=value". The value is TOML,
/// or a plain string if it does not parse as TOML. Throws UsageError naming file, line and the nearest valid choice for
/// an unknown key, a wrong type or an impossible value.
/// A recipe.toml next to checkpoints refers to its own folder, also after the folder was moved: checkpoint.dir and the
/// run's tokenizer.json follow, unless overridden.
Recipe load_recipe(const std::filesystem::path& file, const std::vector<std::string>& overrides);

enum class RecipeWriter : uint8_t { user, run };  ///< a run gives every key in use: those it lacks did not exist yet
/// The same from text, such as that in a checkpoint's manifest. `source` names it in errors.
Recipe parse_recipe(const std::string& toml, const std::string& source, const std::vector<std::string>& overrides = {},
                    RecipeWriter writer = RecipeWriter::user);

/// The recipe as TOML: every key in use, in the order of recipe_keys().
std::string to_toml(const Recipe& recipe);

/// Notes for the user about a valid recipe, a line each.
std::vector<std::string> recipe_notes(const Recipe& recipe);

/// How the global batch is split: global_batch = dp x micro_batch x accumulation. Until "auto" is resolved
/// (resolve_micro_batch), a micro-batch is all of a rank's share; a pipeline has at least two micro-batches per stage
/// rank if the batch is large enough.
struct BatchPlan {
  int64_t dp = 1;
  int64_t micro_batch = 1;
  int64_t accumulation = 1;
  int64_t rows() const noexcept { return micro_batch * accumulation; }  ///< sequences of one rank in a step
  std::string to_string() const;  ///< "global_batch 16 = dp 2 x micro_batch 4 x accumulation 2"
};

/// The settings of the techniques that the recipe uses, of families of the registry.
std::vector<Setting> techniques_of(const Recipe& recipe);

/// The next step after `step` that is followed by an evaluation, a checkpoint or a sample; at most `end`.
int64_t next_due(const Recipe& recipe, int64_t step, int64_t end);

/// The mesh of the recipe over `num_ranks` ranks (pp, dp, ep, cp, tp, without axes of one rank other than dp), and the
/// split of its batch. The last axis has neighbouring ranks of one host, so the axis that sends most goes there: layers
/// split by tp send several times a layer, stages once a micro-batch. Both throw UsageError with the equation and the
/// nearest values that work.
std::vector<AxisSize> mesh_axes(const Recipe& recipe, int num_ranks);
BatchPlan plan_batch(const Recipe& recipe, int num_ranks);

/// The sequences of a micro-batch of a data-parallel rank are a multiple of this, since layers and experts split them.
int64_t row_parts(const Recipe& recipe);

/// The rows of a step, for deal_rows, which gives ranks of unlike speeds unlike numbers of them.
RowsToDeal rows_to_deal(const Recipe& recipe, const BatchPlan& plan);

/// "pp 2 (1f1b) x dp 2 x ep 2 x cp 2 (ring) x tp 4 (1d)"; "" if no axis splits the model.
std::string split_text(const Recipe& recipe, int64_t dp);

/// How mesh_axes orders the ranks and why, from neighbours outward, for each axis of more than one rank: "tp (sends
/// several times a layer), dp (gradients, during backward)"; "" for fewer than two such axes.
std::string order_text(const Recipe& recipe, int64_t dp);

/// The number of ranks that the recipe sets: the product of its mesh, in which a mesh.dp of 0 counts as 1; 0 if it sets
/// no axis.
int recipe_ranks(const Recipe& recipe);
/// The ranks of one data-parallel coordinate: the product of the other axes.
int64_t ranks_per_replica(const Recipe& recipe);

}  // namespace caravan
