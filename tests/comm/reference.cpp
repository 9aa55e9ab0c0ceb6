#include "tests/comm/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace caravan::testing {
namespace {

bool is_floating(Dtype dtype) {
  return dtype == Dtype::fp32 || dtype == Dtype::fp64 || dtype == Dtype::bf16 || dtype == Dtype::fp16;
}

/// A 16-bit float with `mantissa_bits`, from the definition of the format: value = +-(1 + m / 2^bits) 2^(e - bias).
/// `value` is finite.
uint16_t encode_16(double value, int mantissa_bits) {
  const int exponent_bits = 15 - mantissa_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), 1 - bias);
  const double mantissa = std::nearbyint(std::ldexp(magnitude, mantissa_bits - exponent));  // ties to even
  const int64_t code = static_cast<int64_t>(mantissa) + (static_cast<int64_t>(exponent + bias - 1) << mantissa_bits);
  return static_cast<uint16_t>(sign | std::min<int64_t>(code, ((1 << exponent_bits) - 1) << mantissa_bits));
}

double decode_16(uint16_t code, int mantissa_bits) {
  const int bias = (1 << (14 - mantissa_bits)) - 1;
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  const int exponent = (code & 0x7fff) >> mantissa_bits;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                         : std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  return (code & 0x8000) != 0 ? -magnitude : magnitude;
}

template <class T>
void put(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}
template <class T>
T get(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

void write_float(std::byte* to, Dtype dtype, double value) {
  if (dtype == Dtype::fp32) put(to, static_cast<float>(value));
  if (dtype == Dtype::fp64) put(to, value);
  if (dtype == Dtype::bf16) put(to, encode_16(value, 7));
  if (dtype == Dtype::fp16) put(to, encode_16(value, 10));
}

double read_float(const std::byte* from, Dtype dtype) {
  if (dtype == Dtype::fp32) return get<float>(from);
  if (dtype == Dtype::fp64) return get<double>(from);
  return decode_16(get<uint16_t>(from), dtype == Dtype::bf16 ? 7 : 10);
}

void write_integer(std::byte* to, Dtype dtype, uint64_t value) {
  if (dtype == Dtype::int64) put(to, value);
  if (dtype == Dtype::int32) put(to, static_cast<uint32_t>(value));
  if (dtype == Dtype::uint8 || dtype == Dtype::boolean) put(to, static_cast<uint8_t>(value));
}

int64_t read_integer(const std::byte* from, Dtype dtype) {
  if (dtype == Dtype::int64) return get<int64_t>(from);
  if (dtype == Dtype::int32) return get<int32_t>(from);
  return get<uint8_t>(from);
}

template <class T>
T combine(ReduceOp op, T a, T b) {
  if (op == ReduceOp::max) return std::max(a, b);
  if (op == ReduceOp::min) return std::min(a, b);
  return a + b;
}

}  // namespace

Data::Data(int64_t count, Dtype dtype) : count_(count), dtype_(dtype) {
  if (count == 0) return;
  bytes_.reset(allocate_data(num_bytes()));
  std::memset(bytes(), 0, num_bytes());
}

Data::Data(const Data& other) : Data(other.count_, other.dtype_) {
  if (count_ > 0) std::memcpy(bytes(), other.bytes(), num_bytes());
}

Data Data::copy_of_part(int64_t begin, int64_t count) const {
  Data out(count, dtype_);
  if (count > 0) std::memcpy(out.bytes(), bytes() + begin * size_bytes(dtype_), out.num_bytes());
  return out;
}

void Data::append(const Data& other) {
  Data both(count_ + other.count_, dtype_);
  if (count_ > 0) std::memcpy(both.bytes(), bytes(), num_bytes());
  if (other.count_ > 0) std::memcpy(both.bytes() + num_bytes(), other.bytes(), other.num_bytes());
  *this = std::move(both);
}

bool Data::operator==(const Data& other) const {
  return count_ == other.count_ && dtype_ == other.dtype_ &&
         (count_ == 0 || std::memcmp(bytes(), other.bytes(), num_bytes()) == 0);
}

Data input_of(int rank, int64_t count, Dtype dtype, int salt) {
  Data data(count, dtype);
  const int64_t range = dtype == Dtype::bf16 ? 511 : dtype == Dtype::fp16 ? 4095 : 20'001;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t mixed = (i + 1) * 7919 + (rank + 1) * 104'729 + salt * 1'299'709;
    std::byte* to = data.bytes() + i * size_bytes(dtype);
    if (is_floating(dtype)) {
      write_float(to, dtype, static_cast<double>(mixed % range - range / 2) / 8);
    } else if (dtype == Dtype::boolean) {
      write_integer(to, dtype, mixed % 3 == 0 ? 1 : 0);
    } else {
      write_integer(to, dtype, static_cast<uint64_t>(mixed) * 0x9e3779b97f4a7c15);  // all bits, both signs
    }
  }
  return data;
}

std::vector<Data> inputs_of(int num_ranks, int64_t count, Dtype dtype, int salt) {
  std::vector<Data> inputs;
  for (int rank = 0; rank < num_ranks; ++rank) inputs.push_back(input_of(rank, count, dtype, salt));
  return inputs;
}

Data reduced(std::span<const Data> inputs, ReduceOp op) {
  const Dtype dtype = inputs[0].dtype();
  Data out(inputs[0].count(), dtype);
  for (int64_t i = 0; i < out.count(); ++i) {
    const int64_t at = i * size_bytes(dtype);
    if (is_floating(dtype)) {
      double value = read_float(inputs[0].bytes() + at, dtype);
      for (const Data& input : inputs.subspan(1)) value = combine(op, value, read_float(input.bytes() + at, dtype));
      write_float(out.bytes() + at, dtype, value);
    } else if (op == ReduceOp::sum) {
      uint64_t value = 0;
      for (const Data& input : inputs) value += static_cast<uint64_t>(read_integer(input.bytes() + at, dtype));
      write_integer(out.bytes() + at, dtype, value);
    } else {
      int64_t value = read_integer(inputs[0].bytes() + at, dtype);
      for (const Data& input : inputs.subspan(1)) value = combine(op, value, read_integer(input.bytes() + at, dtype));
      write_integer(out.bytes() + at, dtype, static_cast<uint64_t>(value));
    }
  }
  return out;
}

std::vector<int64_t> uneven_counts(int num_ranks, int64_t scale) {
  std::vector<int64_t> counts;
  for (int rank = 0; rank < num_ranks; ++rank) counts.push_back(rank % 3 == 1 ? 0 : scale * (rank + 1) + rank);
  return counts;
}

}  // namespace caravan::testing
