#include "caravan/comm/backends/mpi/mpi.h"

#include <cstdlib>
#include <numeric>
#include <vector>

#include "caravan/base/error.h"
#include "caravan/comm/backends/mpi/library.h"
#include "tests/comm/backends/mpi_ranks.h"

namespace caravan::mpi_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string refusal(const std::string& requested, const std::string& launcher, const std::vector<std::string>& built) {
  return testing::error_of<UsageError>([&] { mpi::choose(requested, launcher, built); });
}

TEST(MpiLibrary, IsTheLaunchersUnlessOneIsRequested) {
  const std::vector<std::string> built = {"openmpi", "mpich"};
  EXPECT_EQ(mpi::choose("", "mpich", built), "mpich");
  EXPECT_EQ(mpi::choose("", "openmpi", built), "openmpi");
  EXPECT_EQ(mpi::choose("", "", built), "openmpi");
  EXPECT_EQ(mpi::choose("mpich", "openmpi", built), "mpich");
  EXPECT_EQ(mpi::choose("/opt/x.so", "openmpi", built), "/opt/x.so");
}

TEST(MpiLibrary, MissingOneNamesThoseThatAreBuilt) {
  EXPECT_THAT(refusal("", "mpich", {"openmpi"}),
              AllOf(HasSubstr("the launcher is that of mpich, and it was built only for openmpi"),
                    HasSubstr("-DCARAVAN_MPI=mpich")));
  EXPECT_THAT(refusal("mpch", "", {"openmpi", "mpich"}), AllOf(HasSubstr("no \"mpch\""), HasSubstr("set it to mpich")));
  EXPECT_THAT(refusal("", "", {}), HasSubstr("built for no MPI"));
}

/// The pieces of a large message arrive in order even if messages with other tags are in flight.
TEST(MpiTransport, CutsLargeMessages) {
  const RankInfo info = RankInfo::from_environment();
  if (info.world_size == 1) GTEST_SKIP() << "needs mpirun";
  const auto transport = mpi::session(info).connect(1000);
  const int next = (info.rank + 1) % info.world_size;
  const int previous = (info.rank + info.world_size - 1) % info.world_size;
  for (const size_t bytes : {1, 999, 1000, 1001, 123'456}) {
    std::vector<uint8_t> sent(bytes);
    std::iota(sent.begin(), sent.end(), static_cast<uint8_t>(info.rank));
    std::vector<uint8_t> received(bytes);
    const uint8_t other = 7;
    uint8_t received_other = 0;
    const auto bytes_of = [](auto* data) { return reinterpret_cast<std::byte*>(data); };
    const auto later = transport->recv(bytes_of(&received_other), 1, previous, 2);
    const auto recv = transport->recv(bytes_of(received.data()), bytes, previous, 1);
    const auto send = transport->send(reinterpret_cast<const std::byte*>(sent.data()), bytes, next, 1);
    const auto send_other = transport->send(reinterpret_cast<const std::byte*>(&other), 1, next, 2);
    for (const auto* transfer : {&recv, &send, &later, &send_other}) EXPECT_TRUE((*transfer)->wait());
    std::vector<uint8_t> expected(bytes);
    std::iota(expected.begin(), expected.end(), static_cast<uint8_t>(previous));
    EXPECT_EQ(received, expected) << bytes;
    EXPECT_EQ(received_other, 7);
  }
}

/// Where the launcher's variables and the MPI of this process disagree, nothing is connected.
TEST(MpiLibrary, RefusesTheWrongLauncher) {
  if (mpi::built().empty()) GTEST_SKIP() << "no MPI was configured";
  RankInfo info = RankInfo::from_environment();
  ++info.world_size;
  const std::string error = testing::error_of<UsageError>([&] { mpi::session(info); });
  EXPECT_THAT(error, AllOf(HasSubstr("the launcher that it is rank"),
                           HasSubstr("of " + std::to_string(info.world_size)), HasSubstr("CARAVAN_MPI_LIBRARY")));
}

}  // namespace
}  // namespace caravan::mpi_test
