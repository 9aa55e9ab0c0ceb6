#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

/// Integers of the store's protocol: little-endian.
namespace caravan::store_protocol {

template <typename T>
void append(std::string& out, T number) {
  for (size_t i = 0; i < sizeof(T); ++i) out.push_back(static_cast<char>(static_cast<uint64_t>(number) >> (8 * i)));
}

/// The first sizeof(T) bytes, which must exist.
template <typename T>
T read(std::string_view bytes) {
  uint64_t number = 0;
  for (size_t i = 0; i < sizeof(T); ++i) number |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  return static_cast<T>(number);
}

}  // namespace caravan::store_protocol
