#include <algorithm>
#include <numeric>

#include "caravan/base/error.h"
#include "tests/comm/reference.h"
#include "tests/comm/suites.h"

namespace caravan::testing::splits_test {
namespace {

/// The world ranks of the ranks of `comm`, in its order.
std::vector<int> gathered_world_ranks(Communicator& comm, int world_rank) {
  std::vector<int> ranks(comm.size());
  comm.all_gather({&world_rank, 1, Dtype::int32}, {ranks.data(), comm.size(), Dtype::int32, {}});
  return ranks;
}

std::vector<int> ranks_with(int size, int modulus, int remainder) {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) {
    if (rank % modulus == remainder) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace

TEST_P(Splits, DisjointParts) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    const std::vector<int> members = ranks_with(world->size(), 2, world->rank() % 2);
    const auto part = world->split(members, "half");
    EXPECT_EQ(part->name(), "half");
    EXPECT_EQ(part->backend(), world->backend());
    EXPECT_EQ(part->size(), static_cast<int>(members.size()));
    EXPECT_EQ(members[part->rank()], world->rank());
    EXPECT_EQ(gathered_world_ranks(*part, world->rank()), members);
    EXPECT_EQ(gathered_world_ranks(*world, world->rank()), ranks_with(world->size(), 1, 0));
  });
}

TEST_P(Splits, MembersInAnotherOrder) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    std::vector<int> members = ranks_with(world->size(), 1, 0);
    std::ranges::reverse(members);
    const auto reversed = world->split(members, "reversed");
    EXPECT_EQ(reversed->rank(), world->size() - 1 - world->rank());
    EXPECT_EQ(gathered_world_ranks(*reversed, world->rank()), members);
    Data data = input_of(reversed->rank(), 5000, Dtype::fp16);
    reversed->all_reduce(data.buffer(), data.buffer(), ReduceOp::sum);
    EXPECT_TRUE(data == reduced(inputs_of(world->size(), 5000, Dtype::fp16), ReduceOp::sum));
  });
}

/// A mesh of rows and columns (the last may be incomplete), and parts of parts.
TEST_P(Splits, OfSplits) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    const int row = world->rank() / 2;
    std::vector<int> row_members;
    for (int rank = 2 * row; rank < std::min(2 * row + 2, world->size()); ++rank) row_members.push_back(rank);
    const auto rows = world->split(row_members, "row");
    const auto columns = world->split(ranks_with(world->size(), 2, world->rank() % 2), "column");
    EXPECT_EQ(gathered_world_ranks(*rows, world->rank()), row_members);

    const auto first = columns->split(ranks_with(columns->size(), 2, columns->rank() % 2), "part of a column");
    const std::vector<int> together = gathered_world_ranks(*first, world->rank());
    EXPECT_EQ(together[first->rank()], world->rank());
    for (const int rank : together) EXPECT_EQ(rank % 4, world->rank() % 4);

    const std::vector<int> itself{0};
    const auto alone = rows->split(std::vector<int>{rows->rank()}, "alone")->split(itself, "alone again");
    EXPECT_EQ(gathered_world_ranks(*alone, 7), std::vector<int>{7});
  });
}

/// The resources of a destroyed communicator are used again; the new one must not see old data.
TEST_P(Splits, ManyOneAfterAnother) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    for (int turn = 0; turn < 30; ++turn) {
      const auto part = world->split(ranks_with(world->size(), 1 + turn % 3, world->rank() % (1 + turn % 3)), "turn");
      Data data = input_of(part->rank(), 100, Dtype::int64, turn);
      part->all_reduce(data.buffer(), data.buffer(), ReduceOp::sum);
      EXPECT_TRUE(data == reduced(inputs_of(part->size(), 100, Dtype::int64, turn), ReduceOp::sum)) << turn;
      if (part->size() > 1 && part->rank() < 2) {
        Data letter = input_of(part->rank(), 10, Dtype::int64, turn);
        Data answer(10, Dtype::int64);
        part->send(letter.const_buffer(), 1 - part->rank());
        part->recv(answer.buffer(), 1 - part->rank());
        EXPECT_TRUE(answer == input_of(1 - part->rank(), 10, Dtype::int64, turn)) << turn;
      }
    }
  });
}

TEST_P(Splits, PartOutlivesItsParent) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    auto all = world->split(ranks_with(world->size(), 1, 0), "all");
    auto again = all->split(ranks_with(world->size(), 1, 0), "again");
    all.reset();
    EXPECT_EQ(gathered_world_ranks(*again, world->rank()), ranks_with(world->size(), 1, 0));
  });
}

TEST_P(Splits, WrongMembersAreRefused) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    const int n = world->size();
    const auto split = [&](std::vector<int> members) {
      return error_of<UsageError>([&] { world->split(members, "wrong"); });
    };
    EXPECT_THAT(split({n}), ::testing::HasSubstr("there is no rank " + std::to_string(n)));
    EXPECT_THAT(split({world->rank(), world->rank()}), ::testing::HasSubstr("is listed twice"));
    EXPECT_THAT(split({}), ::testing::HasSubstr("itself is not in"));
    if (n == 1) return;
    EXPECT_THAT(split({(world->rank() + 1) % n}), ::testing::HasSubstr("itself is not in"));

    // Rank 0 passes itself only, the others pass all ranks.
    const std::vector<int> members = world->rank() == 0 ? std::vector<int>{0} : ranks_with(n, 1, 0);
    const std::string error = split(members);
    EXPECT_THAT(error, ::testing::HasSubstr("rank 0 gives the members [0], rank 1 gives [0, 1"));
    EXPECT_EQ(gathered_world_ranks(*world, world->rank()), ranks_with(n, 1, 0)) << "the parent goes on";
  });
}

/// A rank that splits has an outstanding recv whose sender sends only after its split, and a collective of another
/// communicator that the other ranks call later.
TEST_P(Splits, NeedNothingElseToBeComplete) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    const auto side = world->split(ranks_with(world->size(), 1, 0), "side");
    std::vector<int> half;
    for (int rank = 0; rank < world->size(); ++rank) {
      if (rank / 2 == world->rank() / 2) half.push_back(rank);
    }
    for (const auto& comm :
         {world, world->split(half, "half"), world->split(ranks_with(world->size(), 2, world->rank() % 2), "other")}) {
      int64_t number = 0;
      Work received;
      Work passed;
      if (comm->rank() == 0) {
        if (comm->size() > 1) received = comm->recv_async({&number, 1, Dtype::int64, {}}, 1, "early");
        passed = side->barrier_async();
      }
      const auto part = comm->split(ranks_with(comm->size(), 1, 0), "part");
      if (comm->rank() != 0) passed = side->barrier_async();
      if (comm->rank() == 1) {
        number = 42;
        comm->send({&number, 1, Dtype::int64}, 0, "early");
      }
      received.wait();
      passed.wait();
      EXPECT_EQ(number, comm->rank() < 2 && comm->size() > 1 ? 42 : 0);
      part->barrier();
    }
  });
}

}  // namespace caravan::testing::splits_test
