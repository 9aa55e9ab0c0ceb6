#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "apps/caravan/check_run.h"
#include "apps/caravan/commands.h"
#include "apps/caravan/inspect_run.h"
#include "apps/caravan/ranks.h"
#include "apps/caravan/vocabulary.h"
#include "caravan/base/cores.h"
#include "caravan/base/error.h"
#include "caravan/base/memory_limit.h"
#include "caravan/base/text.h"
#include "caravan/data/corpus.h"
#include "caravan/parallel/pipeline_schedule.h"
#include "caravan/train/micro_batch.h"

namespace caravan::app {
namespace {

/// `train` opens the texts, so a text that it refuses is refused here.
void check_text(const Recipe& recipe) {
  const DataFolders folders = data_folders(recipe.folder);
  std::vector<std::string> paths = text_paths(recipe.data);
  paths.insert(paths.end(), recipe.data.validation.begin(), recipe.data.validation.end());
  std::vector<std::filesystem::path> files;
  for (const std::string& path : paths) {
    for (std::filesystem::path& file : find_texts(path, folders)) files.push_back(std::move(file));
  }
  const Corpus corpus(files, folders.cache, text_format(recipe.data, folders));
}

void refuse_recipe_options(const InspectArguments& arguments) {
  if (!arguments.ranks && arguments.overrides.empty() && !arguments.schedule) return;
  const char* option = arguments.ranks ? "--ranks" : arguments.schedule ? "--schedule" : "--set";
  throw UsageError({"inspect", option, "applies to a recipe, not to a folder", "",
                    fmt::format("inspect {}", (std::filesystem::path(arguments.recipe) / "recipe.toml").string())});
}

void print(const std::string& name, const std::string& value) { fmt::print("  {:<26}{}\n", name, value); }

std::string bytes_line(double bytes) {
  return fmt::format("{:>14.0f} bytes  ({})", bytes, format_bytes(static_cast<int64_t>(bytes)));
}

void print_state(const StateShape& of) {
  const StateBytes state = state_bytes(of);
  print(of.is_shared() ? "parameters (shared memory)" : "parameters", bytes_line(state.parameters));
  print("gradients", bytes_line(state.gradients));
  print("optimizer", bytes_line(state.optimizer));
  if (state.hook > 0) print("hook " + of.choice.hook, bytes_line(state.hook));
  if (state.buffers > 0) print("units in flight", bytes_line(state.buffers));
}

/// Ranks that hold no shard need less than the estimate, which is a server's.
void print_workers(StateShape of) {
  if (!of.choice.has_holders() || of.shards() == of.members()) return;
  fmt::print("of these, {} of {} ranks hold no shard and have\n", of.members() - of.shards(), of.members());
  of.is_server = false;
  print_state(of);
}

void print_memory(const MemoryPlan& plan) {
  const MemoryShape& shape = plan.shape;
  fmt::print("memory per rank, estimated for {} sequences at a time\n", shape.sequences);
  StateShape of = state_of(shape);
  print_state(of);
  print("activations", bytes_line(kept_activation_bytes(shape)));
  const bool recomputes = shape.num_recomputed + shape.num_recomputed_cores > 0;
  if (recomputes) print("recomputed at once", bytes_line(recomputed_bytes(shape)));
  print("logits, gradients, batch",
        bytes_line(batch_bytes(shape) + std::max(head_bytes(shape), layer_backward_bytes(shape))));
  if (shape.copies_checkpoint) print("copy of the checkpoint", bytes_line(checkpoint_bytes(of)));
  print("total", bytes_line(plan.peak_bytes));
  if (plan.limit_bytes > 0) print("available per rank", bytes_line(static_cast<double>(plan.limit_bytes)));
  print_workers(of);
}

/// What the rank that sends most sends, beside the first technique of the list, where all send alike. A controller
/// sends the batch too.
void print_busiest(const StateShape& shape, double batch) {
  const double others = shape.choice.is_replicated() ? batch * static_cast<double>(shape.ranks - 1) : 0;
  print("the busiest rank", bytes_line(state_traffic(shape).busiest + others));
  StateShape plain = shape;
  plain.choice = {};
  print("a rank of " + plain.choice.technique, bytes_line(state_traffic(plain).bytes));
}

/// What goes from stage to stage, the mean over the ranks of the pipeline.
void print_pipeline_traffic(const MemoryShape& shape) {
  if (!shape.pipeline.is_used()) return;
  const std::vector<int> ranks = ranks_of_stages(shape.pipeline);
  const auto degree = static_cast<double>(shape.pipeline.degree);
  double boundaries = 0;
  for (size_t stage = 1; stage < ranks.size(); ++stage) boundaries += ranks[stage] == ranks[stage - 1] ? 0 : 1;
  const auto micro_batches = static_cast<double>(shape.rows / shape.sequences);
  fmt::print("sent per rank and step, from stage to stage\n");
  print("activations, gradients", bytes_line(2 * micro_batches * boundaries * full_activation_bytes(shape) / degree));
  if (!shape.model.tie_embeddings) return;
  MemoryShape first = shape;
  first.part = {0, true, false};
  const StateShape state = state_of(first);
  const auto element = static_cast<double>(state.compute_bytes + state.reduce_bytes);
  print("the tied embedding", bytes_line(element * state.shared_words / degree));
}

void print_traffic(const MemoryPlan& plan, double link_gbit_s) {
  const StateShape shape = state_of(plan.shape);
  const StateTraffic traffic = state_traffic(shape);
  fmt::print("sent per rank and step, {}\n", shape.choice.technique);
  print("parameters gathered", fmt::format("{:>14.0f} elements", traffic.gathered));
  print("gradients reduced", fmt::format("{:>14.0f} elements", traffic.reduced));
  print("sent", fmt::format("{:>14.0f} elements", traffic.elements));
  print("bytes sent", bytes_line(traffic.bytes));
  if (link_gbit_s > 0) {
    print(fmt::format("at {:g} Gbit/s", link_gbit_s), fmt::format("{:>14.3f} s", traffic.busiest * 8e-9 / link_gbit_s));
  }
  if (shape.choice.has_holders()) print_busiest(shape, batch_bytes(plan.shape));
  if (!shape.choice.accumulates()) return;
  StateShape other = shape;  // where gradients add up
  other.choice.accumulate = shape.choice.accumulate == "full" ? "sharded" : "full";
  print(fmt::format("accumulate = \"{}\"", other.choice.accumulate),
        bytes_line(state_traffic(other).bytes) +
            fmt::format(", memory {}", format_bytes(static_cast<int64_t>(plan.peak_bytes - state_bytes(shape).total() +
                                                                         state_bytes(other).total()))));
}

/// What beside a pipeline each way of sharding the stages costs, the one that sends least first.
void print_sharding_choices(const MemoryPlan& plan) {
  const MemoryShape& shape = plan.shape;
  if (!shape.pipeline.is_used() || shape.ranks == 1 || !shape.data_parallel.is_sharded()) return;
  struct Line {
    std::string name;
    double sent;
    double memory;
    bool is_chosen;
  };
  std::vector<Line> lines;
  const DataParallelChoice& own = shape.data_parallel;
  for (const auto& [name, choice] : sharding_choices(own)) {
    MemoryShape other = shape;
    other.data_parallel = choice;
    const bool is_chosen = choice.technique == own.technique &&
                           (!choice.accumulates() || choice.accumulate == own.accumulate) &&
                           (!choice.frees_parameters() || choice.reshard_after_forward == own.reshard_after_forward);
    lines.push_back({name, state_traffic(state_of(other)).bytes, peak_bytes(other), is_chosen});
  }
  std::ranges::stable_sort(lines, {}, &Line::sent);
  fmt::print("sharding beside the pipeline, fewest bytes first: sent per rank and step, memory of the fullest rank\n");
  for (const Line& line : lines) {
    const bool is_dear = line.is_chosen && line.sent > 2 * lines.front().sent;
    fmt::print("  {:<52}{:>12} {:>12}{}{}\n", line.name, format_bytes(static_cast<int64_t>(line.sent)),
               format_bytes(static_cast<int64_t>(line.memory)), line.is_chosen ? "  <- chosen" : "",
               is_dear ? fmt::format(", {:.1f} times the cheapest", line.sent / lines.front().sent) : "");
  }
}

std::string per_micro_batch(const TensorTraffic& traffic) {
  return bytes_line(traffic.total()) +
         fmt::format(", of it {} forward", format_bytes(static_cast<int64_t>(traffic.forward)));
}

/// What splitting the layers costs, and which way of it would cost least.
void print_tensor_traffic(const MemoryPlan& plan) {
  const MemoryShape& shape = plan.shape;
  if (shape.tensor_parallel.is_used()) {
    TensorShape of = tensor_shape(shape);
    fmt::print("sent per rank and micro-batch, tensor_parallel {} over {} ranks\n", of.kind, of.ranks);
    print("a layer", per_micro_batch(layer_bytes(of)));
    print("embedding", per_micro_batch(embedding_bytes(of)));
    print("head and loss", per_micro_batch(head_bytes(of)));
    fmt::print("a layer by kind, over {} ranks, fewest bytes first\n", of.ranks);
    for (const TensorCost& cost : compare_tensor_kinds(of)) {
      const std::string depth = cost.shape.depth > 1 ? fmt::format(", depth {}", cost.shape.depth) : "";
      print(cost.shape.kind + depth, cost.bytes > 0
                                         ? bytes_line(cost.bytes) + (cost.misfit.empty() ? "" : ", but " + cost.misfit)
                                         : cost.misfit);
    }
  }
  for (const TensorShape& of : context_shapes(shape)) {
    fmt::print("sent per rank and micro-batch, {} over {} ranks\n", of.kind, of.ranks);
    print("a layer", per_micro_batch(layer_bytes(of)));
  }
}

/// What a mixture of experts costs beside its weights.
void print_experts(const MemoryPlan& plan, int num_ranks) {
  const ExpertShape of = expert_shape(plan.shape);
  const MoeConfig& moe = of.model.moe;
  if (!moe.is_used()) return;
  fmt::print("experts of a layer, if all are chosen alike\n");
  print("experts per rank", fmt::format("{:>14.0f} of {}", of.experts(), moe.experts));
  print("copies of tokens",
        fmt::format("{:>14.0f} to each expert in a micro-batch, {} of each token", of.copies_per_expert(), moe.top_k));
  const TensorTraffic sent = expert_bytes(of);
  if (sent.total() > 0) print("sent per micro-batch", per_micro_batch(sent));
  if (moe.balance == BalanceScope::batch && moe.balance_loss > 0) {
    print("balance over the batch",
          fmt::format("{:>14.0f} bytes a step, and one more forward pass with what it computes and sends",
                      balance_bytes_per_step(of.model, num_ranks)));
  }
}

/// What allocate_shared will find.
bool shares_memory(const Recipe& recipe, bool is_local) {
  const std::string& backend = recipe.comm.backend;
  return backend == "thread" || (is_local && (backend == "shm" || backend == "auto"));
}

/// Ranks that share cores are planned for other hosts if they do not fit this one.
MemoryPlan memory_of(const Recipe& recipe, int64_t vocabulary, int num_ranks, bool is_local) {
  const int64_t limit = is_local ? memory_share(usable_memory_bytes(), num_ranks) : 0;
  const bool shares = shares_memory(recipe, is_local);
  try {
    return plan_memory(recipe, vocabulary, num_ranks, limit, 0, shares);
  } catch (const ResourceError&) {
    if (num_ranks <= num_usable_cores() || recipe.comm.backend == "thread") throw;
    fmt::print("# {} ranks do not fit this host's memory: planned for other hosts\n", num_ranks);
    return plan_memory(recipe, vocabulary, num_ranks, 0, 0, shares);
  }
}

}  // namespace

int inspect(const InspectArguments& arguments) {
  if (!arguments.flight_folder.empty()) return inspect_flight(arguments.flight_folder);
  std::error_code error;
  if (std::filesystem::is_directory(arguments.recipe, error)) {
    refuse_recipe_options(arguments);
    return inspect_run(arguments.recipe);
  }
  if (arguments.schedule) return inspect_schedule(arguments);
  auto [recipe, ranks] = check_run(arguments.recipe, arguments.overrides, arguments.ranks);
  check_text(recipe);
  const Vocabulary vocabulary = vocabulary_of(recipe);
  // Ranks that can be started here share this host's memory; that of other hosts is unknown.
  const bool is_local = ranks.num_ranks <= most_local_ranks();
  const MemoryPlan memory = memory_of(recipe, vocabulary.size, ranks.num_ranks, is_local);
  ModelConfig model = recipe.model;
  model.vocabulary = vocabulary.size;
  const int64_t parameters = model.num_parameters();
  const int64_t tokens = recipe.train.global_batch * model.context;
  const auto steps = static_cast<double>(recipe.train.steps);
  const double flops = model.flops_per_token(model.context);

  fmt::print("{}\n", to_toml(recipe));
  recipe.train.micro_batch = memory.shape.sequences;
  const BatchPlan plan = plan_batch(recipe, ranks.num_ranks);
  fmt::print("# {} ranks, backend {}\n\n", ranks.num_ranks, recipe.comm.backend);
  if (const std::string mesh = split_text(recipe, plan.dp); !mesh.empty()) {
    fmt::print("mesh\n");
    print("axes", mesh);
    if (const std::string order = order_text(recipe, plan.dp); !order.empty()) print("ranks", order);
  }
  fmt::print("batch\n");
  print("sequences", plan.to_string() + (memory.is_chosen ? " (micro_batch chosen by memory)" : ""));
  print("tokens per step", fmt::format("{} = {} x context {}", tokens, recipe.train.global_batch, model.context));
  print("tokens of the run", fmt::format("{:.0f}", static_cast<double>(tokens) * steps));
  fmt::print("model\n");
  print("vocabulary", fmt::format("{}{}", vocabulary.size, vocabulary.note));
  print("parameters", fmt::format("{}  ({})", parameters, format_count(static_cast<double>(parameters))));
  fmt::print("FLOPs, forward and backward, matrix products only\n");
  print("per token", fmt::format("{:.0f}", flops));
  print("per step and rank", format_count(flops * static_cast<double>(tokens) / ranks.num_ranks));
  print("the run, all ranks", format_count(flops * static_cast<double>(tokens) * steps));
  print_memory(memory);
  print_traffic(memory, arguments.link_gbit_s);
  print_pipeline_traffic(memory.shape);
  print_sharding_choices(memory);
  print_tensor_traffic(memory);
  print_experts(memory, ranks.num_ranks);
  std::vector<std::string> notes = recipe_notes(recipe);
  if (!memory_note(memory).empty()) notes.push_back("memory: " + memory_text(memory));
  for (const std::string& note : notes) fmt::print("note      {}\n", note);
  return 0;
}

}  // namespace caravan::app
