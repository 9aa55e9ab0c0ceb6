#pragma once

#include <chrono>
#include <string>
#include <sys/types.h>
#include <vector>

#include "caravan/comm/store/rendezvous.h"

namespace caravan::kill {

using Clock = std::chrono::steady_clock;

struct End {
  int exit_code = -1;  ///< -1: ended by a signal
  int signal = 0;
  Clock::time_point when{};
  std::string output;
};

/// The ranks of a shm world, each a process that runs `program`. Serves their store.
class Job {
 public:
  Job(const std::string& program, int num_ranks, uint64_t seed);
  ~Job();  ///< kills and reaps what is left
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Waits until all ranks print "ready". False if a rank ends first or `patience` passes.
  bool all_ready(Clock::duration patience);
  void signal(int rank, int number) const;
  /// Waits until all ranks have ended. False if `patience` passes.
  bool all_ended(Clock::duration patience);
  const End& end(int rank) const { return ranks_[static_cast<size_t>(rank)].end; }
  int num_ranks() const { return static_cast<int>(ranks_.size()); }

 private:
  struct Rank {
    pid_t pid = -1;
    int pid_fd = -1;
    int out = -1;
    bool running = false;
    End end;
  };
  void read_and_reap();

  JobKey key_;
  StoreServer server_;
  std::vector<Rank> ranks_;
};

/// State that a job must leave unchanged: names in /dev/shm, processes with the mark of this program's ranks,
/// descriptors of this process.
struct Surroundings {
  std::vector<std::string> shared_names;
  int marked_processes = 0;
  int descriptors = 0;
  bool operator==(const Surroundings&) const = default;

  static Surroundings now();
  std::string text() const;
};

}  // namespace caravan::kill
