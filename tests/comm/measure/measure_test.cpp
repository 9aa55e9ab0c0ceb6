// The parts of `bench comm` and `doctor`: checked results, rates, consistent figures. Nothing asserts a time.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <gmock/gmock.h>
#include <mutex>
#include <string>
#include <thread>

#include "caravan/base/error.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/comm/measure/core_ping.h"
#include "caravan/comm/measure/cores.h"
#include "caravan/comm/measure/exercise.h"
#include "caravan/comm/measure/host.h"
#include "caravan/comm/measure/links.h"
#include "caravan/comm/measure/memory_rate.h"
#include "caravan/comm/measure/pattern.h"
#include "caravan/comm/measure/rates.h"
#include "caravan/comm/measure/sampling.h"
#include "caravan/comm/measure/statistics.h"

namespace caravan::measure::measure_test {
namespace {

using ::testing::HasSubstr;

const CommOptions kSoon{.timeout = std::chrono::seconds(20)};

/// What a measurement reports cannot have taken longer than the measurement.
class Stopwatch {
 public:
  double us() const { return std::chrono::duration<double, std::micro>(Clock::now() - begin_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin_ = Clock::now();
};

int num_lines(const char* path, std::string_view prefix) {
  std::ifstream file(path);
  int count = 0;
  for (std::string line; std::getline(file, line);) count += line.starts_with(prefix) ? 1 : 0;
  return count;
}

int64_t memory_of_system() {
  std::ifstream file("/proc/meminfo");
  std::string label;
  int64_t kib = 0;
  file >> label >> kib;
  EXPECT_EQ(label, "MemTotal:");
  return kib * 1024;
}

TEST(Statistics, QuantilesInterpolate) {
  EXPECT_EQ(quantile({}, 0.5), 0);
  EXPECT_EQ(quantile({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(quantile({4, 1, 2, 3}, 0.5), 2.5);
  // numpy.quantile(range(1, 12), 0.95)
  EXPECT_DOUBLE_EQ(quantile({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, 0.95), 10.5);
  EXPECT_EQ(quantile({5, 7}, 1), 7);
}

TEST(Rates, MatchNcclTests) {
  EXPECT_DOUBLE_EQ(bus_factor(Verb::all_reduce, 2), 1);
  EXPECT_DOUBLE_EQ(bus_factor(Verb::all_reduce, 8), 1.75);
  for (const Verb verb : {Verb::all_gather, Verb::reduce_scatter, Verb::all_to_all}) {
    EXPECT_DOUBLE_EQ(bus_factor(verb, 4), 0.75);
  }
  for (const Verb verb : {Verb::broadcast, Verb::reduce, Verb::send, Verb::recv}) EXPECT_EQ(bus_factor(verb, 5), 1);
  EXPECT_EQ(bus_factor(Verb::barrier, 4), 0);
}

TEST(Rates, CountMemoryByHand) {
  // 2 ranks, 100 bytes each. all_reduce: each adds its half (reads 50 + 50) and writes it to both.
  EXPECT_EQ(memory_bytes(Verb::all_reduce, 2, 100), 2 * (50 + 50) + 2 * (50 + 50));
  // Each reads its half of both buffers and writes 50.
  EXPECT_EQ(memory_bytes(Verb::reduce_scatter, 2, 100), 2 * (50 + 50) + 2 * 50);
  // Each reads and writes the other's 50.
  EXPECT_EQ(memory_bytes(Verb::all_gather, 2, 100), 2 * 50 + 2 * 50);
  EXPECT_EQ(memory_bytes(Verb::broadcast, 3, 100), 2 * (100 + 100));
  EXPECT_EQ(memory_bytes(Verb::reduce, 3, 100), 3 * 100 + 100);
  EXPECT_EQ(memory_bytes(Verb::recv, 3, 100), 200);
  EXPECT_EQ(memory_bytes(Verb::barrier, 3, 0), 0);
}

TEST(PatternTest, ValuesByHand) {
  const Pattern rank_1 = Pattern::of_rank(Dtype::fp32, 1, 2);
  std::array<float, 7> got{};
  rank_1.write(got.data(), 7, 3);
  // 1 + (i + 3) mod 5 for i = 3, 4, ..
  EXPECT_THAT(got, ::testing::ElementsAre(2, 3, 4, 5, 1, 2, 3));
  const Pattern sum = Pattern::reduced(Dtype::fp32, 2);
  std::array<float, 5> sums{};
  sum.write(sums.data(), 5);
  EXPECT_THAT(sums, ::testing::ElementsAre(1 + 4, 2 + 5, 3 + 1, 4 + 2, 5 + 3));
  std::array<uint8_t, 4> booleans{};
  Pattern::of_rank(Dtype::boolean, 0, 2).write(booleans.data(), 4);
  EXPECT_THAT(booleans, ::testing::ElementsAre(0, 1, 0, 1));
}

TEST(PatternTest, FindsOneWrongElementAnywhere) {
  for (int dtype = 0; dtype < kNumDtypes; ++dtype) {
    const Pattern pattern = Pattern::of_rank(static_cast<Dtype>(dtype), 2, 4);
    const int64_t size = size_bytes(static_cast<Dtype>(dtype));
    constexpr int64_t kCount = 25'001;  // more than one block of the pattern
    std::vector<std::byte> data(static_cast<size_t>(kCount * size));
    pattern.write(data.data(), kCount, 4);
    EXPECT_EQ(pattern.difference(data.data(), kCount, 4), "");
    EXPECT_NE(pattern.difference(data.data(), kCount, 5), "") << "it does not depend on the index";
    for (const int64_t at : {int64_t{0}, int64_t{12'345}, kCount - 1}) {
      data[static_cast<size_t>(at * size)] ^= std::byte{1};
      EXPECT_THAT(pattern.difference(data.data(), kCount, 4), HasSubstr("element " + std::to_string(at) + " of"));
      data[static_cast<size_t>(at * size)] ^= std::byte{1};
    }
  }
}

TEST(PatternTest, RandomNumbersUseAllBitsAndDifferByRank) {
  std::vector<float> first(5000);
  std::vector<float> second(5000);
  Pattern::random(Dtype::fp32, 0).write(first.data(), 5000);
  Pattern::random(Dtype::fp32, 1).write(second.data(), 5000);
  EXPECT_NE(first, second);
  uint32_t set = 0;
  for (const float value : first) {
    EXPECT_TRUE(value >= -1 && value < 1 && value != 0) << value;
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    set |= bits;
  }
  EXPECT_EQ(set & 0x807fffff, 0x807fffff) << "sign and mantissa";
}

TEST(ExerciseTest, EveryVerbAndDtypeIsCorrect) {
  for (const int ranks : {2, 3}) {
    run_thread_ranks(
        ranks,
        [](const std::shared_ptr<Communicator>& world) {
          for (int verb = 0; verb < kNumVerbs; ++verb) {
            for (int dtype = 0; dtype < kNumDtypes; ++dtype) {
              const BenchCase bench_case{static_cast<Verb>(verb), static_cast<Dtype>(dtype), 8 * 127, dtype % 2 == 0,
                                         works_in_place(static_cast<Verb>(verb)) && dtype % 3 == 0};
              Exercise exercise(*world, bench_case);
              EXPECT_EQ(exercise.check(), "") << name(bench_case.verb) << " " << name(bench_case.dtype);
              exercise.call();
              EXPECT_EQ(exercise.check(), "") << "after random numbers";
            }
          }
        },
        kSoon);
  }
}

TEST(ExerciseTest, FewerElementsThanRanks) {
  run_thread_ranks(
      3,
      [](const std::shared_ptr<Communicator>& world) {
        for (const Verb verb : {Verb::all_reduce, Verb::all_gather, Verb::reduce_scatter, Verb::all_to_all}) {
          EXPECT_EQ(Exercise(*world, {.verb = verb, .dtype = Dtype::fp32, .bytes = 4}).check(), "") << name(verb);
        }
      },
      kSoon);
}

TEST(ExerciseTest, RefusesImpossibleCases) {
  run_thread_ranks(1, [](const std::shared_ptr<Communicator>& world) {
    EXPECT_THROW(Exercise(*world, {.verb = Verb::all_reduce, .dtype = Dtype::fp32, .bytes = 8}), UsageError);
  });
  run_thread_ranks(2, [](const std::shared_ptr<Communicator>& world) {
    EXPECT_THROW(Exercise(*world, {.verb = Verb::all_reduce, .dtype = Dtype::fp32, .bytes = 6}), UsageError);
    EXPECT_THROW(Exercise(*world, {.verb = Verb::all_reduce, .dtype = Dtype::fp32, .bytes = 0}), UsageError);
    EXPECT_THROW(Exercise(*world, {.verb = Verb::send, .dtype = Dtype::fp32, .bytes = 8, .in_place = true}),
                 UsageError);
  });
}

TEST(Sampling, EveryRankHasTheSameFiguresOfTheSlowest) {
  std::mutex mutex;
  std::vector<Timing> all;
  int num_between = 0;
  const Stopwatch whole;
  run_thread_ranks(
      2,
      [&](const std::shared_ptr<Communicator>& world) {
        int between = 0;
        const auto call = [&] {
          if (world->rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        };
        const Timing timing =
            time_calls(*world, call, 1, {.block_s = 0.01, .num_blocks = 2, .between = [&] { ++between; }});
        const std::lock_guard lock(mutex);
        all.push_back(timing);
        num_between = between;
      },
      kSoon);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(std::memcmp(&all[0], &all[1], sizeof(Timing)), 0);
  EXPECT_GE(all[0].num_samples, 5);
  EXPECT_GE(num_between, 3);
  EXPECT_GE(all[0].min_us, 2000) << "rank 1 sleeps that long in each call";
  EXPECT_LE(all[0].min_us * static_cast<double>(all[0].num_samples * all[0].calls_per_sample), whole.us());
  EXPECT_LE(all[0].min_us, all[0].median_us);
  EXPECT_LE(all[0].median_us, all[0].p95_us);
  EXPECT_LE(all[0].p95_us, all[0].max_us);
}

TEST(Sampling, TheSlowestOfEachSample) {
  run_thread_ranks(2, [](const std::shared_ptr<Communicator>& world) {
    std::array<double, 2> values{1.0 + world->rank(), 5.0 - world->rank()};
    take_slowest(*world, values);
    EXPECT_THAT(values, ::testing::ElementsAre(2, 5));
  });
}

TEST(CorePingTest, AllRanksAgree) {
  std::mutex mutex;
  std::vector<std::optional<double>> all;
  const Stopwatch whole;
  run_thread_ranks(
      3,
      [&](const std::shared_ptr<Communicator>& world) {
        const std::vector<int> cores = usable_cores();
        CorePing ping(*world, 0, 1);
        const PinnedThread pinned(cores, world->rank());
        const auto first = ping.measure();
        const auto second = ping.measure();
        const std::lock_guard lock(mutex);
        all.insert(all.end(), {first, second});
      },
      kSoon);
  ASSERT_EQ(all.size(), 6U);
  for (size_t i = 2; i < all.size(); ++i) EXPECT_EQ(all[i], all[i % 2]);
  for (const std::optional<double>& ping_ns : {all[0], all[1]}) {
    if (!ping_ns) continue;  // the two ranks share a core
    EXPECT_GE(*ping_ns, 1) << "less than a read of the first cache";
    // A value comes from at least five chunks of 500 rounds, half of which take the median or longer.
    EXPECT_LE(*ping_ns * 3 * 500 * 2, whole.us() * 1e3);
  }
}

TEST(PinnedThreadTest, GivesTheCoresBack) {
  const std::vector<int> cores = usable_cores();
  ASSERT_FALSE(cores.empty());
  {
    const PinnedThread pinned(cores, static_cast<int>(cores.size()) + 1);
    EXPECT_THAT(usable_cores(), ::testing::ElementsAre(cores[1 % cores.size()]));
  }
  EXPECT_EQ(usable_cores(), cores);
}

TEST(MemoryRate, IsPossibleAndTheSameEverywhere) {
  run_thread_ranks(2, [](const std::shared_ptr<Communicator>& world) {
    constexpr double kBytes = 4096;
    const Stopwatch whole;
    const MemoryRates rates = measure_memory(*world, static_cast<int64_t>(kBytes));
    const double seconds = whole.us() / 1e6;
    std::array<double, 2> largest{rates.copy_gb_s, rates.add_gb_s};
    take_slowest(*world, largest);
    EXPECT_THAT(largest, ::testing::ElementsAre(rates.copy_gb_s, rates.add_gb_s));
    // Each loop runs at least nine times on both ranks, and the best is not slower than all of them together.
    EXPECT_GE(rates.copy_gb_s * 1e9 * seconds, 9 * 2 * 2 * kBytes);
    EXPECT_GE(rates.add_gb_s * 1e9 * seconds, 9 * 2 * 3 * kBytes);
    // Far more than a core reads from its first cache: the loop was not run.
    EXPECT_LE(rates.best_gb_s(), 20'000);
    EXPECT_EQ(rates.best_gb_s(), std::max(rates.copy_gb_s, rates.add_gb_s));
  });
}

TEST(Links, EachOrderedPair) {
  run_thread_ranks(
      3,
      [](const std::shared_ptr<Communicator>& world) {
        const Stopwatch whole;
        const std::vector<Link> links = measure_links(*world);
        const double whole_us = whole.us();
        std::vector<std::pair<int, int>> pairs;
        double least_us = 0;
        for (const Link& link : links) {
          pairs.emplace_back(link.from, link.to);
          EXPECT_TRUE(link.is_right);
          EXPECT_GE(link.latency_us, 0.001) << "less than a read of the first cache";
          EXPECT_LE(link.bandwidth_gb_s, 10'000) << "more than a core reads from its first cache";
          // Medians of three round trips at least, two of which take the median or longer.
          least_us += 2 * (2 * link.latency_us + (4 << 20) / link.bandwidth_gb_s / 1e3);
        }
        EXPECT_LE(least_us, whole_us);
        EXPECT_THAT(pairs, ::testing::ElementsAre(std::pair(0, 1), std::pair(0, 2), std::pair(1, 0), std::pair(1, 2),
                                                  std::pair(2, 0), std::pair(2, 1)));
      },
      kSoon);
}

TEST(Host, WarnsOfLimits) {
  HostFacts facts{.cores = {0, 1, 2, 3}, .num_cores_of_host = 4};
  EXPECT_THAT(limit_warnings(facts, 4), ::testing::IsEmpty());
  EXPECT_THAT(limit_warnings(facts, 5), ::testing::ElementsAre(HasSubstr("5 ranks share 4 cores")));
  facts.open_files_limit = 64;
  facts.address_limit_bytes = int64_t{1} << 30;
  facts.memfd_error = "Operation not permitted";
  facts.pidfd_error = "Function not implemented";
  facts.dev_shm_bytes = 64 << 20;
  facts.memory_bytes = int64_t{8} << 30;
  facts.memory_limit_bytes = int64_t{1} << 30;
  EXPECT_THAT(limit_warnings(facts, 2),
              ::testing::UnorderedElementsAre(HasSubstr("ulimit -n 64"), HasSubstr("ulimit -v 1.0 GiB"),
                                              HasSubstr("memfd_create: Operation not permitted"),
                                              HasSubstr("pidfd_open: Function not implemented"),
                                              HasSubstr("/dev/shm has 64.0 MiB"), HasSubstr("1.0 GiB of 8.0 GiB")));
}

TEST(Host, ReadsTheFactsOfThisHost) {
  const HostFacts facts = read_host_facts();
  EXPECT_FALSE(facts.name.empty());
  EXPECT_EQ(facts.cores, usable_cores());
  EXPECT_EQ(facts.num_cores_of_host, num_lines("/proc/cpuinfo", "processor"));
  EXPECT_EQ(facts.memory_bytes, memory_of_system());
  EXPECT_EQ(facts.memfd_error, "");
  EXPECT_THAT(facts.interfaces, ::testing::Contains(::testing::Field(&NetworkInterface::name, "lo")));
}

}  // namespace
}  // namespace caravan::measure::measure_test
