#include "caravan/comm/calls/descriptor.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/text.h"
#include "caravan/comm/choice/selection.h"

namespace caravan {
namespace {

constexpr size_t kMaxSides = 4;  // in a message

std::string_view short_path(std::string_view path) {
  const size_t last = path.rfind('/');
  if (last == std::string_view::npos || last == 0) return path;
  const size_t before = path.rfind('/', last - 1);
  return before == std::string_view::npos ? path : path.substr(before + 1);
}

template <size_t N>
void copy_cut(std::array<char, N>& to, std::string_view text) {
  const size_t length = std::min(text.size(), N - 1);
  std::memcpy(to.data(), text.data(), length);
  to[length] = '\0';
}

/// The last folder and name of a source file. There are few call sites, and every call describes its own, so the short
/// texts are cached by the address of the long one.
struct ShortFile {
  const char* path = nullptr;
  std::array<char, sizeof(Descriptor::file)> text{};
};

const ShortFile& short_file(const char* path) {
  constexpr size_t kPlaces = 64;
  thread_local std::array<ShortFile, kPlaces> files;
  ShortFile& place = files[reinterpret_cast<uintptr_t>(path) / sizeof(uint64_t) % kPlaces];
  if (place.path != path) {
    copy_cut(place.text, short_path(path));
    place.path = path;
  }
  return place;
}

bool is_rooted(Verb verb) { return verb == Verb::broadcast || verb == Verb::reduce; }
bool reduces_data(Verb verb) {
  return verb == Verb::all_reduce || verb == Verb::reduce_scatter || verb == Verb::reduce;
}
bool counts_must_be_equal(Verb verb) { return verb == Verb::all_reduce || is_rooted(verb); }

bool same_algorithm(const Descriptor& a, const Descriptor& b) {
  return a.algorithm == b.algorithm && a.segment_bytes == b.segment_bytes;
}

bool same_call(const CallOf& a, const CallOf& b) {
  const Descriptor& x = *a.descriptor;
  const Descriptor& y = *b.descriptor;
  if (x.verb != y.verb) return false;
  if (x.verb == kSplitCall) return true;
  if (x.verb == kAllocateCall) return x.count == y.count;
  const Verb verb = static_cast<Verb>(x.verb);
  if (verb == Verb::barrier) return true;
  if (!same_algorithm(x, y)) return false;
  if (x.dtype != y.dtype || (reduces_data(verb) && x.op != y.op) || (is_rooted(verb) && x.root != y.root)) return false;
  if (counts_must_be_equal(verb)) return x.count == y.count;
  if (verb == Verb::all_gather) return std::ranges::equal(a.recv_counts, b.recv_counts);
  if (verb == Verb::reduce_scatter) return std::ranges::equal(a.send_counts, b.send_counts);
  return true;  // all_to_all: its counts are compared pair by pair
}

std::string side(const CallOf& call, bool with_algorithm = false) {
  const Descriptor& descriptor = *call.descriptor;
  std::string text = to_string(descriptor);
  if (with_algorithm && descriptor.algorithm > 0) {
    const auto algorithm = static_cast<algorithms::Algorithm>(descriptor.algorithm - 1);
    text += fmt::format(" by {}", algorithms::to_string({algorithm, descriptor.segment_bytes}));
  }
  const bool gathers = descriptor.verb == static_cast<uint8_t>(Verb::all_gather);
  const bool scatters = descriptor.verb == static_cast<uint8_t>(Verb::reduce_scatter);
  if (gathers || scatters) {
    text += fmt::format(" (parts {})", join(gathers ? call.recv_counts : call.send_counts));
  }
  return text;
}

std::string sides(std::span<const CallOf> calls) {
  std::vector<size_t> firsts;  // the first rank of each different call
  std::vector<std::vector<int64_t>> groups;
  for (size_t rank = 0; rank < calls.size(); ++rank) {
    const auto equal = std::ranges::find_if(firsts, [&](size_t first) { return same_call(calls[first], calls[rank]); });
    if (equal == firsts.end()) {
      firsts.push_back(rank);
      groups.push_back({static_cast<int64_t>(rank)});
    } else {
      groups[static_cast<size_t>(equal - firsts.begin())].push_back(static_cast<int64_t>(rank));
    }
  }
  const bool with_algorithm = !std::ranges::all_of(
      calls, [&](const CallOf& call) { return same_algorithm(*calls[0].descriptor, *call.descriptor); });
  std::string text;
  for (size_t i = 0; i < firsts.size() && i < kMaxSides; ++i) {
    text += fmt::format("{}rank{} {}: {}", i == 0 ? "" : "; ", groups[i].size() == 1 ? "" : "s", join(groups[i]),
                        side(calls[firsts[i]], with_algorithm));
  }
  if (firsts.size() > kMaxSides) text += fmt::format("; and {} more", firsts.size() - kMaxSides);
  return text;
}

}  // namespace

Descriptor describe(const Operation& operation) {
  Descriptor descriptor;
  descriptor.verb = static_cast<uint8_t>(operation.verb);
  descriptor.op = static_cast<uint8_t>(operation.op);
  descriptor.dtype = static_cast<uint8_t>(operation.dtype);
  descriptor.root = operation.peer >= 0 ? operation.peer : operation.root;
  descriptor.count = operation.verb == Verb::recv ? operation.out.count : operation.in.count;
  descriptor.sequence = operation.sequence;
  descriptor.line = operation.where.line();
  descriptor.what = operation.what;
  descriptor.file = short_file(operation.where.file_name()).text;
  return descriptor;
}

bool is_point_to_point(const Descriptor& call) noexcept {
  return call.verb == static_cast<uint8_t>(Verb::send) || call.verb == static_cast<uint8_t>(Verb::recv);
}

std::string_view call_name(uint8_t verb) noexcept {
  if (verb == kSplitCall) return "split";
  if (verb == kAllocateCall) return "allocate_shared";
  return name(static_cast<Verb>(verb));
}

std::string quoted(std::string_view text) { return text.empty() ? "" : fmt::format("\"{}\"", text); }

std::string call_site(const std::source_location& where) {
  return fmt::format("{}:{}", short_path(where.file_name()), where.line());
}

std::string to_string(const Descriptor& descriptor) {
  std::string text(call_name(descriptor.verb));
  if (descriptor.verb == kAllocateCall) {
    text += fmt::format(" {} bytes", descriptor.count);
  } else if (descriptor.verb != kSplitCall) {
    const Verb verb = static_cast<Verb>(descriptor.verb);
    if (reduces_data(verb)) text += fmt::format(" {}", name(static_cast<ReduceOp>(descriptor.op)));
    if (verb != Verb::barrier) {
      text += fmt::format(" {} [{}]", name(static_cast<Dtype>(descriptor.dtype)), descriptor.count);
    }
    if (is_rooted(verb)) text += fmt::format(" root {}", descriptor.root);
    if (verb == Verb::send) text += fmt::format(" to {}", descriptor.root);
    if (verb == Verb::recv) text += fmt::format(" from {}", descriptor.root);
  }
  if (descriptor.what[0] != '\0') text += fmt::format(" \"{}\"", descriptor.what.data());
  if (descriptor.line != 0) text += fmt::format(" at {}:{}", descriptor.file.data(), descriptor.line);
  return text;
}

std::string difference(std::span<const CallOf> calls) {
  for (const CallOf& call : calls) {
    if (!same_call(calls[0], call)) return sides(calls);
  }
  if (calls.empty() || calls[0].descriptor->verb != static_cast<uint8_t>(Verb::all_to_all)) return "";
  for (size_t from = 0; from < calls.size(); ++from) {
    for (size_t to = 0; to < calls.size(); ++to) {
      if (calls[from].send_counts[to] == calls[to].recv_counts[from]) continue;
      return fmt::format("rank {} sends {} elements to rank {}: {}; rank {} expects {} from rank {}: {}", from,
                         calls[from].send_counts[to], to, side(calls[from]), to, calls[to].recv_counts[from], from,
                         side(calls[to]));
    }
  }
  return "";
}

}  // namespace caravan
