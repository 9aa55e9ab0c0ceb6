#include "caravan/comm/calls/checks.h"

#include <limits>
#include <span>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/comm/calls/descriptor.h"
#include "caravan/comm/operations.h"

namespace caravan {
namespace {

class Check {
 public:
  Check(const Operation& operation, const CheckedGroup& group) : operation_(operation), group_(group) {}

  void run() const {
    switch (operation_.verb) {
      case Verb::all_reduce: return check_reduction(true);
      case Verb::reduce: check_root(); return check_reduction(group_.rank == operation_.root);
      case Verb::all_gather: return check_all_gather();
      case Verb::reduce_scatter: return check_reduce_scatter();
      case Verb::all_to_all: return check_all_to_all();
      case Verb::broadcast: check_root(); return check_buffer(operation_.in, "the buffer");
      case Verb::send: check_peer(); return check_buffer(operation_.in, "in");
      case Verb::recv: check_peer(); return check_buffer(operation_.out, "out");
      case Verb::barrier: return;
    }
  }

 private:
  [[noreturn]] void refuse(std::string fact, std::string action) const {
    throw UsageError({.op = std::string(name(operation_.verb)),
                      .subject = operation_.what.data(),
                      .fact = std::move(fact),
                      .where = where_text(group_, operation_.where),
                      .action = std::move(action)});
  }

  void check_buffer(const ConstBuffer& buffer, std::string_view which) const {
    constexpr int64_t kMostElems = std::numeric_limits<int64_t>::max() / 64;
    if (buffer.count < 0 || buffer.count > kMostElems) {
      refuse(fmt::format("{} has a count of {}", which, buffer.count), "give the number of elements, at least 0");
    }
    if (buffer.count > 0 && buffer.data == nullptr && group_.touches_memory) {
      refuse(fmt::format("{} has {} elements and no memory", which, buffer.count),
             fmt::format("pass memory: only the back-end record needs none, and this one is {}", group_.backend));
    }
  }

  void check_both() const {
    check_buffer(operation_.in, "in");
    check_buffer(operation_.out, "out");
    if (operation_.in.dtype != operation_.out.dtype) {
      refuse(fmt::format("in is {}, out is {}", name(operation_.in.dtype), name(operation_.out.dtype)),
             "pass two buffers of the same dtype");
    }
  }

  void check_op() const {
    if (reduces(operation_.op, operation_.dtype)) return;
    refuse(fmt::format("there is no {} of {}", name(operation_.op), name(operation_.dtype)),
           "use max (or), min (and), or count in int64");
  }

  void check_reduction(bool has_out) const {
    check_op();
    if (!has_out) return check_buffer(operation_.in, "in");
    check_both();
    if (operation_.in.count != operation_.out.count) {
      refuse(fmt::format("in has {} elements, out has {}", operation_.in.count, operation_.out.count),
             "pass two buffers of the same size, or one buffer twice");
    }
    check_overlap(0, operation_.in, operation_.out, "in and out overlap without being the same memory");
  }

  void check_all_gather() const {
    check_both();
    const int64_t total = check_counts(operation_.recv_counts, "counts");
    const int64_t own = operation_.recv_counts[static_cast<size_t>(group_.rank)];
    if (operation_.in.count != own) {
      refuse(fmt::format("in has {} elements, counts[{}] is {}", operation_.in.count, group_.rank, own),
             "pass the number of elements of every rank in counts, the same list on every rank");
    }
    check_total("out", operation_.out.count, total, operation_.recv_counts);
    check_overlap(part_begin(operation_.recv_counts, group_.rank), operation_.in, operation_.out,
                  "in overlaps out and is not this rank's part of it");
  }

  void check_reduce_scatter() const {
    check_op();
    check_both();
    const int64_t total = check_counts(operation_.send_counts, "counts");
    const int64_t own = operation_.send_counts[static_cast<size_t>(group_.rank)];
    if (operation_.out.count != own) {
      refuse(fmt::format("out has {} elements, counts[{}] is {}", operation_.out.count, group_.rank, own),
             "pass the size of every rank's part in counts, the same list on every rank");
    }
    check_total("in", operation_.in.count, total, operation_.send_counts);
    check_overlap(part_begin(operation_.send_counts, group_.rank), operation_.out, operation_.in,
                  "out overlaps in and is not this rank's part of it");
  }

  void check_all_to_all() const {
    check_both();
    const int64_t sent = check_counts(operation_.send_counts, "send_counts");
    const int64_t received = check_counts(operation_.recv_counts, "recv_counts");
    check_total("in", operation_.in.count, sent, operation_.send_counts);
    check_total("out", operation_.out.count, received, operation_.recv_counts);
    const size_t own = static_cast<size_t>(group_.rank);
    if (operation_.send_counts[own] != operation_.recv_counts[own]) {
      refuse(fmt::format("this rank sends itself {} elements and expects {}", operation_.send_counts[own],
                         operation_.recv_counts[own]),
             "make send_counts and recv_counts equal for this rank itself");
    }
    if (overlaps(operation_.in, operation_.out)) refuse("in and out overlap", "pass two buffers");
  }

  int64_t check_counts(std::span<const int64_t> counts, std::string_view which) const {
    if (counts.size() != static_cast<size_t>(group_.size)) {
      refuse(fmt::format("{} has {} numbers for {} ranks", which, counts.size(), group_.size),
             "pass one for each rank");
    }
    int64_t total = 0;
    for (const int64_t count : counts) {
      if (count < 0)
        refuse(fmt::format("{} has a negative number: {}", which, join(counts)), "pass numbers of at least 0");
      if (__builtin_add_overflow(total, count, &total)) {
        refuse(fmt::format("the sum of {} is too large: {}", which, join(counts)), "pass numbers of elements");
      }
    }
    return total;
  }

  void check_total(std::string_view which, int64_t count, int64_t total, std::span<const int64_t> counts) const {
    if (count == total) return;
    refuse(
        fmt::format("{} has {} elements, the parts of the {} ranks have {} ({})", which, count, group_.size, total,
                    join(counts)),
        fmt::format("make the parts add up to {}; leave counts out only if it is divisible by {}", which, group_.size));
  }

  void check_root() const {
    if (operation_.root >= 0 && operation_.root < group_.size) return;
    refuse(fmt::format("there is no rank {} to be the root", operation_.root),
           fmt::format("choose a root from 0 to {}", group_.size - 1));
  }

  void check_peer() const {
    const int peer = operation_.peer;
    if (peer >= 0 && peer < group_.size && peer != group_.rank) return;
    refuse(peer == group_.rank ? fmt::format("rank {} is this rank itself", peer)
                               : fmt::format("there is no rank {}", peer),
           group_.size == 1 ? "a communicator of one rank has no peers"
                            : fmt::format("choose another rank from 0 to {}", group_.size - 1));
  }

  static bool overlaps(const ConstBuffer& a, const ConstBuffer& b) {
    if (a.data == nullptr || b.data == nullptr) return false;  // in a record world
    const auto a_begin = reinterpret_cast<uintptr_t>(a.data);
    const auto b_begin = reinterpret_cast<uintptr_t>(b.data);
    const auto a_end = a_begin + static_cast<uintptr_t>(a.count * size_bytes(a.dtype));
    const auto b_end = b_begin + static_cast<uintptr_t>(b.count * size_bytes(b.dtype));
    return a_begin < b_end && b_begin < a_end && a_begin != a_end && b_begin != b_end;
  }

  /// `part` may lie in `whole` only at element `begin`.
  void check_overlap(int64_t begin, const ConstBuffer& part, const ConstBuffer& whole, std::string fact) const {
    if (!overlaps(part, whole)) return;
    const auto place = reinterpret_cast<uintptr_t>(whole.data) + static_cast<uintptr_t>(begin * size_bytes(part.dtype));
    if (reinterpret_cast<uintptr_t>(part.data) != place) refuse(std::move(fact), "copy one of them first");
  }

  const Operation& operation_;
  const CheckedGroup& group_;
};

}  // namespace

std::string where_text(const CheckedGroup& group, const std::source_location& location) {
  return fmt::format("rank {} of {} of \"{}\", {}", group.rank, group.size, group.name, call_site(location));
}

void check_operation(const Operation& operation, const CheckedGroup& group) { Check(operation, group).run(); }

}  // namespace caravan
