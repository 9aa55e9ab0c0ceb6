#include "caravan/comm/store/rendezvous.h"

#include <charconv>
#include <cstdlib>

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {
namespace {

UsageError wrong(const char* variable, std::string fact, std::string action) {
  return UsageError(
      {.op = "environment", .subject = variable, .fact = std::move(fact), .where = "", .action = std::move(action)});
}

bool is_set(const char* variable) { return std::getenv(variable) != nullptr; }

std::string text_of(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr || *value == '\0') {
    const bool by_hand = is_set("RANK");
    throw wrong(
        variable,
        value != nullptr ? std::string("is empty")
                         : fmt::format("is not set, but {} is", by_hand ? "RANK" : "the rank of an mpirun"),
        by_hand
            ? fmt::format("set {} as torchrun and `caravan train --ranks` do, or unset RANK for one process", variable)
            : fmt::format("start the program by mpirun itself, which sets {}", variable));
  }
  return value;
}

int number_of(const char* variable, int least, int most) {
  const std::string text = text_of(variable);
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc::invalid_argument || (error == std::errc{} && end != text.data() + text.size())) {
    throw wrong(variable, fmt::format("\"{}\" is not a whole number", text),
                fmt::format("set it to {} .. {}", least, most));
  }
  if (error != std::errc{} || number < least || number > most) {
    throw wrong(variable, fmt::format("{} is out of range", text), fmt::format("set it to {} .. {}", least, most));
  }
  return number;
}

bool is_true(const char* variable) {
  const char* value = std::getenv(variable);
  const std::string text = value == nullptr ? "" : value;
  if (text == "1" || text == "true" || text == "True" || text == "TRUE") return true;
  if (text.empty() || text == "0" || text == "false" || text == "False" || text == "FALSE") return false;
  throw wrong(variable, fmt::format("\"{}\" is not a boolean", text), "set it to 1 or 0");
}

RankInfo of_mpirun(const char* rank, const char* size, const char* local_rank, const char* local_size) {
  RankInfo info;
  info.by_mpirun = true;
  info.world_size = number_of(size, 1, 1 << 24);
  info.rank = number_of(rank, 0, info.world_size - 1);
  if (is_set(local_size)) {  // without them, every rank is assumed to be alone on its host
    info.local_world_size = number_of(local_size, 1, info.world_size);
    info.local_rank = number_of(local_rank, 0, info.local_world_size - 1);
  }
  return info;
}

}  // namespace

RankInfo RankInfo::from_environment() {
  RankInfo info;
  if (!is_set("RANK")) {
    if (is_set("OMPI_COMM_WORLD_RANK")) {
      return of_mpirun("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                       "OMPI_COMM_WORLD_LOCAL_SIZE");
    }
    if (is_set("PMI_RANK")) return of_mpirun("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS");
    return info;
  }
  info.world_size = number_of("WORLD_SIZE", 1, 1 << 24);
  info.rank = number_of("RANK", 0, info.world_size - 1);
  info.local_world_size = number_of("LOCAL_WORLD_SIZE", 1, info.world_size);
  info.local_rank = number_of("LOCAL_RANK", 0, info.local_world_size - 1);
  if (info.world_size == 1) return info;  // no peers
  info.master_addr = text_of("MASTER_ADDR");
  info.agent_store = is_true("TORCHELASTIC_USE_AGENT_STORE");
  info.store_is_served = is_set("CARAVAN_STORE_PORT");
  info.master_port = number_of(info.store_is_served ? "CARAVAN_STORE_PORT" : "MASTER_PORT", 1, 65535);
  info.key = JobKey::from_environment(info.world_size);
  if (info.agent_store && info.store_is_served) {
    throw wrong("CARAVAN_STORE_PORT",
                "is set together with TORCHELASTIC_USE_AGENT_STORE: two launchers have started this process",
                "start the ranks with only one of them");
  }
  return info;
}

}  // namespace caravan
