#include "caravan/cost/published/run.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <string_view>

#include "caravan/registry/registry.h"
#include "caravan/schedule/pipeline_choice.h"

namespace caravan::published {
namespace {

// A row with larger numbers is no description of a run.
constexpr int64_t kMostLayers = 4096, kMostSize = 16'777'216, kMostRanks = 1'000'000, kMostStages = 1024,
                  kMostBatch = 1'000'000;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t rounded_div(int64_t a, int64_t b) {
  return std::max<int64_t>(1, std::llrint(static_cast<double>(a) / static_cast<double>(b)));
}

bool is_digit_at(std::string_view text, size_t at) {
  return at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])) != 0;
}

/// "8x7b": 8 experts, of which a token sees 2; 1 for other names.
int64_t experts_in(std::string_view model) {
  for (size_t x = model.find('x'); x != std::string_view::npos; x = model.find('x', x + 1)) {
    size_t begin = x, end = x + 1;
    while (begin > 0 && is_digit_at(model, begin - 1)) --begin;
    while (is_digit_at(model, end) || (end < model.size() && model[end] == '.')) ++end;
    if (begin == x || end == x + 1 || end >= model.size() || model[end] != 'b' || x - begin > 3) continue;
    const int64_t experts = std::atoll(std::string(model.substr(begin, x - begin)).c_str());
    if (experts > 1 && experts <= 256) return experts;
  }
  return 1;
}

void describe_model(const Row& row, Run& run) {
  const std::string arch = row.lower("arch"), mlp = row.lower("mlp"), model = row.lower("model");
  run.width = row.whole("hidden", kMostSize).value_or(4096);
  run.layers = row.whole("layers", kMostLayers).value_or(32);
  const auto kv_heads = row.whole("kv_heads", kMostSize);
  const int64_t usual_heads = std::max({int64_t{1}, run.width / 128, kv_heads.value_or(1)});
  run.heads = std::min(row.whole("heads", kMostSize).value_or(usual_heads), run.width);
  run.kv_heads = std::min(kv_heads.value_or(run.heads), run.heads);
  run.head_width = run.width / run.heads;
  const bool is_llama = has_word(arch, "llama"), is_mpt = has_word(arch, "mpt");
  run.is_gated = has_any(mlp, {"gat", "swiglu"}) || (mlp.empty() && is_llama);
  run.is_llama = run.is_gated || is_llama;
  run.has_dropout = !run.is_llama && !is_mpt;
  run.is_causal = !has_any(arch + model, {"bert", "vit", "encoder", "mlm"});
  run.mlp_width = row.whole("ffn", kMostSize).value_or(run.is_gated ? 8 * run.width / 3 : 4 * run.width);
  run.experts = experts_in(model);
  run.experts_per_token = run.experts > 1 ? 2 : 1;
  run.sequence = row.whole("seq", kMostSize).value_or(2048);
  run.ties_embedding = row.flag("tied_embeddings", !run.is_llama);
}

void describe_batch(const Row& row, Run& run) {
  run.tp = row.whole("tp", kMostStages).value_or(1);
  run.pp = row.whole("pp", kMostStages).value_or(1);
  run.cp = row.whole("cp", kMostStages).value_or(1);
  const int64_t model_ranks = run.tp * run.pp * run.cp;
  const auto ranks = row.whole("num_gpus", kMostRanks), dp = row.whole("dp", kMostRanks);
  run.ranks = std::min(ranks.value_or(dp.value_or(1) * model_ranks), kMostRanks);
  run.dp = dp.value_or(std::max<int64_t>(1, run.ranks / model_ranks));
  // A dp that counted the ranks of cp too.
  if (run.dp * model_ranks > run.ranks) run.dp = std::max<int64_t>(1, run.ranks / model_ranks);
  auto micro_batch = row.whole("micro_batch", kMostBatch), micro_batches = row.whole("num_microbatches", kMostBatch);
  const auto batch = row.whole("global_batch", kMostBatch);
  if (!micro_batch) {
    micro_batch = 1;
    if (batch && micro_batches) micro_batch = rounded_div(*batch, run.dp * *micro_batches);
    if (batch && !micro_batches && run.pp == 1) micro_batch = std::max<int64_t>(1, *batch / run.dp);
  }
  if (!micro_batches) {
    micro_batches = batch ? rounded_div(*batch, run.dp * *micro_batch) : run.pp > 1 ? 4 * run.pp : 1;
  }
  run.micro_batch = *micro_batch;
  run.micro_batches = *micro_batches;
  run.global_batch = batch.value_or(run.micro_batch * run.micro_batches * run.dp);
  run.vocabulary = row.whole("vocab", kMostSize).value_or(run.is_llama ? 32000 : 51200);
  // Megatron pads the vocabulary that it splits.
  if (run.tp > 1) run.vocabulary = ceil_div(run.vocabulary, 128 * run.tp) * 128 * run.tp;
}

bool is_interleaved(const std::string& schedule, const std::string& chunks) {
  return has_any(schedule, {"inter", "vpp"}) || schedule.ends_with("-i") || has_word(chunks, "max");
}

/// The entry of the registry that stands for what a table calls its schedule.
std::string schedule_of_words(const std::string& words, bool has_chunks) {
  const auto entry = [](const char* name) { return find_entry("pipeline", name) != nullptr ? name : ""; };
  if (has_any(words, {"gpipe", "afab", "all forward", "all-forward"})) return entry("gpipe");
  if (has_any(words, {"zb-2", "zb2", "zb-h2", "zbh2", "zb-v", "zbv"})) return entry("zb-h2");
  if (has_any(words, {"zb", "zero bubble", "zero-bubble", "zerobubble", "dualpipe", "v-half", "v-min"})) {
    return entry("zb-h1");
  }
  return entry(has_chunks ? "interleaved" : "1f1b");
}

/// Schedules in a V (Qi et al., arXiv 2405.15362) hold fewer activations than those that stand for them: ZB-V those of
/// p micro-batches instead of 2 p - 1, V-Half and V-Min about a half and a third of p.
double held_share_of(const std::string& words, double ranks) {
  if (has_any(words, {"zb-v", "zbv"})) return ranks / (2 * ranks - 1);
  if (has_word(words, "v-half")) return fitted::kHeldVHalf;
  return has_word(words, "v-min") ? fitted::kHeldVMin : 1;
}

void describe_pipeline(const Row& row, Run& run) {
  const std::string words = row.lower("schedule"), chunks = row.lower("vpp");
  const int64_t most = std::max<int64_t>(1, run.layers / run.pp);
  if (run.pp > 1) {
    run.chunks = std::min(row.whole("vpp", kMostStages).value_or(is_interleaved(words, chunks) ? most : 1), most);
  }
  run.schedule = run.pp > 1 ? schedule_of_words(words, run.chunks > 1) : "";
  const bool is_of_chunks = run.pp > 1 && run.schedule == schedule_of_words("", true);
  run.held_share = held_share_of(words, static_cast<double>(run.pp));
  // Some give the first and the last stage a layer less, for the embedding and the head.
  const std::string note = row.lower("framework") + " " + row.lower("note");
  const bool is_even = has_word(note, "first and last stage carry one layer less") && (run.layers + 2) % run.pp == 0;
  if (is_even && has_word(chunks, "max") && is_of_chunks) run.chunks = (run.layers + 2) / run.pp;
  if (!is_of_chunks) run.chunks = 1;
  const int64_t stages = run.pp * run.chunks;
  std::vector<int64_t> layers = even_layers(run.layers, stages);
  if (is_even && (run.layers + 2) % stages == 0) {
    layers.assign(static_cast<size_t>(stages), (run.layers + 2) / stages);
    --layers.front();
    --layers.back();
  }
  run.layers_of.assign(static_cast<size_t>(run.pp), {});
  for (int64_t stage = 0; stage < stages; ++stage) {
    run.layers_of[static_cast<size_t>(stage % run.pp)].push_back(layers[static_cast<size_t>(stage)]);
  }
}

/// "2d", "2.5d", "3d" tensor parallelism, but not "3D mesh" and "3D parallel".
double tensor_cube_in(std::string_view text) {
  for (const auto& [word, dims] : {std::pair{"2d", 2.0}, std::pair{"2.5d", 2.0}, std::pair{"3d", 3.0}}) {
    for (size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
      const bool continues = at > 0 && (is_digit_at(text, at - 1) || text[at - 1] == '.');
      const std::string_view after = text.substr(at + std::string_view(word).size());
      const size_t next = std::min(after.find_first_not_of(' '), after.size());
      const bool is_other = after.substr(next).starts_with("mesh") || after.substr(next).starts_with("parallel");
      if (!continues && !is_other) return dims;
    }
  }
  return 0;
}

void describe_sharding(const Row& row, Run& run) {
  const std::string sharding = row.lower("sharding"), framework = row.lower("framework");
  run.tensor_cube = run.tp > 3 ? tensor_cube_in(sharding) : 0;
  run.cuts_sequence = run.tp > 1 && (row.flag("seq_parallel", false) || run.tensor_cube > 0);
  run.is_ulysses = run.cp > 1 && has_word(framework + " " + row.lower("note") + " " + sharding, "ulysses");
  const auto stage = row.number("stage");
  run.memory_of_stage =
      stage ? static_cast<int64_t>(std::clamp<double>(*stage, 0, static_cast<double>(run.pp - 1))) : -1;
  const auto zero = row.number("zero_stage");
  const auto is_stage = [&](const char* digit) {
    return has_any(sharding + " " + framework,
                   {std::string("zero-") + digit, std::string("zero") + digit, std::string("zero ") + digit});
  };
  if (zero) {
    run.zero = static_cast<int64_t>(std::clamp<double>(*zero, 0, 3));
  } else if (is_stage("3") || has_any(sharding, {"fsdp", "full_shard"})) {
    run.zero = 3;
  } else if (is_stage("2") || has_word(sharding, "grad_op")) {
    run.zero = 2;
  } else {
    run.zero = is_stage("1") || has_word(sharding, "distributed opt") ? 1 : 0;
  }
  run.shards = run.zero > 0 ? run.dp * run.cp : 1;
  if (has_any(sharding, {"hsdp", "hybrid", "hpz", "mics"}) && run.shards > run.per_host) {
    run.shards = std::max<int64_t>(1, run.per_host / run.tp);
  }
  const bool says_never = has_word(sharding, "reshard") && has_any(sharding, {"false", "never"});
  run.gathers_twice = !has_any(sharding, {"shard_grad_op", "noreshard", "no reshard", "no-reshard"}) && !says_never;
  const std::string offload = row.lower("offload");
  using enum Run::Offload;
  if (offload.empty() || offload == "n" || offload == "none" || offload == "no") return;
  run.offload = has_any(offload, {"nvme", "infinity"}) ? disk : has_word(offload, "param") ? parameters : optimizer;
}

void count_weights(Run& run) {
  const auto width = static_cast<double>(run.width);
  const double kv = static_cast<double>(run.kv_heads * run.head_width);
  run.attention_weights = 2 * width * width + 2 * width * kv;
  run.mlp_weights = (run.is_gated ? 3 : 2) * width * static_cast<double>(run.mlp_width * run.experts);
  run.layer_weights = run.attention_weights + run.mlp_weights + (run.is_llama ? 2 : 13) * width;
  run.embedding_weights = static_cast<double>(run.vocabulary) * width;
  run.weights =
      static_cast<double>(run.layers) * run.layer_weights + run.embedding_weights * (run.ties_embedding ? 1 : 2);
  for (size_t i = 0; i < run.layers_of.size(); ++i) {
    const bool is_first = i == 0, is_last = i + 1 == run.layers_of.size();
    const int heads = (is_first ? 1 : 0) + (is_last && (run.pp > 1 || !run.ties_embedding) ? 1 : 0);
    run.stage_weights.push_back(
        (static_cast<double>(run.layers_on(i)) * run.layer_weights + heads * run.embedding_weights) /
        static_cast<double>(run.tp));
  }
}

}  // namespace

int64_t Run::layers_on(size_t stage) const {
  return std::accumulate(layers_of[stage].begin(), layers_of[stage].end(), int64_t{0});
}

Run describe(const Row& row) {
  Run run;
  describe_model(row, run);
  describe_batch(row, run);
  describe_hardware(row, run);
  describe_pipeline(row, run);
  describe_sharding(row, run);
  describe_framework(row, run);
  count_weights(run);
  return run;
}

}  // namespace caravan::published
