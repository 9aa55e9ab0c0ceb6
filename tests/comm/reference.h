#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
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

std::byte* allocate_data(size_t bytes);
void free_data(std::byte* data) noexcept;

struct FreeData {
  void operator()(std::byte* data) const noexcept { free_data(data); }
};

/// Elements, zeros at first. Copied, compared and cleared as a whole: a vector with an allocator of its own would do it
/// byte by byte, which is most of the time of these tests under ThreadSanitizer.
class Data {
 public:
  Data() = default;
  Data(int64_t count, Dtype dtype);
  Data(const Data& other);
  Data(Data&& other) noexcept = default;
  Data& operator=(const Data& other) { return *this = Data(other); }
  Data& operator=(Data&& other) noexcept = default;
  ~Data() = default;

  Dtype dtype() const { return dtype_; }
  int64_t count() const { return count_; }
  std::byte* bytes() { return bytes_.get(); }
  const std::byte* bytes() const { return bytes_.get(); }

  Buffer buffer() { return {bytes(), count_, dtype_, {}}; }
  ConstBuffer const_buffer() const { return {bytes(), count_, dtype_}; }
  /// Elements begin .. begin + count, for verbs that work in place.
  Buffer part(int64_t begin, int64_t count) { return {bytes() + begin * size_bytes(dtype_), count, dtype_, {}}; }
  Data copy_of_part(int64_t begin, int64_t count) const;
  void append(const Data& other);

  bool operator==(const Data& other) const;  ///< compares bits

 private:
  size_t num_bytes() const { return static_cast<size_t>(count_ * size_bytes(dtype_)); }

  std::unique_ptr<std::byte, FreeData> bytes_;
  int64_t count_ = 0;
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
