#include "caravan/comm/backends/gloo/gloo.h"

#include <thread>

#include "caravan/base/error.h"
#include "caravan/comm/backends/gloo/fact.h"
#include "caravan/comm/store/wire/host_address.h"
#include "tests/ranks/rank_case.h"

namespace caravan::gloo_test {
namespace {

using ::testing::HasSubstr;

TEST(Gloo, RanksThatDoNotJoinAreNamed) {
  RankInfo info;
  info.world_size = info.local_world_size = 3;
  const CommOptions options{.timeout = std::chrono::milliseconds(100)};
  const std::string error = testing::error_of<CommError>([&] { make_gloo_world(info, local_store(), options); });
  EXPECT_THAT(error, HasSubstr("ranks 1, 2 of 3 did not join within 5 s"));
}

TEST(Gloo, SeveralWorldsInOneStore) {
  const auto store = local_store();
  const auto run = [&](int rank) {
    RankInfo info;
    info.rank = rank;
    info.world_size = info.local_world_size = 2;
    const CommOptions options{.timeout = std::chrono::seconds(20)};
    const auto first = make_gloo_world(info, store, options);
    const auto second = make_gloo_world(info, store, options);
    int64_t number = rank;
    const Buffer buffer{&number, 1, Dtype::int64, {}};
    first->all_reduce(buffer, buffer, ReduceOp::sum);
    second->all_reduce(buffer, buffer, ReduceOp::sum);
    EXPECT_EQ(number, 2);
  };
  std::thread other(run, 1);
  run(0);
  other.join();
}

TEST(Gloo, OwnAddressIsTheOneTowardsTheMaster) {
  RankInfo info;
  info.world_size = info.local_world_size = 2;
  info.master_port = 29500;
  EXPECT_EQ(own_address(info), "127.0.0.1");
  info.master_addr = "no-such-host.invalid";
  EXPECT_THAT(testing::error_of<UsageError>([&] { own_address(info); }), HasSubstr("no-such-host.invalid"));
}

TEST(Gloo, PlainFactLeavesOutSourceLinesAndAdvice) {
  EXPECT_EQ(gloo::plain_fact("[/gloo/pair.cc:537] Read error. This is typically caused by hanging"), "Read error");
  EXPECT_EQ(gloo::plain_fact("lost\nException raised from"), "lost");
  EXPECT_EQ(gloo::plain_fact("[odd"), "[odd");
  EXPECT_EQ(gloo::plain_fact(""), "");
}

}  // namespace
}  // namespace caravan::gloo_test
