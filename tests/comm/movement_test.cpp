#include <cstring>
#include <numeric>
#include <string>

#include "tests/comm/reference.h"
#include "tests/comm/suites.h"

namespace caravan::testing::movement_test {
namespace {

int64_t sum_of(std::span<const int64_t> counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }
int64_t begin_of(std::span<const int64_t> counts, int rank) { return sum_of(counts.first(rank)); }

void check_all_gather(Communicator& comm, Dtype dtype, const std::vector<int64_t>& counts, bool give) {
  SCOPED_TRACE(std::string(name(dtype)) + " " + std::to_string(sum_of(counts)));
  Data expected(0, dtype);
  for (int rank = 0; rank < comm.size(); ++rank) expected.append(input_of(rank, counts[rank], dtype));
  const Data in = input_of(comm.rank(), counts[comm.rank()], dtype);
  Data out(sum_of(counts), dtype);
  const std::span<const int64_t> given = give ? std::span<const int64_t>(counts) : std::span<const int64_t>();
  comm.all_gather(in.const_buffer(), out.buffer(), given);
  EXPECT_TRUE(out == expected);

  Data both(sum_of(counts), dtype);
  const Buffer own = both.part(begin_of(counts, comm.rank()), counts[comm.rank()]);
  if (own.count > 0) std::memcpy(own.data, in.bytes(), own.count * size_bytes(dtype));
  comm.all_gather(own, both.buffer(), given, "in place");
  EXPECT_TRUE(both == expected) << "in place";
}

/// What rank `from` sends to rank `to`.
Data letter(int from, int to, int64_t count, Dtype dtype) { return input_of(from, count, dtype, 17 * (to + 1)); }

/// counts[from][to], the same on every rank.
using Matrix = std::vector<std::vector<int64_t>>;

Matrix equal_matrix(int size, int64_t each) { return Matrix(size, std::vector<int64_t>(size, each)); }

/// With zeros, a row of zeros (a rank that sends nothing) and a column of zeros (a rank that receives nothing).
Matrix uneven_matrix(int size, int64_t scale) {
  Matrix counts(size, std::vector<int64_t>(size));
  for (int from = 0; from < size; ++from) {
    for (int to = 0; to < size; ++to)
      counts[from][to] = from == 1 || to == 2 ? 0 : scale * ((from + 2 * to) % 3) + from;
  }
  return counts;
}

void check_all_to_all(Communicator& comm, Dtype dtype, const Matrix& counts, bool give) {
  SCOPED_TRACE(std::string(name(dtype)) + " " + std::to_string(counts[0][0]));
  Data in(0, dtype);
  Data expected(0, dtype);
  std::vector<int64_t> received;
  for (int peer = 0; peer < comm.size(); ++peer) {
    in.append(letter(comm.rank(), peer, counts[comm.rank()][peer], dtype));
    expected.append(letter(peer, comm.rank(), counts[peer][comm.rank()], dtype));
    received.push_back(counts[peer][comm.rank()]);
  }
  Data out(sum_of(received), dtype);
  if (give) {
    comm.all_to_all(in.const_buffer(), out.buffer(), counts[comm.rank()], received);
  } else {
    comm.all_to_all(in.const_buffer(), out.buffer());
  }
  EXPECT_TRUE(out == expected);
}

void check_broadcast(Communicator& comm, Dtype dtype, int64_t count, int root) {
  SCOPED_TRACE(std::string(name(dtype)) + " " + std::to_string(count) + " root " + std::to_string(root));
  Data data = input_of(comm.rank(), count, dtype);
  comm.broadcast(data.buffer(), root);
  EXPECT_TRUE(data == input_of(root, count, dtype));
}

}  // namespace

TEST_P(Movement, EveryDtype) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    for (const Dtype dtype : kDtypes) {
      for (const int64_t count : {0, 1, 1037}) {
        check_all_gather(*world, dtype, std::vector<int64_t>(world->size(), count), false);
        check_all_to_all(*world, dtype, equal_matrix(world->size(), count), false);
        for (int root = 0; root < world->size(); ++root) check_broadcast(*world, dtype, count, root);
      }
    }
  });
}

TEST_P(LargeSizes, Movement) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    check_all_gather(*world, Dtype::fp32, std::vector<int64_t>(world->size(), 300'001), false);
    check_all_gather(*world, Dtype::boolean, std::vector<int64_t>(world->size(), 600'001), true);
    check_all_to_all(*world, Dtype::bf16, equal_matrix(world->size(), 300'001), false);
    check_broadcast(*world, Dtype::int64, 300'001, world->size() - 1);
    check_broadcast(*world, Dtype::fp16, 900'001, 0);
    check_all_gather(*world, Dtype::fp64, uneven_counts(world->size(), 60'000), true);
    check_all_to_all(*world, Dtype::fp32, uneven_matrix(world->size(), 60'000), true);
  });
}

TEST_P(Movement, UnevenParts) {
  GetParam().run([](const std::shared_ptr<Communicator>& world) {
    for (const int64_t scale : {1, 100}) {
      check_all_gather(*world, Dtype::fp64, uneven_counts(world->size(), scale), true);
      check_all_gather(*world, Dtype::uint8, uneven_counts(world->size(), scale), true);
      check_all_to_all(*world, Dtype::fp32, uneven_matrix(world->size(), scale), true);
      check_all_to_all(*world, Dtype::int64, uneven_matrix(world->size(), scale), true);
    }
    check_all_gather(*world, Dtype::fp32, std::vector<int64_t>(world->size()), true);
    check_all_to_all(*world, Dtype::fp32, equal_matrix(world->size(), 0), true);
  });
}

}  // namespace caravan::testing::movement_test
