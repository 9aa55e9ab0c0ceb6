#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include <nlohmann/json_fwd.hpp>

#include "apps/caravan/options/options.h"
#include "caravan/base/runtime.h"
#include "caravan/base/system/stop_signal.h"
#include "caravan/comm/communicator.h"
#include "caravan/comm/store/rendezvous.h"
#include "caravan/generate/load.h"
#include "caravan/mesh/mesh.h"

namespace caravan::app {

/// The ranks of a command that uses a model and has no recipe: the threads of this one, and the world of all.
class ModelRanks {
 public:
  /// `ranks`: --ranks. Throws UsageError if it contradicts the environment. With weights on disk, the
  /// first signal to stop makes load() and its model throw Interrupted, so that their files are removed.
  explicit ModelRanks(std::optional<int> ranks, const OffloadArguments& offload = {});

  Communicator& world() const noexcept { return *world_; }
  bool is_first() const noexcept { return world_->rank() == 0; }
  Mesh mesh() const;
  /// Loads a model over the ranks, with its weights on the tier of --offload; rank 0 shows what a user should know of
  /// the disks. This outlives the model.
  LanguageModel load(const std::filesystem::path& source, LoadOptions options) const;

 private:
  RankInfo info_;
  Runtime runtime_;
  std::shared_ptr<Store> store_;
  std::shared_ptr<Communicator> world_;
  OffloadArguments offload_;
  std::optional<StopSignal> signal_{};
};

/// What rank 0 reads, on every rank: standard input is its alone. Every rank calls it.
nlohmann::ordered_json json_of_rank_0(Communicator& world, const std::function<nlohmann::ordered_json()>& read,
                                      const char* what);

}  // namespace caravan::app
