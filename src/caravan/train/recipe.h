#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "caravan/mesh/mesh.h"
#include "caravan/nn/config.h"
#include "caravan/optim/learning_rate.h"

namespace caravan {

/// Everything a training run is made of: what a recipe file says, with the defaults for what it leaves out. The
/// defaults are the default recipe: recipes/default.toml says the same in words.
struct Recipe {
  ModelConfig model;

  struct Data {
    std::vector<std::string> text{"data/moby_dick.txt"};
    std::string tokenizer;              ///< "bytes" or the path of a tokenizer.json; "" when one is trained
    int64_t trained_vocabulary = 2048;  ///< of the tokenizer that is trained on the text
  } data;

  struct Train {
    int64_t steps = 800;
    int64_t global_batch = 12;  ///< sequences a step, over all ranks
    int64_t micro_batch = 0;    ///< sequences a rank computes at once; 0: all of its share
    int64_t seed = 1;
    int64_t eval_every = 200;  ///< steps; 0: at the end only
    int64_t log_every = 1;     ///< steps between two lines of train.log
  } train;

  struct Optimizer {
    std::string kind = "adamw";
    LearningRate rate{.kind = LearningRate::Kind::linear,
                      .lr = 3e-3,
                      .warmup_steps = 50,
                      .final_fraction = 0.02};  ///< total_steps is train.steps
    double weight_decay = 0.1;
    double clip_norm = 1.0;  ///< 0: no clipping
    double beta1 = 0.9;
    double beta2 = 0.98;
    double epsilon = 1e-8;
    double momentum = 0;
  } optimizer;

  struct Precision {
    std::string compute = "fp32";
  } precision;

  struct Comm {
    std::string backend = "auto";
    double timeout_s = 300;
    int64_t threads_per_rank = 0;  ///< 0: the cores of the host over the ranks on it
    bool check = true;
    std::string algorithms;  ///< the file of a SelectionTable, which `bench comm --tune` writes; "": the built-in one
  } comm;

  struct MeshSizes {
    int64_t dp = 0;  ///< 0: the ranks over the product of the others
  } mesh;

  struct DataParallel {
    std::string technique = "ddp";
    int64_t bucket_bytes = int64_t{25} << 20;
  } data_parallel;

  struct Checkpoint {
    std::string dir;      ///< "": runs/<recipe name>-N, a new N each time
    int64_t every = 200;  ///< steps; 0: at the end only
    int64_t keep = 2;     ///< newest checkpoints that stay; 0: all
  } checkpoint;

  struct Sample {
    std::string prompt = "Call me Ishmael.";
    int64_t tokens = 120;  ///< generated after training; 0: none
    double temperature = 0.7;
    int64_t top_k = 20;
    double top_p = 1.0;
  } sample;

  std::string name = "default";  ///< of the run folder; the file's stem
  std::filesystem::path folder;  ///< of the file: relative paths of data are looked up there, too

  /// Where each key that was given stands: "recipe.toml:12", "--set train.steps=3". Keys that are not here have their
  /// default.
  std::map<std::string, std::string> locations;
  std::string where(const std::string& key) const;
};

/// One value of a recipe file.
struct TrainTokenizer {
  int64_t vocabulary;
  bool operator==(const TrainTokenizer&) const = default;
};
using RecipeValue = std::variant<bool, int64_t, double, std::string, std::vector<std::string>, TrainTokenizer>;

/// One key a recipe may hold: the table that reading, checking and printing recipes all go by.
struct RecipeKey {
  std::string name;  ///< "train.steps"
  std::string help;
  std::function<RecipeValue(const Recipe&)> get;
  /// Returns what is wrong with the value ("" if nothing), and sets it if nothing is.
  std::function<std::string(Recipe&, const RecipeValue&)> set;
  bool is_printed = true;  ///< false: the one value it may have today says nothing
  /// Why the key means nothing in this recipe ("" if it does): giving it then is an error, not ignored.
  std::function<std::string(const Recipe&)> idle = [](const Recipe&) { return std::string(); };
};
const std::vector<RecipeKey>& recipe_keys();

/// Reads a recipe file ("" : the defaults) and applies `overrides`, each "section.key=value", value in TOML, or a plain
/// string if it does not parse as TOML. Throws UsageError naming file, line and the nearest valid choice for an unknown
/// key, a wrong type or an impossible value.
///
/// A recipe.toml that stands beside checkpoints means its own folder, wherever that was moved: checkpoint.dir and the
/// tokenizer.json that the run wrote follow it, unless an override says otherwise.
Recipe load_recipe(const std::filesystem::path& file, const std::vector<std::string>& overrides);

/// The same from text, e.g. of a checkpoint's manifest; `source` names it in errors.
Recipe parse_recipe(const std::string& toml, const std::string& source, const std::vector<std::string>& overrides = {});

/// The whole recipe as TOML, every key that means something in it, in the order of recipe_keys().
std::string to_toml(const Recipe& recipe);

/// How the global batch is cut: global_batch = dp x micro_batch x accumulation.
struct BatchPlan {
  int64_t dp = 1;
  int64_t micro_batch = 1;
  int64_t accumulation = 1;
  int64_t rows() const noexcept { return micro_batch * accumulation; }  ///< sequences of one rank in a step
  std::string to_string() const;  ///< "global_batch 16 = dp 2 x micro_batch 4 x accumulation 2"
};

/// The mesh of the recipe over `num_ranks` ranks, and the cut of its batch. Throw UsageError printing the equation and
/// the nearest values that work.
std::vector<AxisSize> mesh_axes(const Recipe& recipe, int num_ranks);
BatchPlan plan_batch(const Recipe& recipe, int num_ranks);

/// The number of ranks the recipe asks for: the product of its mesh; 0 if it does not say.
int recipe_ranks(const Recipe& recipe);

}  // namespace caravan
