// Blocks on disk against the same blocks in memory, over each way of reading and writing.
#include "caravan/memory/disk_store.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <gmock/gmock.h>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "tests/data/support.h"
#include "tests/memory/disk_support.h"

namespace caravan::testing::disk_store_test {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kPage = DiskStore::kPage;

DiskStore::Options options_of(const DiskFolder& folder, int num_folders) {
  DiskStore::Options options{.owner = "rank_0", .queue_depth = 3};
  for (int i = 0; i < num_folders; ++i) options.folders.push_back(folder.path() / std::to_string(i));
  return options;
}

/// Random calls on a store, and what its blocks have to contain.
class Model {
 public:
  Model(DiskStore& store, uint64_t seed) : store_(store), random_(seed) {}

  void step() {
    const uint64_t choice = random_() % 8;
    if (blocks_.empty() || (choice == 0 && blocks_.size() < 6)) return make();
    auto& [id, block] = *std::next(blocks_.begin(), static_cast<long>(random_() % blocks_.size()));
    if (choice <= 3) return write(block);
    if (choice == 4 && blocks_.size() > 2) {
      held_ -= block.block.bytes;
      store_.release(block.block);  // with what is in flight
      blocks_.erase(id);
      return;
    }
    read(block);
  }

  /// Waits for all, and compares what was read.
  void settle() {
    for (auto& one : flights_) {
      one.event.wait();
      EXPECT_TRUE(one.event.done());
      EXPECT_TRUE(one.memory->is_guard_whole());
      if (!one.expected.empty()) {
        EXPECT_TRUE(one.memory->content() == one.expected);
      }
    }
    flights_.clear();
    EXPECT_EQ(store_.bytes_held(), held_);
    EXPECT_EQ(store_.bytes_written(), written_);
    EXPECT_EQ(store_.bytes_read(), read_);
  }

  void read_all() {
    for (auto& [id, block] : blocks_) read(block, 0, block.block.bytes);
  }

 private:
  struct Kept {
    DiskStore::Block block;
    std::vector<std::byte> content;
    std::vector<bool> is_written;  ///< by page
  };
  struct Flight {
    Event event;
    std::unique_ptr<AlignedMemory> memory;
    std::vector<std::byte> expected;  ///< of a read
  };

  void make() {
    constexpr int64_t kSizes[] = {1, 511, 4096, 70'001, kPage - 1, kPage, kPage + 1, 2 * kPage, 3 * kPage + 12'345};
    const int64_t bytes = kSizes[random_() % std::size(kSizes)];
    const DiskStore::Block block = store_.make(bytes);
    EXPECT_EQ(block.bytes, bytes);
    held_ += bytes;
    Kept kept{block, std::vector<std::byte>(static_cast<size_t>(bytes)), {}};
    kept.is_written.resize(static_cast<size_t>((bytes + kPage - 1) / kPage));
    blocks_.emplace(block.id, std::move(kept));
  }

  /// Some pages of the block: offset and bytes.
  std::pair<int64_t, int64_t> part(const Kept& block) {
    const auto pages = static_cast<int64_t>(block.is_written.size());
    const auto first = static_cast<int64_t>(random_() % static_cast<uint64_t>(pages));
    const auto count = 1 + static_cast<int64_t>(random_() % static_cast<uint64_t>(pages - first));
    return {first * kPage, std::min(count * kPage, block.block.bytes - first * kPage)};
  }

  void write(Kept& block) {
    const auto [offset, bytes] = part(block);
    auto memory = std::make_unique<AlignedMemory>(bytes, random_() | 1);
    const auto content = memory->content();
    std::ranges::copy(content, block.content.begin() + offset);
    for (int64_t at = offset; at < offset + bytes; at += kPage)
      block.is_written[static_cast<size_t>(at / kPage)] = true;
    written_ += bytes;
    Event event = store_.write(block.block, offset, memory->data(), bytes);
    flights_.push_back({std::move(event), std::move(memory), {}});
  }

  void read(Kept& block) {
    const auto [offset, bytes] = part(block);
    read(block, offset, bytes);
  }

  void read(Kept& block, int64_t offset, int64_t bytes) {
    for (int64_t at = offset; at < offset + bytes; at += kPage) {
      if (!block.is_written[static_cast<size_t>(at / kPage)]) return write(block);  // undefined until then
    }
    auto memory = std::make_unique<AlignedMemory>(bytes);
    std::vector<std::byte> expected(block.content.begin() + offset, block.content.begin() + offset + bytes);
    read_ += bytes;
    Event event = store_.read(block.block, offset, memory->data(), bytes);
    flights_.push_back({std::move(event), std::move(memory), std::move(expected)});
  }

  DiskStore& store_;
  std::mt19937_64 random_;
  std::map<int64_t, Kept> blocks_;
  std::vector<Flight> flights_;
  int64_t held_ = 0;
  int64_t written_ = 0;
  int64_t read_ = 0;
};

TEST(DiskStore, ReturnsWhatWasWrittenInTheOrderOfCalls) {
  for (const auto& way : DiskFolder::kWays) {
    for (int num_folders = 1; num_folders <= 3; ++num_folders) {
      SCOPED_TRACE(std::string(way.name) + " in " + std::to_string(num_folders) + " folders");
      const DiskFolder folder(way);
      DiskStore store(options_of(folder, num_folders));
      Model model(store, static_cast<uint64_t>(num_folders));
      for (int i = 0; i < 60; ++i) {
        model.step();
        if (i % 9 == 8) model.settle();
      }
      model.read_all();
      model.settle();
    }
  }
}

TEST(DiskStore, BlocksOfSeveralThreads) {
  const DiskFolder folder(DiskFolder::kWays[0]);
  DiskStore store(options_of(folder, 2));
  std::atomic<int> num_wrong{0};
  const auto work = [&](uint64_t seed) {
    for (uint64_t i = 0; i < 6; ++i) {
      const DiskStore::Block block = store.make(kPage + 999);
      const AlignedMemory written(block.bytes, seed + i);
      const AlignedMemory found(block.bytes);
      store.write(block, 0, written.data(), block.bytes);
      store.read(block, 0, found.data(), block.bytes).wait();
      num_wrong += written.content() == found.content() ? 0 : 1;
      store.release(block);
    }
  };
  std::thread other(work, 100);
  work(200);
  other.join();
  EXPECT_EQ(num_wrong, 0);
  EXPECT_EQ(store.bytes_held(), 0);
}

TEST(DiskStore, SpreadsPagesOverFoldersAndUsesSpaceAgain) {
  const DiskFolder folder(DiskFolder::kWays[1]);
  std::filesystem::create_directory(folder.path() / "1");
  {
    DiskStore store(options_of(folder, 2));
    const auto sizes = [&] {
      std::vector<int64_t> result;
      for (const char* name : {"0", "1"}) {
        for (const auto& entry : std::filesystem::directory_iterator(folder.path() / name)) {
          EXPECT_THAT(entry.path().filename().string(), HasSubstr("rank_0"));
          result.push_back(static_cast<int64_t>(entry.file_size()));
        }
      }
      return result;
    };
    const DiskStore::Block first = store.make(3 * kPage + 1);
    EXPECT_THAT(sizes(), ::testing::ElementsAre(2 * kPage, kPage + 4096));
    const DiskStore::Block second = store.make(2 * kPage);
    EXPECT_THAT(sizes(), ::testing::ElementsAre(3 * kPage, 2 * kPage + 4096));
    store.release(first);
    const DiskStore::Block third = store.make(2 * kPage);
    const DiskStore::Block small = store.make(5000);
    EXPECT_THAT(sizes(), ::testing::ElementsAre(3 * kPage, 2 * kPage + 4096)) << "all of it fits into what is free";
    const AlignedMemory memory(2 * kPage, 7);
    const AlignedMemory found(2 * kPage);
    store.write(third, 0, memory.data(), third.bytes).wait();
    store.write(second, 0, found.data(), second.bytes).wait();
    store.read(third, 0, found.data(), third.bytes).wait();
    EXPECT_TRUE(found.content() == memory.content());
    const auto speeds = store.speeds();
    ASSERT_EQ(speeds.size(), 2U);
    EXPECT_EQ(speeds[0].folder, folder.path() / "0");
    for (const auto& speed : speeds) {
      EXPECT_EQ(speed.bytes, 3 * kPage);
      EXPECT_GT(speed.seconds, 0);
    }
    store.release(small);
  }
  EXPECT_TRUE(folder.files().empty());
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "0"));
}

TEST(DiskStore, TheEndWaitsForWhatIsInFlight) {
  for (const auto& way : DiskFolder::kWays) {
    SCOPED_TRACE(way.name);
    const DiskFolder folder(way);
    const AlignedMemory memory(5 * kPage, 3);
    Event written;
    Event released;
    {
      DiskStore store(options_of(folder, 1));
      written = store.write(store.make(5 * kPage), 0, memory.data(), 5 * kPage);
      const DiskStore::Block block = store.make(kPage);
      released = store.write(block, 0, memory.data(), kPage);
      store.release(block);
    }
    EXPECT_TRUE(written.done());
    EXPECT_NO_THROW(written.wait());
    EXPECT_NO_THROW(released.wait());
    EXPECT_TRUE(folder.files().empty());
  }
}

int64_t count_rings() {
  int64_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    count += std::filesystem::read_symlink(entry.path(), error) == "anon_inode:[io_uring]" ? 1 : 0;
  }
  return count;
}

TEST(DiskStore, UsesUringUnlessItIsSwitchedOff) {
  const auto notes_of = [](const DiskStore& store) { return ::testing::PrintToString(store.notes()); };
  {
    const DiskFolder folder(DiskFolder::kWays[0]);
    const DiskStore store(options_of(folder, 2));
    if (count_rings() != 2) {
      EXPECT_THAT(notes_of(store), ::testing::AnyOf(HasSubstr("io_uring is refused here"), HasSubstr("has no io_uring"),
                                                    HasSubstr("has no direct I/O"), HasSubstr("in memory")));
    } else {
      EXPECT_TRUE(store.notes().empty()) << notes_of(store);
    }
  }
  {
    const DiskFolder folder(DiskFolder::kWays[1]);
    const DiskStore store(options_of(folder, 2));
    EXPECT_EQ(count_rings(), 0);
    EXPECT_THAT(notes_of(store), ::testing::Not(HasSubstr("io_uring")));
  }
  const DiskFolder folder(DiskFolder::kWays[2]);
  const DiskStore store(options_of(folder, 1));
  EXPECT_EQ(count_rings(), 0);
  ASSERT_EQ(store.notes().size(), 1U);
  EXPECT_THAT(store.notes()[0], HasSubstr((folder.path() / "0").string() + ": a file system in memory"));
}

TEST(DiskStore, RefusesWrongCalls) {
  const DiskFolder folder(DiskFolder::kWays[0]);
  DiskStore store(options_of(folder, 1));
  const DiskStore::Block block = store.make(2 * kPage + 10);
  const AlignedMemory memory(3 * kPage);
  const auto refusal = [&](int64_t offset, int64_t bytes, int64_t shift = 0) {
    return message_of<UsageError>([&] { store.read(block, offset, memory.data() + shift, bytes); });
  };
  EXPECT_THAT(refusal(1, kPage), HasSubstr("not whole pages"));
  EXPECT_THAT(refusal(0, kPage + 1), HasSubstr("not whole pages"));
  EXPECT_THAT(refusal(kPage, 2 * kPage), HasSubstr("not whole pages of a block of 2097162"));
  EXPECT_THAT(refusal(-kPage, kPage), HasSubstr("not whole pages"));
  EXPECT_THAT(refusal(0, kPage, 512), HasSubstr("not aligned to 4096"));
  EXPECT_THAT(message_of<UsageError>([&] { store.make(-1); }), HasSubstr("-1 bytes"));
  const DiskStore::Block empty = store.make(0);
  EXPECT_TRUE(store.write(empty, 0, memory.data(), 0).done());
  store.release(block);
  EXPECT_THAT(refusal(0, kPage), HasSubstr("was released"));
}

}  // namespace
}  // namespace caravan::testing::disk_store_test
