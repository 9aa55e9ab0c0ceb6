#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/caravan/bench/doctor_report.h"
#include "apps/caravan/bench/doctor_tiers.h"
#include "apps/caravan/commands.h"
#include "apps/caravan/launch/ranks.h"
#include "caravan/base/error.h"
#include "caravan/comm/backends/hierarchical/hosts.h"
#include "caravan/comm/measure/core_ping.h"
#include "caravan/comm/measure/cores.h"
#include "caravan/comm/store/rendezvous.h"
#include "caravan/comm/world.h"

namespace caravan::measure {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NetworkInterface, name, address, is_up, speed_mbit_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(HostFacts, name, kernel, boot_id, cpu, cores, num_cores_of_host, num_numa_nodes,
                                   memory_bytes, available_bytes, memory_limit_bytes, open_files_limit,
                                   address_limit_bytes, locked_limit_bytes, dev_shm_bytes, memfd_error, pidfd_error,
                                   interfaces)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MemoryRates, copy_gb_s, add_gb_s)

}  // namespace caravan::measure

namespace caravan::app {
namespace {

constexpr std::chrono::seconds kTimeout{10};   // of a back-end: a slower link counts as broken
constexpr std::chrono::seconds kPatience{30};  // for a rank whose back-end is still timing out
constexpr int64_t kMemoryBytes = int64_t{64} << 20;
constexpr int kExitLinkFails = 4;  // as CommError

/// One rank's part of the diagnosis. Ranks exchange their findings through the store, because no back-end is known to
/// work yet.
class Doctor {
 public:
  Doctor(const RankInfo& info, std::shared_ptr<Store> store) : info_(info), store_(std::move(store)) {}

  Diagnosis diagnose() {
    Diagnosis diagnosis{.num_ranks = info_.world_size};
    group_hosts(diagnosis);
    if (info_.world_size < 2) return diagnosis;
    bool has_working_backend = false;  // the same on every rank: all know all errors
    for (const std::string& backend : candidates(diagnosis)) {
      BackendFinding finding{.name = backend};
      std::string error;
      try {
        const auto world = make_world(backend, info_, store_, {.timeout = kTimeout});
        const measure::PinnedThread pinned(cores_, info_.local_rank);
        finding.links = measure::measure_links(*world);
        if (!has_working_backend) {
          diagnosis.ping_ns = measure::CorePing(*world, 0, 1).measure();
          measure_host(*world, diagnosis);
        }
      } catch (const Error& caught) {
        error = caught.what();
      }
      const auto errors = exchange(backend, error);
      for (int rank = 0; rank < info_.world_size; ++rank) {
        const auto& one = errors[static_cast<size_t>(rank)];
        if (!one) finding.errors.push_back(fmt::format("rank {}: no answer; it has ended or hangs", rank));
        if (one && !one->empty()) finding.errors.push_back(fmt::format("rank {}: {}", rank, *one));
      }
      has_working_backend = has_working_backend || finding.errors.empty();
      diagnosis.backends.push_back(std::move(finding));
      if (!silent_.empty()) return diagnosis;
    }
    add_memory(diagnosis);
    return diagnosis;
  }

  /// Rank 0 may serve the store, so it waits until all others are done.
  void finish() {
    const auto key = [](int rank) { return fmt::format("doctor/done/{}", rank); };
    if (info_.rank == 0) {
      for (int rank = 1; rank < info_.world_size; ++rank) {
        if (silent_.count(rank) == 0) store_->get(key(rank), kPatience);
      }
      return;
    }
    try {
      store_->set(key(info_.rank), "");
    } catch (const CommError&) {  // NOLINT: rank 0 has received it and ended before its reply
    }
  }

 private:
  /// The value of each rank for `topic`; nothing for a rank that sends none within kPatience.
  std::vector<std::optional<std::string>> exchange(const std::string& topic, const std::string& own) {
    const auto key = [&](int rank) { return fmt::format("doctor/{}/{}", topic, rank); };
    store_->set(key(info_.rank), own);
    std::vector<std::optional<std::string>> all;
    for (int rank = 0; rank < info_.world_size; ++rank) {
      try {
        all.emplace_back(store_->get(key(rank), kPatience));
      } catch (const CommError&) {
        if (!store_->has(key(info_.rank))) throw;  // the store is lost, not the rank
        all.emplace_back(std::nullopt);
        silent_.insert(rank);
      }
    }
    return all;
  }

  /// The back-ends that can carry this job, probably the best first.
  std::vector<std::string> candidates(const Diagnosis& diagnosis) const {
    std::vector<std::string> names;
    const size_t num_hosts = diagnosis.hosts.size();
    const bool hosts_have_several = num_hosts > 1 && num_hosts < static_cast<size_t>(info_.world_size);
    if (num_hosts == 1) names.emplace_back("shm");
    if (hosts_have_several) names.emplace_back("shm+gloo");
    if (hosts_have_several && info_.by_mpirun) names.emplace_back("shm+mpi");
    names.emplace_back("gloo");
    if (info_.by_mpirun) names.emplace_back("mpi");
    return names;
  }

  void group_hosts(Diagnosis& diagnosis) {
    const auto all = exchange("host", nlohmann::json(measure::read_host_facts()).dump());
    for (int rank = 0; rank < info_.world_size; ++rank) {
      const auto& said = all[static_cast<size_t>(rank)];
      if (!said) {
        throw CommError({.op = "doctor",
                         .subject = fmt::format("rank {}", rank),
                         .fact = fmt::format("did not join within {} s", kPatience.count()),
                         .where = fmt::format("rank {} of {}", info_.rank, info_.world_size),
                         .action = "see its own output"});
      }
    }
    // Ranks that can share memory are on one host: the containers of a machine are several.
    const std::vector<int> hosts =
        info_.world_size == 1 ? std::vector<int>{0}
                              : hierarchical::find_hosts(info_, *prefixed(store_, "doctor/hosts"), "", kPatience);
    for (int rank = 0; rank < info_.world_size; ++rank) {
      const auto facts = nlohmann::json::parse(*all[static_cast<size_t>(rank)]).get<measure::HostFacts>();
      const auto host = static_cast<size_t>(hosts[static_cast<size_t>(rank)]);
      if (host == diagnosis.hosts.size()) diagnosis.hosts.push_back({.facts = facts});
      diagnosis.hosts[host].ranks.push_back(rank);
      add_cores(diagnosis.hosts[host].facts.cores, facts.cores);
      if (rank == info_.rank) host_ = host;
    }
    for (HostFinding& host : diagnosis.hosts) {
      host.limits = measure::limit_warnings(host.facts, static_cast<int>(host.ranks.size()));
    }
  }

  /// A launcher may have bound each rank to its own cores.
  static void add_cores(std::vector<int>& all, const std::vector<int>& more) {
    all.insert(all.end(), more.begin(), more.end());
    std::ranges::sort(all);
    const auto [first, last] = std::ranges::unique(all);
    all.erase(first, last);
  }

  void measure_host(Communicator& world, const Diagnosis& diagnosis) {
    const auto own_host = world.split(diagnosis.hosts[host_].ranks, "host");
    memory_ = measure::measure_memory(*own_host, kMemoryBytes);
  }

  void add_memory(Diagnosis& diagnosis) {
    const auto all = exchange("memory", memory_ ? nlohmann::json(*memory_).dump() : "");
    for (HostFinding& host : diagnosis.hosts) {
      const auto& said = all[static_cast<size_t>(host.ranks.front())];
      if (said && !said->empty()) host.memory = nlohmann::json::parse(*said).get<measure::MemoryRates>();
    }
  }

  const RankInfo& info_;
  std::shared_ptr<Store> store_;
  std::vector<int> cores_ = measure::usable_cores();
  size_t host_ = 0;
  std::optional<measure::MemoryRates> memory_;
  std::set<int> silent_;  ///< ranks that did not answer
};

}  // namespace

int doctor(const DoctorArguments& arguments) {
  plan_ranks(arguments.ranks, "");  // refuses --ranks that contradicts the environment
  const RankInfo info = RankInfo::from_environment();
  const auto store = open_store(info);
  // Before the links, so that a folder given wrongly is said at once; the others wait for rank 0.
  TierFindings tiers;
  if (info.rank == 0) tiers = measure_tiers(arguments.disks);
  Doctor doctor(info, store);
  Diagnosis diagnosis = doctor.diagnose();
  diagnosis.tiers = std::move(tiers);
  doctor.finish();
  if (info.rank != 0) return 0;
  fmt::print("{}", arguments.json ? to_json(diagnosis) : to_text(diagnosis));
  return diagnosis.all_links_work() ? 0 : kExitLinkFails;
}

}  // namespace caravan::app
