#include <algorithm>
#include <array>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/formats/safetensors/safetensors.h"

namespace caravan {
namespace {

using nlohmann::json;

constexpr std::array<std::string_view, kNumDtypes> kNames{"F32", "F64", "BF16", "F16", "I64", "I32", "U8", "BOOL"};

[[noreturn]] void refuse(const std::filesystem::path& file, const std::string& fact, std::string action = {}) {
  throw DataError({.op = "safetensors",
                   .subject = file.string(),
                   .fact = fact,
                   .action = action.empty() ? "get the file again: it is damaged, or not a safetensors file" : action});
}

/// Parses JSON of at most three levels and without duplicate keys.
json parse_strictly(std::string_view text, const std::filesystem::path& file) {
  constexpr int kDeepest = 3;  // the header, a tensor, its shape
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) {
      keys.resize(static_cast<size_t>(depth) + 1);
      keys.back().clear();
    }
    if ((event == json::parse_event_t::object_start || event == json::parse_event_t::array_start) &&
        depth >= kDeepest) {
      refuse(file, "has a header that is nested too deeply");
    }
    if (event == json::parse_event_t::key) {
      const auto level = static_cast<size_t>(depth) - 1;
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys[level].insert(key).second) refuse(file, fmt::format("names '{}' twice", key));
    }
    return true;
  };
  try {
    return json::parse(text, check);
  } catch (const json::exception& error) {
    refuse(file, fmt::format("has a header that is not JSON: {}", error.what()));
  }
}

class HeaderReader {
 public:
  HeaderReader(const std::filesystem::path& file, uint64_t data_bytes) : file_(file), data_bytes_(data_bytes) {}

  SafetensorsHeader read(const json& root) const {
    if (!root.is_object()) refuse(file_, "has a header that is not a JSON object");
    SafetensorsHeader header;
    for (const auto& [name, value] : root.items()) {
      if (name == "__metadata__") {
        header.metadata = metadata(value);
      } else {
        header.tensors.emplace(name, entry(name, value));
      }
    }
    check_ranges(header);
    return header;
  }

 private:
  std::map<std::string, std::string> metadata(const json& value) const {
    std::map<std::string, std::string> out;
    if (!value.is_object()) refuse(file_, "has a __metadata__ that is not an object");
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string())
        refuse(file_, fmt::format("has a value of '{}' in __metadata__ that is not a string", key));
      out.emplace(key, text.get<std::string>());
    }
    return out;
  }

  int64_t number(const std::string& name, const json& value) const {
    if (value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t{INT64_MAX}) return value.get<int64_t>();
    refuse(file_, fmt::format("has a size or an offset of {} that is not a whole number of at least 0", name));
  }

  SafetensorsEntry entry(const std::string& name, const json& value) const {
    if (!value.is_object() || value.size() != 3 || !value.contains("dtype") || !value.contains("shape") ||
        !value.contains("data_offsets")) {
      refuse(file_, fmt::format("has other keys for {} than dtype, shape and data_offsets", name));
    }
    const json& dtype = value["dtype"];
    const json& shape = value["shape"];
    const json& offsets = value["data_offsets"];
    if (!dtype.is_string() || !shape.is_array() || !offsets.is_array() || offsets.size() != 2) {
      refuse(file_, fmt::format("lacks dtype, shape [..] or data_offsets [begin, end] of {}", name));
    }
    SafetensorsEntry entry;
    entry.dtype = safetensors_dtype(dtype.get_ref<const std::string&>(), file_, name);
    int64_t bytes = size_bytes(entry.dtype);
    bool overflows = false;
    for (const json& size : shape) {
      entry.shape.push_back(number(name, size));
      overflows = __builtin_mul_overflow(bytes, entry.shape.back(), &bytes) || overflows;
    }
    if (overflows) refuse(file_, fmt::format("has an impossible shape of {}: [{}]", name, join(entry.shape)));
    entry.begin = number(name, offsets[0]);
    entry.end = number(name, offsets[1]);
    if (entry.end < entry.begin || static_cast<uint64_t>(entry.end) > data_bytes_) {
      refuse(file_, fmt::format("has {} at bytes {} to {} of {}", name, entry.begin, entry.end, data_bytes_));
    }
    if (entry.end - entry.begin != bytes) {
      refuse(file_, fmt::format("has {1} bytes for {0}, but {2} [{3}] takes {4}", name, entry.end - entry.begin,
                                safetensors_name(entry.dtype), join(entry.shape), bytes));
    }
    return entry;
  }

  void check_ranges(const SafetensorsHeader& header) const {
    std::vector<std::pair<const std::string*, const SafetensorsEntry*>> order;
    for (const auto& [name, entry] : header.tensors) order.emplace_back(&name, &entry);
    std::ranges::sort(order, {}, [](const auto& item) { return std::pair(item.second->begin, item.second->end); });
    int64_t end = 0;
    for (const auto& [name, entry] : order) {
      if (entry->begin != end) {
        refuse(file_, fmt::format("has {} before {}, which begins at byte {} instead of {}",
                                  entry->begin < end ? "an overlap" : "a gap", *name, entry->begin, end));
      }
      end = entry->end;
    }
    if (static_cast<uint64_t>(end) != data_bytes_) {
      refuse(file_, fmt::format("has {} bytes of tensors, but the header describes {}", data_bytes_, end));
    }
  }

  const std::filesystem::path& file_;
  uint64_t data_bytes_;
};

}  // namespace

std::string_view safetensors_name(Dtype dtype) noexcept { return kNames[static_cast<size_t>(dtype)]; }

Dtype safetensors_dtype(std::string_view name, const std::filesystem::path& file, std::string_view tensor) {
  const auto* found = std::ranges::find(kNames, name);
  if (found != kNames.end()) return static_cast<Dtype>(found - kNames.begin());
  refuse(file, fmt::format("has {} of dtype '{}'", tensor, name),
         fmt::format("convert it to one of {}", fmt::join(kNames, ", ")));
}

SafetensorsHeader parse_safetensors_header(std::string_view text, uint64_t data_bytes,
                                           const std::filesystem::path& file) {
  if (!text.starts_with('{')) refuse(file, "has a header that does not begin with {");
  return HeaderReader(file, data_bytes).read(parse_strictly(text, file));
}

}  // namespace caravan
