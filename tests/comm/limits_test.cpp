#include <cstring>
#include <filesystem>
#include <fstream>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "caravan/base/error.h"
#include "caravan/base/system/memory_limit.h"
#include "caravan/comm/backends/shared/memory/arena.h"
#include "caravan/comm/backends/shared/memory/pages.h"
#include "caravan/comm/backends/shared/memory/segment.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "tests/ranks/process_ranks.h"

namespace caravan::testing::limits_test {
namespace {

using ::testing::HasSubstr;

constexpr rlim_t kMiB = rlim_t{1} << 20;

/// Lowers a soft limit while it lives.
class ScopedLimit {
 public:
  ScopedLimit(__rlimit_resource resource, rlim_t value) : resource_(resource) {
    getrlimit(resource, &before_);
    const rlimit lower{value, before_.rlim_max};
    EXPECT_EQ(setrlimit(resource, &lower), 0);
  }
  ~ScopedLimit() { setrlimit(resource_, &before_); }
  ScopedLimit(const ScopedLimit&) = delete;
  ScopedLimit& operator=(const ScopedLimit&) = delete;

 private:
  __rlimit_resource resource_;
  rlimit before_{};
};

/// The limit that leaves `mib` MiB of address space in addition to what this process uses.
rlim_t address_limit(rlim_t mib) {
  rlim_t used_pages = 0;
  std::ifstream("/proc/self/statm") >> used_pages;
  return used_pages * shared::kPage + mib * kMiB;
}

bool has_sanitizer() {  // whose shadow memory is terabytes of address space
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#else
  return false;
#endif
}

/// Sums over memory of the communicator's own: 1 MiB, and more than a small arena has.
void expect_sums(const std::shared_ptr<Communicator>& world) {
  for (const int64_t count : {int64_t{1} << 18, int64_t{1} << 23}) {
    const std::shared_ptr<void> memory = world->allocate(static_cast<size_t>(count) * sizeof(float));
    auto* const values = static_cast<float*>(memory.get());
    EXPECT_EQ(values[count - 1], 0.0F);
    std::fill_n(values, count, static_cast<float>(world->rank() + 1));
    const Buffer buffer{values, count, Dtype::fp32, {}};
    world->all_reduce(buffer, buffer, ReduceOp::sum);
    const int n = world->size();
    EXPECT_EQ(values[0], static_cast<float>(n * (n + 1) / 2));
    EXPECT_EQ(values[count - 1], values[0]);
    world->barrier();
  }
}

std::filesystem::path write_tree(const std::filesystem::path& root,
                                 const std::vector<std::pair<std::string, std::string>>& files) {
  std::filesystem::remove_all(root);
  for (const auto& [path, text] : files) {
    std::filesystem::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text << "\n";
  }
  return root;
}

}  // namespace

TEST(Limits, OneRankReservesNoAddressSpace) {
  if (has_sanitizer()) GTEST_SKIP() << "a sanitizer reserves the address space";
  const ScopedLimit limit(RLIMIT_AS, address_limit(256));
  run_thread_ranks(1, expect_sums);
  RankInfo info;
  expect_sums(make_shm_world(info, nullptr, {}));
}

TEST(Limits, ThreadRanksWorkWithLittleAddressSpace) {
  if (has_sanitizer()) GTEST_SKIP() << "a sanitizer reserves the address space";
  const ScopedLimit limit(RLIMIT_AS, address_limit(1500));
  run_thread_ranks(4, expect_sums);
}

TEST(Limits, ProcessesWorkWithLittleAddressSpace) {
  if (has_sanitizer()) GTEST_SKIP() << "a sanitizer reserves the address space";
  run_process_ranks(3, expect_sums, {.timeout = std::chrono::seconds(20)},
                    [](const RankInfo& info, const std::shared_ptr<Store>& store, const CommOptions& options) {
                      // Not all ranks have the same limit: the smallest counts.
                      if (info.rank == 1)
                        setrlimit(RLIMIT_AS, std::make_unique<rlimit>(address_limit(800), RLIM_INFINITY).get());
                      return shm_world(info, store, options);
                    });
}

TEST(Limits, ProcessesWorkWithASmallFileSize) {
  run_process_ranks(2, expect_sums, {.timeout = std::chrono::seconds(20)},
                    [](const RankInfo& info, const std::shared_ptr<Store>& store, const CommOptions& options) {
                      const ScopedLimit limit(RLIMIT_FSIZE, 64 * kMiB);
                      return shm_world(info, store, options);
                    });
}

TEST(Limits, TooSmallAFileSizeIsAnErrorOnEveryRank) {
  const auto ends = run_processes(
      2, [](const std::shared_ptr<Communicator>&) {}, {.timeout = std::chrono::seconds(20)},
      [](const RankInfo& info, const std::shared_ptr<Store>& store,
         const CommOptions& options) -> std::shared_ptr<Communicator> {
        const ScopedLimit limit(RLIMIT_FSIZE, kMiB);
        const auto make = [&] { shm_world(info, store, options); };
        const std::string text = info.rank == 0 ? error_of<ResourceError>(make) : error_of<CommError>(make);
        EXPECT_THAT(text, HasSubstr("address space for 2 ranks: File too large"));
        EXPECT_THAT(text, HasSubstr(info.rank == 0 ? "ulimit -f" : "see the output of rank 0"));
        _exit(::testing::Test::HasFailure() ? 1 : 0);
      });
  for (const RankEnd& end : ends) EXPECT_EQ(end.exit_code, 0) << end.signal << "\n" << end.output;
}

TEST(Limits, EveryProcessGroupGetsASegment) {
  if (has_sanitizer()) GTEST_SKIP() << "a sanitizer reserves the address space";
  const ScopedLimit limit(RLIMIT_AS, address_limit(32 * 1024));
  std::vector<std::shared_ptr<shared::Segment>> segments;
  for (int i = 0; i < 12; ++i) {
    segments.push_back(shared::Segment::create_private(8));
    EXPECT_GE(segments.back()->take_slot(), 0);
  }
  EXPECT_LT(segments.back()->layout().bytes(), segments.front()->layout().bytes());
}

TEST(Limits, TooLittleAddressSpaceIsAnError) {
  if (has_sanitizer()) GTEST_SKIP() << "a sanitizer reserves the address space";
  const ScopedLimit limit(RLIMIT_AS, address_limit(20));
  const std::string text = error_of<ResourceError>([] { shared::Segment::create_private(8); });
  EXPECT_THAT(text, HasSubstr("of address space for 8 ranks"));
  EXPECT_THAT(text, HasSubstr("ulimit -v"));
}

TEST(Limits, NoMoreSlotsThanTheSegmentHas) {
  const shared::SegmentLayout layout = shared::SegmentLayout::of(2, 0);
  EXPECT_EQ(layout.num_slots, 16U);
  const auto [descriptor, segment] = shared::Segment::create_shared(2, 0);
  EXPECT_EQ(segment->layout(), layout);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(segment->take_slot(), i);
  EXPECT_EQ(segment->take_slot(), -1);
  segment->release_slot(3);
  EXPECT_EQ(segment->take_slot(), 3);
}

// Memory that the kernel cannot provide is a SIGBUS on first use. Here it is beyond the end of the file.
TEST(Limits, MemoryThatCannotBeMappedIsAnError) {
  auto [descriptor, segment] = shared::Segment::create_shared(2, 0);
  const auto end = static_cast<off_t>(segment->layout().arenas_begin());
  ASSERT_EQ(ftruncate(descriptor.get(), end), 0);
  std::byte* const arena = segment->arena(0);
  if (shared::populate(arena, shared::kPage) == 0) GTEST_SKIP() << "this kernel cannot populate";
  const auto allocator = std::make_shared<shared::Arena>(segment, 0);
  EXPECT_THAT(error_of<ResourceError>([&] { allocator->allocate(8192); }),
              HasSubstr("the kernel has no memory for 8192 bytes"));
  uint64_t offset = 0;
  EXPECT_THAT(error_of<ResourceError>([&] { allocator->allocate_shared(4096, 2, offset); }), HasSubstr("no memory"));
  EXPECT_EQ(offset, 0U);
  ASSERT_EQ(ftruncate(descriptor.get(), static_cast<off_t>(segment->layout().bytes())), 0);
  EXPECT_EQ(allocator->allocate(segment->arena_bytes()).get(), arena) << "what could not be mapped is free again";
}

TEST(Limits, ControlGroupsCount) {
  const auto root = std::filesystem::temp_directory_path() / ("caravan_limits_" + std::to_string(getpid()));
  EXPECT_EQ(control_group_memory_limit(write_tree(root, {{"proc/self/cgroup", "0::/a/b"}})), -1);
  // Version 2: the smallest on the way to the root.
  EXPECT_EQ(control_group_memory_limit(write_tree(root, {{"proc/self/cgroup", "0::/a/b"},
                                                         {"sys/fs/cgroup/a/b/memory.max", "max"},
                                                         {"sys/fs/cgroup/a/memory.max", "5000000"},
                                                         {"sys/fs/cgroup/memory.max", "7000000"}})),
            5'000'000);
  // Version 1, with the controllers of other groups, and in a container that sees its own group as the root.
  EXPECT_EQ(control_group_memory_limit(write_tree(root, {{"proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/1\n"},
                                                         {"sys/fs/cgroup/x/memory.max", "1"},
                                                         {"sys/fs/cgroup/memory/memory.limit_in_bytes", "3000000"}})),
            3'000'000);
  EXPECT_EQ(control_group_memory_limit(
                write_tree(root, {{"proc/self/cgroup", "4:memory:/"},
                                  {"sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"}})),
            -1);
  std::filesystem::remove_all(root);
  EXPECT_GT(usable_memory_bytes(), 0);
}

}  // namespace caravan::testing::limits_test
