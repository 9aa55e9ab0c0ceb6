#include "caravan/comm/backends/hierarchical/hierarchical.h"

#include <csignal>
#include <numeric>
#include <thread>
#include <unistd.h>

#include "caravan/base/error.h"
#include "caravan/comm/backends/hierarchical/parts.h"
#include "caravan/comm/backends/hierarchical/topology.h"
#include "tests/comm/backends/hierarchical_ranks.h"
#include "tests/comm/reference.h"
#include "tests/comm/world/world_threads.h"
#include "tests/ranks/process_ranks.h"

namespace caravan::testing::hierarchical_test {
namespace {

using hierarchical::Topology;
using ::testing::HasSubstr;
using Ints = std::vector<int>;

const CommOptions kOptions{.timeout = std::chrono::seconds(20)};

TEST(Topology, HostsComeInTheOrderOfTheirFirstRanks) {
  const Topology topology(Ints{7, 3, 7, 3, 9});
  EXPECT_EQ(topology.host, (Ints{0, 1, 0, 1, 2}));
  EXPECT_EQ(topology.local_rank, (Ints{0, 0, 1, 1, 0}));
  EXPECT_EQ(topology.ranks, (std::vector<Ints>{{0, 2}, {1, 3}, {4}}));
  EXPECT_FALSE(topology.is_uniform());
  EXPECT_FALSE(topology.is_contiguous());
  EXPECT_EQ(topology.cross_ranks(0), (Ints{0, 1, 4}));
  EXPECT_EQ(topology.cross_ranks(1), (Ints{2, 3}));
  EXPECT_EQ(topology.by_host(), (Ints{0, 2, 1, 3, 4}));
}

TEST(Topology, LocalRanksOfUniformHosts) {
  const Topology topology(Ints{0, 0, 1, 1});
  EXPECT_TRUE(topology.is_uniform());
  EXPECT_TRUE(topology.is_contiguous());
  EXPECT_EQ(topology.by_local_rank(), (Ints{0, 2, 1, 3}));
}

TEST(HierarchicalParts, RoundTripInAnyOrder) {
  const std::vector<int64_t> counts{2, 0, 3, 1};
  const Ints order{3, 1, 0, 2};
  const Data in = input_of(0, 6, Dtype::int64);
  Data packed(6, Dtype::int64);
  Data out(6, Dtype::int64);
  hierarchical::pack(in.bytes(), counts, order, 8, packed.bytes());
  EXPECT_EQ(packed.copy_of_part(0, 1), in.copy_of_part(5, 1));
  EXPECT_EQ(packed.copy_of_part(1, 2), in.copy_of_part(0, 2));
  hierarchical::unpack(packed.bytes(), counts, order, 8, out.bytes());
  EXPECT_EQ(out, in);
}

TEST(HierarchicalWorld, RefusesAnUnknownBackEndBetweenHosts) {
  const std::string error = error_of<UsageError>([] { make_hierarchical_world({}, local_store(), {}, "glo"); });
  EXPECT_THAT(error, HasSubstr("choose gloo"));
}

/// The sum of the first host is 1 + 2^-9, which bf16 cannot represent, that of the second is -1. Rounded before the
/// exchange between hosts, the result would be 0.
TEST(HierarchicalWorld, HalfSumsAreRoundedOnce) {
  run_hierarchical_threads(
      {2, 2},
      [](const std::shared_ptr<Communicator>& world) {
        for (const int64_t count : {5, 100'000}) {  // over the leaders, over all local ranks
          std::vector<uint16_t> data(static_cast<size_t>(count));
          constexpr uint16_t kTerms[] = {0x3f80, 0x3b00, 0xbf80, 0};  // 1, 2^-9, -1, 0
          for (uint16_t& value : data) value = kTerms[world->rank()];
          const Buffer buffer{data.data(), count, Dtype::bf16, {}};
          world->all_reduce(buffer, buffer, ReduceOp::sum);
          for (const uint16_t value : data) ASSERT_EQ(value, 0x3b00);
        }
      },
      kOptions);
}

/// Members in an order that mixes hosts, and parts of each kind: on one host, across hosts, single ranks.
TEST(HierarchicalWorld, PartsThatMixHosts) {
  run_hierarchical_threads(
      {2, 2},
      [](const std::shared_ptr<Communicator>& world) {
        const std::vector<Ints> all{{0, 2, 1, 3}, {3, 0, 2, 1}, {2, 3, 1, 0}};
        for (const Ints& members : all) {
          const auto mixed = world->split(members, "mixed");
          const std::vector<int64_t> counts{3, 0, 2, 5};
          const int64_t own = counts[static_cast<size_t>(mixed->rank())];
          Data gathered(10, Dtype::int32);
          const Data given = input_of(mixed->rank(), own, Dtype::int32);
          mixed->all_gather(given.const_buffer(), gathered.buffer(), counts);
          Data expected(0, Dtype::int32);
          for (int rank = 0; rank < 4; ++rank) {
            expected.append(input_of(rank, counts[static_cast<size_t>(rank)], Dtype::int32));
          }
          EXPECT_EQ(gathered, expected);
          Data scattered(own, Dtype::bf16);
          const std::vector<Data> inputs = inputs_of(4, 10, Dtype::bf16);
          mixed->reduce_scatter(inputs[static_cast<size_t>(mixed->rank())].const_buffer(), scattered.buffer(),
                                ReduceOp::sum, counts);
          const int64_t begin = std::accumulate(counts.begin(), counts.begin() + mixed->rank(), int64_t{0});
          EXPECT_EQ(scattered, reduced(inputs, ReduceOp::sum).copy_of_part(begin, own));
        }
        for (const Ints& members : {Ints{world->rank() / 2 * 2, world->rank() / 2 * 2 + 1},
                                    Ints{world->rank() % 2, world->rank() % 2 + 2}, Ints{world->rank()}}) {
          const auto part = world->split(members, "part");
          int64_t sum = world->rank();
          part->all_reduce({&sum, 1, Dtype::int64}, {&sum, 1, Dtype::int64, {}}, ReduceOp::sum);
          EXPECT_EQ(sum, std::accumulate(members.begin(), members.end(), int64_t{0}));
        }
      },
      kOptions);
}

/// A store that takes its time to publish failures.
class SlowStore final : public Store {
 public:
  explicit SlowStore(std::shared_ptr<Store> store) : store_(std::move(store)) {}
  void set(std::string_view key, std::string_view value) override {
    delay(key);
    store_->set(key, value);
  }
  int64_t add(std::string_view key, int64_t amount) override {
    delay(key);
    return store_->add(key, amount);
  }
  std::string get(std::string_view key, std::chrono::milliseconds timeout) override {
    return store_->get(key, timeout);
  }
  bool has(std::string_view key) override { return store_->has(key); }
  void remove(std::string_view key) override { store_->remove(key); }

 private:
  static void delay(std::string_view key) {
    if (key.find("failure/") != std::string_view::npos) std::this_thread::sleep_for(std::chrono::milliseconds(150));
  }
  std::shared_ptr<Store> store_;
};

/// Rank 0 learns from shared memory that rank 1 has failed long before rank 1 publishes why. That ends their group, and
/// nothing else.
TEST(HierarchicalWorld, ASlowReasonDoesNotEndTheWorld) {
  const MakeWorld make = hierarchical_world({2, 1});
  const auto slow = [&](const RankInfo& info, std::shared_ptr<Store> store, const CommOptions& options) {
    if (info.rank == 1) store = std::make_shared<SlowStore>(store);
    return make(info, store, options);
  };
  run_thread_worlds(
      3,
      [](const std::shared_ptr<Communicator>& world) {
        const auto group = world->split(Ints{0, 1, 2}, "group");
        std::vector<float> data(8);
        const std::string error = error_of<CommError>([&] {
          if (group->rank() == 0) group->send({data.data(), 8, Dtype::fp32}, 1);
          if (group->rank() == 1) group->recv({data.data(), 7, Dtype::fp32, {}}, 0);
          group->barrier();
        });
        EXPECT_THAT(error, HasSubstr("recv fp32 [7] from 0"));
        world->barrier();
      },
      kOptions, slow);
}

/// Rank 3, on the second host, is killed: the ranks of all hosts name it by its world rank.
TEST(HierarchicalWorld, LostRankIsNamedOnAllHosts) {
  const std::vector<RankEnd> ends = run_hierarchical_processes(
      {2, 2},
      [](const std::shared_ptr<Communicator>& world) {
        world->barrier();
        if (world->rank() == 3) raise(SIGKILL);
        const std::string error = error_of<CommError>([&] {
          while (true) world->barrier("after the loss");
        });
        EXPECT_THAT(error, HasSubstr("rank 3 of the world is lost"));
      },
      kOptions);
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_EQ(ends[static_cast<size_t>(rank)].exit_code, 0) << ends[static_cast<size_t>(rank)].output;
  EXPECT_EQ(ends[3].signal, SIGKILL);
}

}  // namespace
}  // namespace caravan::testing::hierarchical_test
