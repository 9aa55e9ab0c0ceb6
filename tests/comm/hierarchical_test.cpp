#include "caravan/comm/hierarchical.h"

#include <csignal>
#include <numeric>
#include <unistd.h>

#include "caravan/base/error.h"
#include "caravan/comm/hierarchical/parts.h"
#include "caravan/comm/hierarchical/topology.h"
#include "tests/comm/hierarchical_ranks.h"
#include "tests/comm/reference.h"
#include "tests/ranks/process_ranks.h"

namespace caravan::testing {
namespace {

using hierarchical::Topology;
using ::testing::HasSubstr;
using Ints = std::vector<int>;

const CommOptions kOptions{.timeout = std::chrono::seconds(20)};

TEST(Topology, HostsComeInTheOrderOfTheirFirstRanks) {
  const Topology topology(Ints{7, 3, 7, 3, 9});
  EXPECT_EQ(topology.host, (Ints{0, 1, 0, 1, 2}));
  EXPECT_EQ(topology.place, (Ints{0, 0, 1, 1, 0}));
  EXPECT_EQ(topology.ranks, (std::vector<Ints>{{0, 2}, {1, 3}, {4}}));
  EXPECT_FALSE(topology.is_uniform());
  EXPECT_FALSE(topology.is_contiguous());
  EXPECT_EQ(topology.level(0), (Ints{0, 1, 4}));
  EXPECT_EQ(topology.level(1), (Ints{2, 3}));
  EXPECT_EQ(topology.by_host(), (Ints{0, 2, 1, 3, 4}));
}

TEST(Topology, PlacesOfUniformHosts) {
  const Topology topology(Ints{0, 0, 1, 1});
  EXPECT_TRUE(topology.is_uniform());
  EXPECT_TRUE(topology.is_contiguous());
  EXPECT_EQ(topology.by_place(), (Ints{0, 2, 1, 3}));
}

TEST(HierarchicalParts, ComeBackFromAnyOrder) {
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

TEST(HierarchicalWorld, RefusesWhatIsNoBackEndBetweenHosts) {
  const std::string error = error_of<UsageError>([] { make_hierarchical_world({}, local_store(), {}, "glo"); });
  EXPECT_THAT(error, HasSubstr("choose gloo"));
}

/// The first host has 1 + 2^-9, which is no number of bf16, the second -1: rounded on the way nothing would be left.
TEST(HierarchicalWorld, HalfSumsAreRoundedOnce) {
  run_hierarchical_ranks(
      {2, 2},
      [](const std::shared_ptr<Communicator>& world) {
        for (const int64_t count : {5, 100'000}) {  // by leaders, by levels
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

/// Members in an order that mixes hosts, and parts of each kind: within a host, across, single ranks.
TEST(HierarchicalWorld, PartsThatMixHosts) {
  run_hierarchical_ranks(
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

/// Rank 3, on the second host, is killed: both ranks of the first learn which, by the world's number.
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
}  // namespace caravan::testing
