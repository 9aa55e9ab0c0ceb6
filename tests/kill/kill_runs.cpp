/// Runs jobs of 2 to 4 ranks over shm that call random collectives, and kills one rank of each at a random time:
///   kill_runs [--runs N] [--seed S] [--within-ms MS]
/// A run passes if every survivor ends with a CommError that names the killed rank, within MS milliseconds of the kill
/// if given, and /dev/shm, the process table and the descriptors of this process are as before. Prints a line for each
/// failed run and a summary. Exits with 1 if a run failed.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/kill/job.h"

namespace {

using namespace caravan::kill;
using std::chrono::milliseconds;

struct Result {
  std::vector<std::string> faults;
  std::vector<double> latencies_ms;  ///< from the kill to the end of each survivor
};

void look_at_survivor(const Job& job, int rank, int victim, Clock::time_point killed, Result& result) {
  const End& end = job.end(rank);
  const std::string who = "rank " + std::to_string(rank);
  if (end.exit_code != 40) {
    result.faults.push_back(who + " ended with exit code " + std::to_string(end.exit_code) + ", signal " +
                            std::to_string(end.signal) + ": " + end.output);
  } else if (end.output.find("rank " + std::to_string(victim) + " of the world is lost") == std::string::npos) {
    result.faults.push_back(who + " does not name rank " + std::to_string(victim) + ": " + end.output);
  }
  result.latencies_ms.push_back(std::chrono::duration<double, std::milli>(end.when - killed).count());
}

Result run_once(std::mt19937_64& random) {
  Result result;
  const int num_ranks = 2 + static_cast<int>(random() % 3);
  const int victim = static_cast<int>(random() % static_cast<unsigned>(num_ranks));
  const auto delay = std::chrono::microseconds(random() % 150'000);
  Job job(CARAVAN_TEST_KILL_RANK, num_ranks, random());
  if (!job.all_ready(std::chrono::seconds(30))) {
    result.faults.push_back("the job did not begin: " + job.end(0).output);
    return result;
  }
  std::this_thread::sleep_for(delay);
  const auto killed = Clock::now();
  job.signal(victim, SIGKILL);
  if (!job.all_ended(std::chrono::seconds(20))) {
    result.faults.push_back("survivors did not end within 20 s of the kill of rank " + std::to_string(victim) + " of " +
                            std::to_string(num_ranks));
    return result;
  }
  if (job.end(victim).signal != SIGKILL)
    result.faults.push_back("the victim ended by itself: " + job.end(victim).output);
  for (int rank = 0; rank < num_ranks; ++rank) {
    if (rank != victim) look_at_survivor(job, rank, victim, killed, result);
  }
  return result;
}

long option(int argc, char** argv, const char* name, long otherwise) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], name) == 0) return std::strtol(argv[i + 1], nullptr, 10);
  }
  return otherwise;
}

}  // namespace

int main(int argc, char** argv) {
  const long runs = option(argc, argv, "--runs", 12);
  const long seed = option(argc, argv, "--seed", 1);
  const long within_ms = option(argc, argv, "--within-ms", 0);
  std::mt19937_64 random(static_cast<uint64_t>(seed));
  const Surroundings before = Surroundings::now();
  std::vector<double> latencies;
  int bad = 0;
  for (long run = 0; run < runs; ++run) {
    Result result = run_once(random);
    const Surroundings after = Surroundings::now();
    if (after != before) result.faults.push_back("left behind: " + after.text() + "; before: " + before.text());
    for (const double latency : result.latencies_ms) {
      if (within_ms > 0 && latency > static_cast<double>(within_ms)) {
        result.faults.push_back("a survivor took " + std::to_string(latency) + " ms");
      }
    }
    for (const std::string& fault : result.faults) std::printf("run %ld: %s\n", run, fault.c_str());
    bad += result.faults.empty() ? 0 : 1;
    latencies.insert(latencies.end(), result.latencies_ms.begin(), result.latencies_ms.end());
  }
  std::sort(latencies.begin(), latencies.end());
  const auto at = [&](double share) {
    return latencies.empty() ? 0.0 : latencies[static_cast<size_t>(share * static_cast<double>(latencies.size() - 1))];
  };
  std::printf("%ld runs, %d bad, %zu survivors; ms from the kill to their end: median %.1f, p95 %.1f, longest %.1f\n",
              runs, bad, latencies.size(), at(0.5), at(0.95), at(1));
  std::printf("after: %s\n", Surroundings::now().text().c_str());
  return bad == 0 && runs > 0 ? 0 : 1;
}
