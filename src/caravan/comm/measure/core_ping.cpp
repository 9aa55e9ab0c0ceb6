#include "caravan/comm/measure/core_ping.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <fcntl.h>
#include <random>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "caravan/comm/measure/statistics.h"

namespace caravan::measure {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kRounds = 20'000;
constexpr uint64_t kChunk = 500;  // per sample; the median excludes samples with a context switch
constexpr size_t kFewestChunks = 5;
constexpr std::chrono::milliseconds kPatience{100};  // after this the two ranks cannot be running at the same time

struct Offer {
  int32_t pid = -1;
  int32_t descriptor = -1;
  uint64_t token = 0;
};

}  // namespace

struct CorePing::Table {
  std::atomic<uint64_t> token;
  alignas(128) std::atomic<uint64_t> ball;
  alignas(128) std::atomic<uint64_t> over;
};

CorePing::CorePing(Communicator& world, int a, int b) : world_(world), a_(a), b_(b) { open_page(); }

CorePing::~CorePing() {
  if (table_ != nullptr) munmap(table_, sizeof(Table));
}

void CorePing::open_page() {
  const auto map = [](int descriptor) -> Table* {
    void* memory = mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    return memory == MAP_FAILED ? nullptr : static_cast<Table*>(memory);
  };
  Offer offer;
  int descriptor = -1;
  if (world_.rank() == a_) {
    descriptor = memfd_create("caravan_ping", MFD_CLOEXEC);
    if (descriptor >= 0 && ftruncate(descriptor, sizeof(Table)) == 0) table_ = map(descriptor);
    std::random_device random;
    offer = {getpid(), table_ != nullptr ? descriptor : -1, uint64_t{random()} << 32 | random()};
    if (table_ != nullptr) table_->token.store(offer.token);
  }
  world_.broadcast({&offer, sizeof(offer), Dtype::uint8}, a_, "core ping: page");
  if (world_.rank() == b_ && offer.descriptor >= 0) {
    const std::string path = fmt::format("/proc/{}/fd/{}", offer.pid, offer.descriptor);
    struct stat file {};
    // On another host or in another container, the process id belongs to another process, if to any.
    if (stat(path.c_str(), &file) == 0 && S_ISREG(file.st_mode) && file.st_size == sizeof(Table)) {
      const int other = open(path.c_str(), O_RDWR | O_CLOEXEC);
      if (other >= 0) table_ = map(other);
      if (other >= 0) close(other);
    }
    if (table_ != nullptr && table_->token.load() != offer.token) {
      munmap(table_, sizeof(Table));
      table_ = nullptr;
    }
  }
  uint8_t opened = table_ != nullptr ? 1 : 0;
  world_.broadcast({&opened, 1, Dtype::uint8}, b_, "core ping: opened");
  if (descriptor >= 0) close(descriptor);
  if (opened == 0 && table_ != nullptr) {
    munmap(table_, sizeof(Table));
    table_ = nullptr;
  }
}

/// One side of the ping-pong: `a` sends odd numbers, `b` answers with even ones. Nanoseconds one way; 0 on time-out.
double CorePing::play(bool serves) {
  const auto start = Clock::now();
  auto begin = start;
  std::vector<double> chunks;
  for (uint64_t round = 0; round < kRounds; ++round) {
    if (round % kChunk == 0 && round > 0) {
      const auto now = Clock::now();
      chunks.push_back(std::chrono::duration<double, std::nano>(now - begin).count() / (2 * kChunk));
      begin = now;
    }
    if (serves) table_->ball.store(2 * round + 1, std::memory_order_release);
    const uint64_t awaited = serves ? 2 * round + 2 : 2 * round + 1;
    for (uint64_t spins = 1; table_->ball.load(std::memory_order_acquire) != awaited; ++spins) {
      if (spins % 256 != 0) continue;
      if (table_->over.load(std::memory_order_relaxed) == 0 && Clock::now() - start < kPatience) continue;
      table_->over.store(1);
      return chunks.size() < kFewestChunks ? 0 : quantile(chunks, 0.5);
    }
    if (!serves) table_->ball.store(2 * round + 2, std::memory_order_release);
  }
  return quantile(chunks, 0.5);
}

std::optional<double> CorePing::measure() {
  if (world_.rank() == a_ && table_ != nullptr) {
    table_->ball.store(0);
    table_->over.store(0);
  }
  world_.barrier("core ping");
  double ns = 0;
  if (table_ != nullptr) ns = play(world_.rank() == a_);
  world_.broadcast({&ns, 1, Dtype::fp64}, a_, "core ping");
  if (ns <= 0) return std::nullopt;
  return ns;
}

}  // namespace caravan::measure
