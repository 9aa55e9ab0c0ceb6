#include "caravan/comm/store/store.h"

#include <gmock/gmock.h>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/store/rendezvous.h"

namespace caravan::store_test {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr milliseconds kTimeout{20'000};

enum class Kind { local, served, prefixed };

/// The contract of every store: within the process, and behind a server with a client for each thread.
class StoreContract : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (GetParam() == Kind::served) {
      server_ = std::make_unique<StoreServer>("127.0.0.1", 0);
    } else {
      shared_ = local_store();
    }
  }

  /// The store as another rank sees it.
  std::shared_ptr<Store> client() {
    if (server_) return connect_store("127.0.0.1", server_->port(), kTimeout);
    return GetParam() == Kind::prefixed ? prefixed(shared_, "job") : shared_;
  }

  std::unique_ptr<StoreServer> server_;
  std::shared_ptr<Store> shared_;
};

TEST_P(StoreContract, KeepsAnyBytesUnderAnyKey) {
  const auto one = client();
  const auto two = client();
  std::string every_byte;
  for (int i = 0; i < 1024; ++i) every_byte.push_back(static_cast<char>(i));
  EXPECT_FALSE(two->has("a"));
  one->set("a", every_byte);
  one->set("", "empty key");
  one->set(every_byte, "");
  EXPECT_TRUE(two->has("a"));
  EXPECT_EQ(two->get("a", kTimeout), every_byte);
  EXPECT_EQ(two->get("", kTimeout), "empty key");
  EXPECT_EQ(two->get(every_byte, milliseconds(0)), "");
  two->set("a", "new");
  EXPECT_EQ(one->get("a", kTimeout), "new");
  EXPECT_FALSE(one->has("b"));
}

TEST_P(StoreContract, GetWaitsForTheKey) {
  constexpr int kWaiters = 6;
  std::vector<std::thread> waiters;
  std::atomic<int> waiting{0};
  std::vector<std::string> seen(kWaiters);
  for (int i = 0; i < kWaiters; ++i) {
    waiters.emplace_back([&, i, store = client()] {
      ++waiting;
      seen[i] = store->get(i % 2 == 0 ? "even" : "odd", kTimeout);
    });
  }
  while (waiting < kWaiters) std::this_thread::yield();
  const auto setter = client();
  setter->set("odd", "1");
  setter->add("even", 2);
  for (auto& waiter : waiters) waiter.join();
  EXPECT_THAT(seen, ::testing::ElementsAre("2", "1", "2", "1", "2", "1"));
}

TEST_P(StoreContract, OneClientServesSeveralThreadsWhileOneWaits) {
  const auto store = client();
  std::thread waiter([&] { EXPECT_EQ(store->get("late", kTimeout), "done"); });
  for (int i = 0; i < 50; ++i) EXPECT_EQ(store->add("counter", 1), i + 1);
  store->set("late", "done");
  waiter.join();
}

TEST_P(StoreContract, TimeOutNamesTheKey) {
  const auto store = client();
  EXPECT_THAT([&] { store->get("never/set", milliseconds(40)); },
              ThrowsMessage<CommError>(AllOf(HasSubstr("never/set"), HasSubstr("0.0 s"), HasSubstr("do: "))));
  EXPECT_THAT([&] { store->get("never/set", milliseconds(-5)); }, ThrowsMessage<CommError>(HasSubstr("never/set")));
  store->set("never/set", "works after a time-out");
  EXPECT_EQ(store->get("never/set", milliseconds::max()), "works after a time-out");
}

TEST_P(StoreContract, AddFromEightThreadsLosesNothing) {
  constexpr int kThreads = 8;
  constexpr int kEach = 200;
  std::vector<std::thread> threads;
  std::vector<std::set<int64_t>> sums(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t, store = client()] {
      for (int i = 0; i < kEach; ++i) sums[t].insert(store->add("counter", 3));
    });
  }
  for (auto& thread : threads) thread.join();
  std::set<int64_t> all;
  for (const auto& own : sums) all.insert(own.begin(), own.end());
  EXPECT_EQ(all.size(), kThreads * kEach);  // every sum was seen once
  EXPECT_EQ(client()->add("counter", -1), 3 * kThreads * kEach - 1);
}

TEST_P(StoreContract, ARemovedKeyIsNotSet) {
  const auto one = client();
  const auto two = client();
  one->set("key", "old");
  one->add("counter", 5);
  two->remove("key");
  two->remove("counter");
  two->remove("never/set");
  EXPECT_FALSE(one->has("key"));
  EXPECT_THROW(one->get("key", milliseconds(0)), CommError);
  EXPECT_EQ(one->add("counter", 1), 1);
  one->set("key", "new");
  EXPECT_EQ(two->get("key", kTimeout), "new");
}

TEST_P(StoreContract, AddRefusesWhatIsNotACounter) {
  const auto store = client();
  store->set("text", "seven");
  EXPECT_THAT([&] { store->add("text", 1); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("text"), HasSubstr("seven"), HasSubstr("not a counter"))));
  store->set("number", "7");
  EXPECT_EQ(store->add("number", 1), 8);
  store->set("full", std::to_string(INT64_MAX));
  EXPECT_THROW(store->add("full", 1), UsageError);
}

INSTANTIATE_TEST_SUITE_P(Stores, StoreContract, ::testing::Values(Kind::local, Kind::served, Kind::prefixed),
                         [](const auto& info) {
                           return info.param == Kind::local    ? "Local"
                                  : info.param == Kind::served ? "Served"
                                                               : "Prefixed";
                         });

TEST(PrefixedStore, PrefixesSeparateKeys) {
  const auto base = local_store();
  const auto one = prefixed(base, "one");
  const auto two = prefixed(prefixed(base, "one"), "two");
  one->set("key", "1");
  EXPECT_FALSE(two->has("key"));
  two->set("key", "2");
  EXPECT_EQ(base->get("one/key", kTimeout), "1");
  EXPECT_EQ(base->get("one/two/key", kTimeout), "2");
  EXPECT_THAT([&] { two->get("gone", milliseconds(0)); }, ThrowsMessage<CommError>(HasSubstr("one/two/gone")));
}

}  // namespace
}  // namespace caravan::store_test
