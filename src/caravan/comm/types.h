#pragma once

#include <cstdint>
#include <source_location>
#include <string>
#include <string_view>

namespace caravan {

enum class Dtype : uint8_t { fp32, fp64, bf16, fp16, int64, int32, uint8, boolean };
enum class ReduceOp : uint8_t { sum, max, min };
enum class Verb : uint8_t {
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  broadcast,
  reduce,
  send,
  recv,
  barrier
};

inline constexpr int kNumDtypes = 8;
inline constexpr int kNumVerbs = 9;

int64_t size_bytes(Dtype dtype) noexcept;
std::string_view name(Dtype dtype) noexcept;
std::string_view name(ReduceOp op) noexcept;
std::string_view name(Verb verb) noexcept;

/// The table of reductions: every numeric dtype takes sum, max and min (uint8, int32 and int64 wrap around); boolean
/// takes max (or) and min (and), but no sum. bf16 and fp16 are accumulated in fp32 and rounded once.
bool reduces(ReduceOp op, Dtype dtype) noexcept;

enum class DeviceKind : uint8_t { cpu, cuda };
struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

/// Contiguous elements that the caller keeps alive until the operation on them completes. `count` counts elements, not
/// bytes.
struct Buffer {
  void* data = nullptr;
  int64_t count = 0;
  Dtype dtype = Dtype::fp32;
  Device device = {};
};
struct ConstBuffer {
  const void* data = nullptr;
  int64_t count = 0;
  Dtype dtype = Dtype::fp32;
  Device device = {};
  ConstBuffer() = default;
  ConstBuffer(const void* data_, int64_t count_, Dtype dtype_, Device device_ = {})
      : data(data_), count(count_), dtype(dtype_), device(device_) {}
  ConstBuffer(const Buffer& buffer)  // NOLINT: implicit
      : data(buffer.data), count(buffer.count), dtype(buffer.dtype), device(buffer.device) {}
};

/// The device stream that an operation is ordered on. Host buffers have none; a back-end that cannot use one refuses
/// it.
struct Stream {
  void* handle = nullptr;
};

/// The purpose and origin of a call: `what` names the tensor ("gradient bucket 3"), the location is the caller's line.
/// Errors contain both. They may differ between ranks, except the label of a message that both sides give:
/// CommOptions::check.
struct Call {
  Call(std::source_location location = std::source_location::current())
      : where(location) {}  // NOLINT: default argument
  Call(std::string_view text,
       std::source_location location = std::source_location::current())  // NOLINT: "name" is a call
      : what(text), where(location) {}
  Call(const char* text, std::source_location location = std::source_location::current())  // NOLINT
      : what(text), where(location) {}
  Call(const std::string& text, std::source_location location = std::source_location::current())  // NOLINT
      : what(text), where(location) {}

  std::string_view what;  ///< copied when the operation is issued
  std::source_location where;
};

}  // namespace caravan
