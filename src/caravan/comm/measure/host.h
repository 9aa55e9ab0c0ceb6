#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace caravan::measure {

struct NetworkInterface {
  std::string name;
  std::string address;  ///< the first IPv4 one, else IPv6, "" if it has none
  bool is_up = false;
  int64_t speed_mbit_s = -1;  ///< -1: the kernel does not say, as for virtual ones
};

/// What the host of this process allows. Sizes in bytes; -1: without limit, or unknown.
struct HostFacts {
  std::string name{};
  std::string kernel{};
  std::string boot_id{};  ///< equal for processes of one running kernel
  std::string cpu{};
  std::vector<int> cores{};  ///< this thread may run on
  int num_cores_of_host = 0;
  int num_numa_nodes = 1;
  int64_t memory_bytes = -1;
  int64_t available_bytes = -1;
  int64_t memory_limit_bytes = -1;   ///< of the control group
  int64_t open_files_limit = -1;     ///< ulimit -n
  int64_t address_limit_bytes = -1;  ///< ulimit -v
  int64_t locked_limit_bytes = -1;   ///< ulimit -l
  int64_t dev_shm_bytes = -1;        ///< free in /dev/shm; -1: there is none
  std::string memfd_error{};         ///< "": memfd_create works
  std::string pidfd_error{};         ///< "": pidfd_open works
  std::vector<NetworkInterface> interfaces{};
};

/// Reads them. Never throws for a file that is missing.
HostFacts read_host_facts();

/// The limits among them that would stop or slow `num_local_ranks` ranks, a sentence each with what to do.
std::vector<std::string> limits_that_bite(const HostFacts& facts, int num_local_ranks);

}  // namespace caravan::measure
