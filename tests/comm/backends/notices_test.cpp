#include "caravan/comm/backends/messages/failure/notices.h"

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/store/rendezvous.h"
#include "tests/comm/store/counting_store.h"

namespace caravan::messages::notices_test {
namespace {

using testing::CountingStore;

Descriptor collective(uint64_t sequence) {
  Descriptor call;
  call.verb = static_cast<uint8_t>(Verb::barrier);
  call.sequence = sequence;
  return call;
}

CallCounts counts_of(int size, int collectives) {
  CallCounts counts(size);
  for (int i = 0; i < collectives; ++i) counts.count(collective(0));
  return counts;
}

/// A rank that claims a failure writes its text a moment later; if that takes long, the others must not take the store
/// for lost.
TEST(Notices, ALateTextIsReadLater) {
  const auto store = local_store();
  Notices notices(store);
  store->add("failure/world/claims", 1);  // another rank, which is slow
  EXPECT_EQ(notices.publish_failure(Notices::kWorld, "an echo"), "an echo");
  EXPECT_EQ(notices.failure(Notices::kWorld), "");
  store->set("failure/world", "the disk is full");
  EXPECT_EQ(notices.failure(Notices::kWorld), "the disk is full");
}

TEST(Notices, TheFirstTextWins) {
  const auto store = local_store();
  Notices first(store);
  Notices second(store);
  EXPECT_EQ(first.publish_failure("dp", "cause"), "cause");
  EXPECT_EQ(second.publish_failure("dp", "echo"), "cause");
  EXPECT_EQ(second.failure("dp"), "cause");
  EXPECT_EQ(second.failure("tp"), "");
}

TEST(Notices, ALostStoreIsAskedOnce) {
  const auto store = std::make_shared<CountingStore>();
  store->is_lost = true;
  Notices notices(store);
  EXPECT_EQ(notices.failure("dp"), "");
  EXPECT_EQ(notices.publish_failure("dp", "own"), "own");
  EXPECT_EQ(notices.find_departed("dp", GroupInfo::of_world(0, 2), CallCounts(2), collective(0)), -1);
  EXPECT_EQ(store->num_calls, 1);
}

TEST(Notices, ARankThatHasLeftIsFoundByWhatItHasNotIssued) {
  const auto store = std::make_shared<CountingStore>();
  Notices notices(store);
  const CallCounts counts = counts_of(3, 2);
  notices.publish_departure("dp", GroupInfo::of_world(2, 3), &counts);
  const GroupInfo own = GroupInfo::of_world(0, 3);
  EXPECT_EQ(notices.find_departed("dp", own, CallCounts(3), collective(1)), -1) << "it has issued that";
  EXPECT_EQ(notices.find_departed("dp", own, CallCounts(3), collective(2)), 2);
  Descriptor recv;
  recv.verb = static_cast<uint8_t>(Verb::recv);
  recv.root = 1;
  EXPECT_EQ(notices.find_departed("dp", own, CallCounts(3), recv), -1) << "rank 1 is still there";
  recv.root = 2;
  EXPECT_EQ(notices.find_departed("dp", own, CallCounts(3), recv), 2);
}

TEST(Notices, TheLastRankRemovesTheKeys) {
  const auto store = std::make_shared<CountingStore>();
  Notices notices(store);
  const CallCounts counts = counts_of(3, 1);
  notices.publish_failure("dp", "one rank failed");
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_GT(store->num_keys(), rank == 0 ? 0U : 2U);
    notices.publish_progress("dp", rank, counts);
    notices.publish_departure("dp", GroupInfo::of_world(rank, 3), rank == 1 ? nullptr : &counts);
  }
  EXPECT_EQ(store->num_keys(), 0U);
}

}  // namespace
}  // namespace caravan::messages::notices_test
