#include "caravan/comm/measure/pattern.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include <fmt/format.h>

#include "caravan/base/numeric/half.h"

namespace caravan::measure {
namespace {

constexpr int64_t kBlockElems = 8192;

int period(Dtype dtype, int num_ranks) { return dtype == Dtype::boolean ? 2 : std::clamp(256 / num_ranks, 1, 5); }

double number(Dtype dtype, int rank, int num_ranks, int64_t index) {
  const int64_t turn = (index + 3 * static_cast<int64_t>(rank)) % period(dtype, num_ranks);
  return static_cast<double>(dtype == Dtype::boolean ? turn : turn + 1);
}

template <class T>
void put(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(value));
}

void encode(Dtype dtype, double value, std::byte* to) {
  switch (dtype) {
    case Dtype::fp32: return put(to, static_cast<float>(value));
    case Dtype::fp64: return put(to, value);
    case Dtype::bf16: return put(to, to_bf16(static_cast<float>(value)).bits);
    case Dtype::fp16: return put(to, to_fp16(static_cast<float>(value)).bits);
    case Dtype::int64: return put(to, static_cast<int64_t>(value));
    case Dtype::int32: return put(to, static_cast<int32_t>(value));
    case Dtype::uint8:
    case Dtype::boolean: return put(to, static_cast<uint8_t>(static_cast<int64_t>(value)));
  }
}

std::string bits(const std::byte* data, int64_t size) {
  std::string text = "0x";
  for (int64_t i = size; i-- > 0;) text += fmt::format("{:02x}", static_cast<unsigned>(data[i]));
  return text;
}

}  // namespace

ReduceOp checked_op(Dtype dtype) noexcept { return dtype == Dtype::boolean ? ReduceOp::max : ReduceOp::sum; }

Pattern::Pattern(Dtype dtype, std::vector<double> numbers) : dtype_(dtype), numbers_(std::move(numbers)) {
  const int64_t size = size_bytes(dtype_);
  const auto count = static_cast<int64_t>(numbers_.size());
  block_count_ = count * (kBlockElems / count + 1);
  block_.resize(static_cast<size_t>((block_count_ + count) * size));
  for (int64_t i = 0; i < block_count_ + count; ++i) {
    encode(dtype_, numbers_[static_cast<size_t>(i % count)], block_.data() + i * size);
  }
}

Pattern Pattern::of_rank(Dtype dtype, int rank, int num_ranks) {
  std::vector<double> numbers(static_cast<size_t>(period(dtype, num_ranks)));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = number(dtype, rank, num_ranks, static_cast<int64_t>(i));
  return {dtype, std::move(numbers)};
}

Pattern Pattern::random(Dtype dtype, int rank) {
  constexpr size_t kCount = 1021;  // prime, so that equal parts of a buffer differ
  std::mt19937_64 generator(static_cast<uint64_t>(rank));
  std::vector<double> numbers(kCount);
  for (double& value : numbers) {
    value = std::uniform_real_distribution(-1.0, 1.0)(generator);
    if (dtype == Dtype::boolean) value = value < 0 ? 0 : 1;
    if (dtype == Dtype::uint8) value = std::abs(value);
    if (dtype == Dtype::uint8 || dtype == Dtype::int32 || dtype == Dtype::int64) value *= 100;
  }
  return {dtype, std::move(numbers)};
}

Pattern Pattern::reduced(Dtype dtype, int num_ranks) {
  std::vector<double> numbers(static_cast<size_t>(period(dtype, num_ranks)));
  for (size_t i = 0; i < numbers.size(); ++i) {
    for (int rank = 0; rank < num_ranks; ++rank) {
      const double one = number(dtype, rank, num_ranks, static_cast<int64_t>(i));
      numbers[i] = checked_op(dtype) == ReduceOp::max ? std::max(numbers[i], one) : numbers[i] + one;
    }
  }
  return {dtype, std::move(numbers)};
}

void Pattern::write(void* data, int64_t count, int64_t first) const {
  const int64_t size = size_bytes(dtype_);
  const int64_t start = first % static_cast<int64_t>(numbers_.size());
  for (int64_t at = 0; at < count; at += block_count_) {  // block_count_ is whole periods: the start stays the same
    const int64_t now = std::min(block_count_, count - at);
    std::memcpy(static_cast<std::byte*>(data) + at * size, block_.data() + start * size,
                static_cast<size_t>(now * size));
  }
}

std::string Pattern::difference(const void* data, int64_t count, int64_t first) const {
  const int64_t size = size_bytes(dtype_);
  const int64_t start = first % static_cast<int64_t>(numbers_.size());
  const auto* bytes = static_cast<const std::byte*>(data);
  const std::byte* expected = block_.data() + start * size;
  for (int64_t at = 0; at < count; at += block_count_) {
    const int64_t now = std::min(block_count_, count - at);
    if (std::memcmp(bytes + at * size, expected, static_cast<size_t>(now * size)) == 0) continue;
    int64_t i = 0;
    while (std::memcmp(bytes + (at + i) * size, expected + i * size, static_cast<size_t>(size)) == 0) ++i;
    return fmt::format("element {} of {} is {} and should be {}", at + i, count, bits(bytes + (at + i) * size, size),
                       bits(expected + i * size, size));
  }
  return "";
}

}  // namespace caravan::measure
