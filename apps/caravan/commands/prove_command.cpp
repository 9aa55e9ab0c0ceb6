#include <cmath>
#include <cstdio>

#include <fmt/format.h>

#include "apps/caravan/commands.h"
#include "apps/caravan/inspect/recipe_ranks.h"
#include "caravan/base/error.h"
#include "caravan/base/runtime.h"
#include "caravan/base/system/memory_limit.h"
#include "caravan/base/text.h"
#include "caravan/prove/prove_recipe.h"
#include "caravan/train/agreement.h"
#include "caravan/train/numerics.h"

namespace caravan::app {
namespace {

/// PATH=FACTOR; names of paths contain no '='.
std::map<std::string, double, std::less<>> planted_factors(const std::vector<std::string>& texts) {
  std::map<std::string, double, std::less<>> planted;
  for (const std::string& text : texts) {
    const size_t equals = text.rfind('=');
    char* end = nullptr;
    const double factor = equals == std::string::npos ? 0 : std::strtod(text.c_str() + equals + 1, &end);
    if (equals == std::string::npos || end == text.c_str() + equals + 1 || *end != '\0' || !std::isfinite(factor)) {
      throw UsageError({"command line", "--plant", fmt::format("'{}' is not PATH=FACTOR", text), "",
                        "name a path that `caravan prove` prints, such as \"fused attention=1.01\""});
    }
    if (factor == 1) {
      throw UsageError(
          {"command line", "--plant", fmt::format("'{}' changes nothing", text), "", "use a factor of 1.01"});
    }
    planted[text.substr(0, equals)] = factor;
  }
  return planted;
}

void print_part(const RecipeProof::Part& part) {
  fmt::print("prove     {}: {}\n", part.why, part.what.to_string());
  for (size_t step = 0; step < part.proof.steps.size(); ++step) {
    fmt::print("step {:<4} {}\n", step + 1, part.proof.steps[step].to_string());
  }
  if (part.proof.holds()) fmt::print("{}\n", part.proof.to_string());
  std::fflush(stdout);
}

/// A planted fault in a path that is not taken would prove nothing.
void check_planted(const std::map<std::string, double, std::less<>>& planted, const RecipeProof& proof) {
  const PathCounts paths = proof.paths();
  for (const auto& [path, factor] : planted) {
    if (paths.contains(fault_in(path))) continue;
    if (paths.contains(path)) {
      throw UsageError({"prove", "--plant", fmt::format("'{}' has no floating-point result to multiply", path), "",
                        "use a path of a kernel, a collective or a link"});
    }
    std::vector<std::string> names;
    for (const auto& [name, count] : paths) names.push_back(name);
    throw UsageError({"prove", "--plant", fmt::format("the proof does not take the path '{}'", path), "",
                      fmt::format("use one that it takes; the nearest is '{}'", nearest(path, names))});
  }
}

void check(const RecipeProof& proof, bool has_planted) {
  const RecipeProof::Part& last = proof.parts.back();
  if (!last.proof.holds()) {
    const Proof::Difference& first = *last.proof.first;
    throw NumericsError({.op = "prove",
                         .subject = first.what,
                         .fact = first.fact() + first.others(),
                         .where = fmt::format("step {}, {}", first.step + 1, first.where),
                         .action = has_planted
                                       ? "nothing: the planted fault is found"
                                       : "do not train with this recipe on these ranks; report it with this output"});
  }
  if (proof.missing.empty()) return;
  throw NumericsError({.op = "prove",
                       .subject = proof.missing.front(),
                       .fact = fmt::format("is taken by a step of the recipe at its own sizes, but by no proof{}",
                                           proof.missing.size() == 1
                                               ? ""
                                               : "; so are " + join(std::vector<std::string>(proof.missing.begin() + 1,
                                                                                             proof.missing.end()))),
                       .where = proof.own_steps.front().to_string(),
                       .action = "do not rely on this proof for it; report the recipe"});
}

/// The techniques of the recipe under which ranks do not step together, unlike one process; "": none.
std::string techniques_apart(const Recipe& recipe) {
  std::vector<std::string> names;
  for (const Setting& technique : techniques_of(recipe)) {
    if (!technique.has(Trait::whole_gradient)) names.push_back(technique.name());
  }
  return join(names);
}

void prove_on(const Recipe& recipe, const std::map<std::string, double, std::less<>>& planted, const std::string& note,
              const std::shared_ptr<Communicator>& world) {
  const bool speaks = world->rank() == 0;
  if (speaks && !note.empty()) fmt::print("note      {}\n", note);
  std::vector<std::string> notes;  // no notes about changes of a resume
  agree_on_numerics(*world, recipe.comm.threads_per_rank, /*resumed=*/std::nullopt, notes);
  RecipeProofOptions options{.planted = planted, .memory_bytes = usable_memory_bytes() / 2};
  if (speaks) options.observe = print_part;
  const RecipeProof proof = prove_recipe(recipe, world, options);
  if (speaks && proof.parts.back().proof.holds()) {
    for (const ProveCase& step : proof.own_steps) fmt::print("own step  {}\n", step.to_string());
    fmt::print("own paths: {}\n", RecipeProof::to_string(proof.own_paths));
    fmt::print("paths: {}\n", RecipeProof::to_string(proof.paths()));
    std::fflush(stdout);
  }
  world->barrier("end of the proof");  // a rank that ends with an error ends the job
  check(proof, !planted.empty());
  check_planted(planted, proof);
  if (!speaks) return;
  if (planted.empty()) {
    const std::string apart = techniques_apart(recipe);
    fmt::print("proved    all {} paths of {}\n", proof.own_paths.size(),
               apart.empty() ? "the recipe's own step"
                             : "a step of all ranks together; how ranks step apart under " + apart + " is not proved");
  } else {
    fmt::print("note      the planted fault is within the tolerance and was not found\n");
  }
}

}  // namespace

int prove(const ProveArguments& arguments) {
  std::string note;
  Recipe recipe = load_recipe_to_prove(arguments.recipe, arguments.overrides, note);
  take_vocabulary(recipe, data_folders(recipe.folder), note);
  const auto planted = planted_factors(arguments.planted);
  const RankPlan plan = plan_proof(recipe);
  const Runtime runtime({.intra_op_threads = threads_per_rank(recipe, plan)});
  std::vector<SharedFact> facts = recipe_facts(recipe);
  facts.push_back({"--plant", join(arguments.planted)});
  facts.push_back({"program", program_build()});
  run_recipe_ranks(recipe, plan, std::move(facts),
                   [&](const std::shared_ptr<Communicator>& world) { prove_on(recipe, planted, note, world); });
  return 0;
}

}  // namespace caravan::app
