#include "caravan/comm/backends/shared/peers/announcement.h"

#include <fstream>
#include <set>
#include <unistd.h>

#include <climits>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/base/system/cores.h"
#include "caravan/comm/backends/shared/memory/segment.h"
#include "caravan/comm/store/startup.h"

namespace caravan::shared {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

std::string first_line(const char* path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

std::string to_text(const Announcement& own) {
  return nlohmann::json{{"boot", own.boot},
                        {"network", own.network},
                        {"user", own.user},
                        {"host", own.host},
                        {"socket", own.socket},
                        {"token", own.token},
                        {"reservable_bytes", own.reservable_bytes},
                        {"cores", own.cores}}
      .dump();
}

Announcement from_text(const std::string& text, int64_t rank) {
  try {
    const auto json = nlohmann::json::parse(text);
    return {json.at("boot"),  json.at("network"),          json.at("user"), json.at("host"), json.at("socket"),
            json.at("token"), json.at("reservable_bytes"), json.at("cores")};
  } catch (const nlohmann::json::exception& error) {
    throw CommError({.op = "comm",
                     .subject = fmt::format("rank {}", rank),
                     .fact = fmt::format("its announcement cannot be read: {}", error.what()),
                     .action = "run the same build of Caravan on every rank"});
  }
}

std::string where(const RankInfo& info) { return fmt::format("rank {} of {}", info.rank, info.world_size); }

}  // namespace

Announcement Announcement::own(std::string socket, uint64_t token) {
  char host[HOST_NAME_MAX + 1] = "";
  gethostname(host, sizeof(host) - 1);
  char network[64] = "";
  const ssize_t length = readlink("/proc/self/ns/net", network, sizeof(network));
  return {.boot = first_line("/proc/sys/kernel/random/boot_id"),
          .network = std::string(network, length > 0 ? static_cast<size_t>(length) : 0),
          .user = geteuid(),
          .host = host,
          .socket = std::move(socket),
          .token = token,
          .reservable_bytes = shared::reservable_bytes(),
          .cores = usable_cores()};
}

void throw_missing(std::vector<int64_t> missing, const RankInfo& info, Store& store, milliseconds timeout) {
  throw CommError({.op = "comm",
                   .subject = "world",
                   .fact = missing_ranks_text(std::move(missing), info.world_size, store, timeout),
                   .where = where(info),
                   .action = "see the output of the missing ranks; they may have failed before they joined"});
}

std::vector<Announcement> exchange(const Announcement& own, const RankInfo& info, Store& store, milliseconds timeout) {
  const auto deadline = steady_clock::now() + timeout;
  // Every rank creates its worlds in the same order, so its own count of calls identifies the world.
  const int64_t world_number = store.add(fmt::format("shm/count/{}", info.rank), 1);
  const auto key = [&](int64_t rank) { return fmt::format("shm/{}/{}", world_number, rank); };
  store.set(key(info.rank), to_text(own));
  std::vector<Announcement> all;
  for (int64_t rank = 0; rank < info.world_size; ++rank) {
    if (const auto text = get_from(store, key(rank), static_cast<int>(rank), deadline)) {
      all.push_back(from_text(*text, rank));
      continue;
    }
    std::vector<int64_t> missing;
    for (int64_t r = rank; r < info.world_size; ++r) {
      if (r == rank || !store.has(key(r))) missing.push_back(r);
    }
    throw_missing(std::move(missing), info, store, timeout);
  }
  return all;
}

int count_cores(const std::vector<Announcement>& all) {
  std::set<int> cores;
  for (const Announcement& one : all) cores.insert(one.cores.begin(), one.cores.end());
  return static_cast<int>(cores.size());
}

void check_one_host(const std::vector<Announcement>& all, const RankInfo& info) {
  const Announcement& first = all.front();
  for (size_t rank = 1; rank < all.size(); ++rank) {
    const Announcement& other = all[rank];
    const auto refuse = [&](std::string fact, std::string action) {
      throw UsageError({.op = "shm",
                        .subject = "world",
                        .fact = std::move(fact),
                        .where = where(info),
                        .action = std::move(action)});
    };
    if (other.boot != first.boot) {
      refuse(fmt::format("rank 0 is on the host {}, rank {} on {}; shared memory works within one host", first.host,
                         rank, other.host),
             "use the back-end gloo");
    }
    if (other.network != first.network) {
      refuse(fmt::format("rank 0 and rank {} are in different network namespaces ({}, {})", rank, first.network,
                         other.network),
             "run all ranks in one container, or use the back-end gloo");
    }
    if (other.user != first.user) {
      refuse(fmt::format("rank 0 runs as user {}, rank {} as user {}", first.user, rank, other.user),
             "run all ranks as one user");
    }
  }
}

}  // namespace caravan::shared
