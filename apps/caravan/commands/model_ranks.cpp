#include "apps/caravan/commands/model_ranks.h"

#include <cstdio>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/caravan/launch/ranks.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/comm/world.h"
#include "caravan/recipe/recipe.h"

namespace caravan::app {
namespace {

RankInfo own_rank(std::optional<int> ranks) {
  plan_ranks(ranks, "", /*default_ranks=*/1);  // refuses --ranks that contradicts the environment
  return RankInfo::from_environment();
}

}  // namespace

ModelRanks::ModelRanks(std::optional<int> ranks, const OffloadArguments& offload)
    : info_(own_rank(ranks)),
      runtime_({.intra_op_threads = threads_per_rank(Recipe(), info_.local_world_size)}),
      store_(open_store(info_)),
      world_(make_world("auto", info_, store_)),
      offload_(offload) {
  if (offload_.tier != "disk") return;
  // On a second signal the launcher itself kills its ranks.
  signal_.emplace(info_.world_size == 1 ? StopSignal::Second::ends_at_once : StopSignal::Second::is_ignored);
}

Mesh ModelRanks::mesh() const { return Mesh::create(world_, {{"dp", world_->size()}}); }

LanguageModel ModelRanks::load(const std::filesystem::path& source, LoadOptions options) const {
  options.parameters = offload_.tier == "host" ? Tier::host : offload_.tier == "disk" ? Tier::disk : Tier::device;
  options.disk_dirs.assign(offload_.disk_dirs.begin(), offload_.disk_dirs.end());
  if (signal_) options.should_stop = [this] { return signal_->requested(); };
  LanguageModel model = caravan::load(source, mesh(), options);
  if (options.parameters != Tier::disk || !is_first()) return model;
  for (const std::string& note : model.engine()->strategy().tiers->disk().notes()) {
    fmt::print(stderr, "caravan: {}\n", note);
  }
  return model;
}

nlohmann::ordered_json json_of_rank_0(Communicator& world, const std::function<nlohmann::ordered_json()>& read,
                                      const char* what) {
  if (world.size() == 1) return read();
  const auto packed = [&] {
    const std::vector<uint8_t> bytes = nlohmann::ordered_json::to_cbor(read());
    return std::string(bytes.begin(), bytes.end());
  };
  return nlohmann::ordered_json::from_cbor(text_of_rank_0(world, packed, what));
}

}  // namespace caravan::app
