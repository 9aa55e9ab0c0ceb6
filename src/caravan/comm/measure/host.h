#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace caravan::measure {

struct NetworkInterface {
  std::string name;
  std::string address;  ///< the first IPv4 address, else IPv6; "" if there is none
  bool is_up = false;
  int64_t speed_mbit_s = -1;  ///< -1: unknown, as for virtual interfaces
};

/// Resources and limits of this process's host. Sizes in bytes; -1: unlimited or unknown.
struct HostFacts {
  std::string name{};
  std::string kernel{};
  std::string boot_id{};  ///< equal for all processes of one host
  std::string cpu{};
  std::vector<int> cores{};  ///< that this thread may run on
  int num_cores_of_host = 0;
  int num_numa_nodes = 1;
  int64_t memory_bytes = -1;
  int64_t available_bytes = -1;
  int64_t memory_limit_bytes = -1;   ///< of the control group
  int64_t open_files_limit = -1;     ///< ulimit -n
  int64_t address_limit_bytes = -1;  ///< ulimit -v
  int64_t locked_limit_bytes = -1;   ///< ulimit -l
  int64_t dev_shm_bytes = -1;        ///< free in /dev/shm; -1: it does not exist
  std::string memfd_error{};         ///< "": memfd_create works
  std::string pidfd_error{};         ///< "": pidfd_open works
  std::vector<NetworkInterface> interfaces{};
};

/// Missing files are not an error.
HostFacts read_host_facts();

/// One sentence for each limit that would stop or slow down `num_local_ranks` ranks, with what to do about it.
std::vector<std::string> limit_warnings(const HostFacts& facts, int num_local_ranks);

}  // namespace caravan::measure
