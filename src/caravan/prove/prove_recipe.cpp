#include "caravan/prove/prove_recipe.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/text.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/comm/choice/selection.h"
#include "caravan/prove/compare.h"
#include "caravan/prove/trace.h"

namespace caravan {
namespace {

/// Sizes of micro-batches to try for paths that the fitting size does not take.
constexpr int64_t kFewTokens = 8;
constexpr int64_t kManyTokens = 256;

constexpr int kMostValues = 4;  ///< sets of values that a proof tries

Recipe with_dropout(const Recipe& recipe, double dropout) {
  Recipe changed = recipe;
  changed.model.dropout = dropout;
  return changed;
}

/// "gloo all_reduce by ring": the back-end, the verb, the algorithm.
struct ChosenAlgorithm {
  std::string backend;
  Verb verb;
  algorithms::Algorithm algorithm;
};

std::optional<ChosenAlgorithm> chosen_algorithm(const std::string& path) {
  for (const Verb verb : algorithms::kVerbs) {
    for (const algorithms::Algorithm algorithm : algorithms::algorithms_for(verb)) {
      const std::string end = algorithms::path_of("", verb, algorithm);
      if (path.ends_with(end)) return ChosenAlgorithm{path.substr(0, path.size() - end.size()), verb, algorithm};
    }
  }
  return std::nullopt;
}

class RecipeProver {
 public:
  RecipeProver(const Recipe& recipe, const std::shared_ptr<Communicator>& world, const RecipeProofOptions& options)
      : recipe_(recipe), variants_(variants_of_batch(recipe)), world_(world), options_(options) {}

  RecipeProof run() {
    // Free memory differs from host to host.
    const int64_t memory = std::stoll(broadcast_text(*world_, std::to_string(options_.memory_bytes), 0, "memory"));
    for (const Recipe& variant : variants_)
      found_.own_steps.push_back(case_of_recipe(own_step_recipe(variant, memory)));
    if (!prove_dropouts() || !prove_variants() || !prove_optimizer()) return std::move(found_);
    for (const ProveCase& step : found_.own_steps) add_paths(found_.own_paths, paths_of_step(step, world_));
    find_algorithms();
    prove_algorithms();
    prove_tokens();
    found_.missing = missing();
    return std::move(found_);
  }

 private:
  std::vector<std::string> missing() const {
    const PathCounts proved = found_.paths();
    std::vector<std::string> names = missing_paths(found_.own_paths, proved);
    for (const std::string& path : found_.algorithms) {
      if (!proved.contains(path) && !found_.own_paths.contains(path)) names.push_back(path);
    }
    return names;
  }

  /// Returns false if the proof does not hold.
  bool add(const std::string& why, const Recipe& recipe) { return add(why, case_of_recipe(recipe)); }
  bool add(const std::string& why, ProveCase what) {
    RecipeProof::Part part{.why = why, .what = std::move(what)};
    part.what.finds_summands = !rounds_to_16_bits(part.what);
    part.what.planted = options_.planted;
    part.proof = prove_values(part.what, world_);
    for (int i = 1; i < kMostValues && may_be_rounding(part.proof, part.what); ++i) {
      const Proof::Difference& first = *part.proof.first;
      part.why = fmt::format("{}, from other values since {} {}", why, first.what, first.fact());
      ++part.what.seed;
      part.proof = prove_values(part.what, world_);
    }
    refuse_doubt(part.proof);
    if (options_.observe) options_.observe(part);
    found_.parts.push_back(std::move(part));
    return found_.parts.back().proof.holds();
  }

  bool prove_dropouts() {
    const double own = recipe_.model.dropout;
    if (rounds_to_16_bits(found_.own_steps.front())) {  // which hide a missing summand
      if (!add("in fp32", proof_recipe(in_fp32(recipe_)))) return false;
    }
    if (!add("as the recipe says", proof_recipe(recipe_))) return false;
    if (own == 0) return true;
    if (own != 0.1 && !add("at dropout 0.1", proof_recipe(with_dropout(recipe_, 0.1)))) return false;
    return add("at dropout 0, as evaluations run", proof_recipe(with_dropout(recipe_, 0)));
  }

  bool prove_variants() {
    for (size_t i = 1; i < variants_.size(); ++i) {
      const std::string why = fmt::format("with train.micro_batch = {}", variants_[i].train.micro_batch);
      if (!add(why, proof_recipe(variants_[i]))) return false;
    }
    return true;
  }

  /// An optimizer that is element-wise is the same for all layouts.
  bool prove_optimizer() {
    const Setting& optimizer = recipe_.optimizer.kind;
    if (optimizer.traits().needs.empty()) return true;
    return add(fmt::format("with optimizer {}, in fp64", optimizer.name()), case_of_optimizer(proof_recipe(recipe_)));
  }

  /// A run has more ranks and other sizes than its proof, and a table chooses by these.
  void find_algorithms() {
    const algorithms::SelectionTable* table = world_->selection();
    if (table == nullptr) return;
    std::set<int64_t> bytes{1};
    for (const algorithms::Rule& rule : table->rules()) {
      bytes.insert(rule.max_bytes);
      if (rule.max_bytes < algorithms::Rule::kAnyBytes) bytes.insert(rule.max_bytes + 1);
    }
    std::set<std::string> names;
    for (const auto& [path, count] : found_.own_paths) {
      const auto chosen = chosen_algorithm(path);
      if (!chosen) continue;
      for (const int ranks : group_sizes(recipe_)) {
        for (const int64_t size : bytes) {
          const auto choice = table->choose(chosen->backend, chosen->verb, ranks, size);
          names.insert(algorithms::path_of(chosen->backend, chosen->verb, choice.algorithm));
        }
      }
    }
    found_.algorithms = {names.begin(), names.end()};
  }

  /// One part proves one more algorithm of each verb.
  void prove_algorithms() {
    std::vector<std::string> tried;
    for (;;) {
      std::vector<algorithms::Rule> rules;
      std::vector<std::string> names;
      for (const std::string& path : missing()) {
        const auto chosen = chosen_algorithm(path);
        const auto is_same_verb = [&](const algorithms::Rule& rule) { return rule.verb == chosen->verb; };
        if (!chosen || std::ranges::find(tried, path) != tried.end() || std::ranges::any_of(rules, is_same_verb))
          continue;
        constexpr int64_t kSegmentBytes = 256;  // several in the tensors of a proof
        const bool is_chain = chosen->algorithm == algorithms::Algorithm::chain;
        rules.push_back({.backend = chosen->backend,
                         .verb = chosen->verb,
                         .choice = {.algorithm = chosen->algorithm, .segment_bytes = is_chain ? kSegmentBytes : 0}});
        names.push_back(fmt::format("{} by {}", name(chosen->verb), algorithms::name(chosen->algorithm)));
        tried.push_back(path);
      }
      if (rules.empty()) return;
      world_->select(std::make_shared<const algorithms::SelectionTable>(algorithms::SelectionTable().with(rules)));
      const bool holds = add(join(names), proof_recipe(recipe_));
      world_->select(nullptr);
      if (!holds) return;
    }
  }

  void prove_tokens() {
    for (const int64_t tokens : {kManyTokens, kFewTokens}) {
      if (!found_.parts.back().proof.holds() || missing().empty()) return;
      add(fmt::format("with {} tokens in a micro-batch", tokens), proof_recipe(recipe_, tokens));
    }
  }

  const Recipe& recipe_;
  std::vector<Recipe> variants_;  ///< at least one; the first is as the recipe says
  std::shared_ptr<Communicator> world_;
  const RecipeProofOptions& options_;
  RecipeProof found_;
};

}  // namespace

std::vector<std::string> missing_paths(const PathCounts& own, const PathCounts& proved) {
  std::vector<std::string> names;
  for (const auto& [path, count] : own) {
    if (!proved.contains(path)) names.push_back(path);
  }
  return names;
}

PathCounts RecipeProof::paths() const {
  PathCounts all;
  for (const Part& part : parts) add_paths(all, part.proof.paths);
  return all;
}

bool RecipeProof::holds() const { return missing.empty() && !parts.empty() && parts.back().proof.holds(); }

std::string RecipeProof::to_string(const PathCounts& paths) {
  std::vector<std::string> texts;
  for (const auto& [path, count] : paths) texts.push_back(fmt::format("{} {}", path, count));
  return join(texts);
}

RecipeProof prove_recipe(const Recipe& recipe, const std::shared_ptr<Communicator>& world,
                         const RecipeProofOptions& options) {
  return RecipeProver(recipe, world, options).run();
}

}  // namespace caravan
