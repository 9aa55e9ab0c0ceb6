#include "caravan/parallel/techniques.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/divisors.h"
#include "caravan/base/text.h"

namespace caravan {

const std::vector<std::string>& data_parallel_techniques() {
  static const std::vector<std::string> names{"ddp", "zero1", "zero2", "zero3", "hsdp", "param_server", "replicas"};
  return names;
}

const std::vector<std::string>& communication_hooks() {
  static const std::vector<std::string> names{"none", "powersgd", "topk"};
  return names;
}

std::vector<std::pair<std::string, DataParallelChoice>> sharding_choices(const DataParallelChoice& like) {
  std::vector<std::pair<std::string, DataParallelChoice>> choices;
  const auto add = [&](const std::string& name, const char* technique, bool reshards, const char* accumulate) {
    DataParallelChoice choice = like;
    choice.technique = technique;
    choice.reshard_after_forward = reshards;
    choice.accumulate = accumulate;
    choices.emplace_back(name, choice);
  };
  add("zero1", "zero1", true, "sharded");
  for (const char* accumulate : {"sharded", "full"}) {
    const std::string sums = std::string(", gradients ") + (accumulate[0] == 's' ? "each micro-batch" : "once a step");
    add("zero2" + sums, "zero2", true, accumulate);
    add("zero3, gathered each pass" + sums, "zero3", true, accumulate);
    add("zero3, gathered once" + sums, "zero3", false, accumulate);
  }
  return choices;
}

std::string wrong_with_hook_name(const std::string& name) {
  if (std::ranges::find(communication_hooks(), name) != communication_hooks().end()) return "";
  if (name == "bf16" || name == "fp16") {
    return fmt::format("'{}' is a dtype; use precision.reduce = \"{}\"", name, name);
  }
  return not_one_of(name, communication_hooks());
}

std::string wrong_with_hook(const DataParallelChoice& choice, const PrecisionChoice& precision) {
  if (choice.has_residual() && !choice.all_reduces()) {
    return fmt::format(
        "'{}' keeps 4 bytes a parameter on every rank, which {} is there to save; use precision.reduce = \"bf16\", or "
        "the technique {}",
        choice.hook, choice.technique, join(techniques_where(&DataParallelChoice::all_reduces), " or "));
  }
  if (choice.has_residual() && precision.reduced_in() != "fp32") {
    return fmt::format("'{}' sends fp32 factors or entries; leave precision.reduce and precision.gradients at fp32",
                       choice.hook);
  }
  if (choice.has_residual() && precision.scales_loss()) {
    return fmt::format("'{}' would carry the loss scale of one step into the next; use precision.compute = \"bf16\"",
                       choice.hook);
  }
  return "";
}

std::string wrong_with_precision(const DataParallelChoice& choice, const PrecisionChoice& precision) {
  if (!choice.is_asynchronous()) return "";
  if (precision.scales_loss())
    return "compute in fp16 needs one loss scale for all, and workers take steps of their own";
  if (precision.gradients != "fp32" || precision.reduced_in() != "fp32") {
    return "gradients are pushed in fp32 by workers that do not wait for each other";
  }
  return "";
}

const std::vector<std::string>& server_modes() {
  static const std::vector<std::string> modes{"sync", "async", "bounded"};
  return modes;
}

std::string DataParallelChoice::wrong_with_shard(int64_t dp) const {
  if (!has_groups() || (shard > 1 && shard < dp && dp % shard == 0)) return "";
  if (shard == 0) return fmt::format("is needed by {}: how many of {} ranks share one set of shards", technique, dp);
  return fmt::format("{} cuts shards over groups of {} of {} data-parallel ranks", technique, shard, dp);
}

std::string DataParallelChoice::instead_of_shard(int64_t dp) const {
  const std::vector<int64_t> valid = divisors(dp, 2, dp - 1);
  return valid.empty() ? "no group smaller than all of them divides them: use \"zero3\"" : "use one of " + join(valid);
}

std::string DataParallelChoice::wrong_with_servers(int64_t dp) const {
  if (!has_servers() || (servers >= 0 && servers <= dp)) return "";
  return fmt::format("{} servers among {} data-parallel ranks", servers, dp);
}

std::string DataParallelChoice::wrong_with_backend(const std::string& backend) const {
  if (!is_replicated() || backend == "thread") return "";
  return fmt::format("{} runs its replicas as threads of one process, but the back-end is {}", technique, backend);
}

std::vector<std::string> techniques_where(bool (DataParallelChoice::*holds)() const) {
  std::vector<std::string> names;
  for (const std::string& name : data_parallel_techniques()) {
    if ((DataParallelChoice{.technique = name}.*holds)()) names.push_back(name);
  }
  return names;
}

}  // namespace caravan
