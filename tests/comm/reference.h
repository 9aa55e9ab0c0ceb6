#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "caravan/comm/communicator.h"

namespace caravan::testing {

/// Allocates the memory of this thread's Data.
enum class Memory {
  plain,
  arena,  ///< Communicator::allocate
  mixed,  ///< as arena on even ranks, plain on odd ones
};

/// While it lives, this thread's Data is allocated by `comm`. Destroy it after all of the Data and before `comm`.
class MemoryOf {
 public:
  MemoryOf(Communicator& comm, Memory memory);
  ~MemoryOf();
  MemoryOf(const MemoryOf&) = delete;
  MemoryOf& operator=(const MemoryOf&) = delete;
};

void* allocate_data(size_t bytes);
void free_data(void* data) noexcept;

template <class T>
struct DataAllocator {
  using value_type = T;
  DataAllocator() = default;
  template <class U>
  DataAllocator(const DataAllocator<U>&) {}  // NOLINT: allocators convert
  T* allocate(size_t count) { return static_cast<T*>(allocate_data(count * sizeof(T))); }
  void deallocate(T* data, size_t) noexcept { free_data(data); }
  bool operator==(const DataAllocator&) const = default;
};

/// Elements in 64-byte aligned memory.
class Data {
 public:
  Data() = default;
  Data(int64_t count, Dtype dtype) : bytes_(static_cast<size_t>(count * size_bytes(dtype))), dtype_(dtype) {}

  Dtype dtype() const { return dtype_; }
  int64_t count() const { return static_cast<int64_t>(bytes_.size()) / size_bytes(dtype_); }
  std::byte* bytes() { return bytes_.data(); }
  const std::byte* bytes() const { return bytes_.data(); }

  Buffer buffer() { return {bytes_.data(), count(), dtype_, {}}; }
  ConstBuffer const_buffer() const { return {bytes_.data(), count(), dtype_}; }
  /// Elements begin .. begin + count, for verbs that work in place.
  Buffer part(int64_t begin, int64_t count) { return {bytes_.data() + begin * size_bytes(dtype_), count, dtype_, {}}; }
  Data copy_of_part(int64_t begin, int64_t count) const;
  void append(const Data& other);

  bool operator==(const Data&) const = default;  ///< compares bits

 private:
  std::vector<std::byte, DataAllocator<std::byte>> bytes_;
  Dtype dtype_ = Dtype::fp32;
};

/// The input of rank `rank`: numbers that differ by rank and index. Their sums over up to 8 ranks are exact in fp32 in
/// any order, must be rounded in bf16 and fp16, and wrap around in the integer dtypes.
Data input_of(int rank, int64_t count, Dtype dtype, int salt = 0);

/// op over the elements of `inputs`, computed one by one in long double or 64-bit integers and rounded arithmetically:
/// independent of the library's loops.
Data reduced(std::span<const Data> inputs, ReduceOp op);

/// The inputs of ranks 0 .. num_ranks-1.
std::vector<Data> inputs_of(int num_ranks, int64_t count, Dtype dtype, int salt = 0);

inline constexpr Dtype kDtypes[] = {Dtype::fp32,  Dtype::fp64,  Dtype::bf16,  Dtype::fp16,
                                    Dtype::int64, Dtype::int32, Dtype::uint8, Dtype::boolean};
inline constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::max, ReduceOp::min};

/// Cycles through three uneven parts, one of them 0.
std::vector<int64_t> uneven_counts(int num_ranks, int64_t scale);

}  // namespace caravan::testing
