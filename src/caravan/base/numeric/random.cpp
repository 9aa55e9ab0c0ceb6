#include "caravan/base/numeric/random.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "caravan/base/numeric/random_kernels.h"
#include "caravan/base/numeric/simd.h"

namespace caravan {
namespace {

using namespace random_kernels;  // NOLINT: only this file uses them

/// Numbers first .. first + out.size(). Whole blocks are written in place, the partial ones at both ends through a
/// temporary block.
template <class Kernel, class... Args>
void fill(uint64_t first, std::span<float> out, uint64_t stream, uint64_t key, Args... args) {
  uint64_t done = 0;
  const auto cut_block = [&] {
    std::array<float, kBlock> whole;
    Kernel::run((first + done) / kBlock, uint64_t{1}, stream, key, whole.data(), args...);
    const uint64_t skip = (first + done) % kBlock;
    const uint64_t count = std::min<uint64_t>(kBlock - skip, out.size() - done);
    std::memcpy(out.data() + done, whole.data() + skip, count * sizeof(float));
    done += count;
  };
  if (first % kBlock != 0 && !out.empty()) cut_block();
  const uint64_t num_blocks = (out.size() - done) / kBlock;
  simd::dispatch<Kernel>((first + done) / kBlock, num_blocks, stream, key, out.data() + done, args...);
  done += num_blocks * kBlock;
  if (done < out.size()) cut_block();
}

}  // namespace

RandomStream::RandomStream(uint64_t seed, std::string_view name, int64_t step)
    : key_(seed), stream_(XXH3_64bits_withSeed(name.data(), name.size(), static_cast<uint64_t>(step))) {}

uint32_t RandomStream::bits(uint64_t i) const noexcept { return block_of(i / kBlock, stream_, key_)[i % kBlock]; }

void RandomStream::uniform(uint64_t first, std::span<float> out) const noexcept {
  fill<Uniform>(first, out, stream_, key_);
}

void RandomStream::normal(uint64_t first, std::span<float> out) const noexcept {
  fill<Normal>(first, out, stream_, key_);
}

void RandomStream::dropout_mask(uint64_t first, float keep, std::span<float> out) const noexcept {
  fill<DropoutMask>(first, out, stream_, key_, keep);
}

RandomPermutation::RandomPermutation(uint64_t seed, std::string_view name, int64_t step, uint64_t size)
    : stream_(seed, name, step), size_(size), half_bits_((std::bit_width(size == 0 ? 0 : size - 1) + 1) / 2) {}

uint64_t RandomPermutation::operator()(uint64_t i) const noexcept {
  constexpr int kRounds = 6;
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  do {
    uint64_t left = i >> half_bits_;
    uint64_t right = i & mask;
    for (int round = 0; round < kRounds; ++round) {
      // Every round and half uses a different number: rounds are 2^half_bits apart in the stream.
      const uint64_t mixed =
          left ^ (stream_.bits((uint64_t{static_cast<unsigned>(round)} << half_bits_) + right) & mask);
      left = right;
      right = mixed;
    }
    i = (left << half_bits_) | right;
  } while (i >= size_);
  return i;
}

}  // namespace caravan
