#include "caravan/comm/measure/exercise.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/measure/pattern.h"

namespace caravan::measure {
namespace {

constexpr size_t kAlign = 64;

UsageError refuse(const BenchCase& bench_case, std::string fact, std::string action) {
  return UsageError(
      {.op = "measure",
       .subject = fmt::format("{} {} {}", name(bench_case.verb), name(bench_case.dtype), bench_case.bytes),
       .fact = std::move(fact),
       .action = std::move(action)});
}

std::shared_ptr<void> plain_memory(size_t bytes) {
  const size_t rounded = (std::max<size_t>(bytes, 1) + kAlign - 1) / kAlign * kAlign;
  void* memory = std::aligned_alloc(kAlign, rounded);
  if (memory == nullptr) {
    throw ResourceError({.op = "measure",
                         .fact = fmt::format("no memory for a buffer of {} bytes", rounded),
                         .action = "use smaller sizes or fewer ranks"});
  }
  std::memset(memory, 0, rounded);
  return {memory, std::free};
}

}  // namespace

bool works_in_place(Verb verb) noexcept {
  return verb == Verb::all_reduce || verb == Verb::all_gather || verb == Verb::reduce_scatter || verb == Verb::reduce ||
         verb == Verb::broadcast;
}

Exercise::Exercise(Communicator& world, const BenchCase& bench_case)
    : world_(world), case_(bench_case), count_(bench_case.bytes / size_bytes(bench_case.dtype)) {
  if (world.size() < 2) throw refuse(bench_case, "one rank has no peer", "use 2 or more ranks");
  const bool has_buffer = bench_case.verb != Verb::barrier;
  const int64_t size = size_bytes(bench_case.dtype);
  if (has_buffer && (count_ < 1 || bench_case.bytes % size != 0)) {
    throw refuse(bench_case, fmt::format("{} bytes are not a whole number of elements of {}", bench_case.bytes, size),
                 fmt::format("use {} bytes", std::max<int64_t>(count_, 1) * size));
  }
  if (bench_case.in_place && !works_in_place(bench_case.verb)) {
    throw refuse(bench_case, "in and out of this verb cannot be one buffer", "leave in place out");
  }
  for (int rank = 0; rank < world.size(); ++rank) parts_.push_back(part(rank).count);
  own_part_.assign(parts_.size(), part(world.rank()).count);
  if (!has_buffer) return;
  allocate();
  write_random();
}

Exercise::Part Exercise::part(int rank) const noexcept {
  const int64_t n = world_.size();
  const int64_t more = count_ % n;
  return {count_ / n * rank + std::min<int64_t>(rank, more), count_ / n + (rank < more ? 1 : 0)};
}

Buffer Exercise::at(const std::shared_ptr<void>& memory, int64_t first, int64_t count) const noexcept {
  return {static_cast<std::byte*>(memory.get()) + first * size_bytes(case_.dtype), count, case_.dtype};
}

void Exercise::allocate() {
  const Part own = part(world_.rank());
  const Verb verb = case_.verb;
  const int64_t in_count = verb == Verb::all_gather ? own.count : count_;
  const int64_t out_count = verb == Verb::reduce_scatter ? own.count
                            : verb == Verb::all_to_all   ? own.count * world_.size()
                                                         : count_;
  const auto memory = [this](int64_t count) {
    const auto bytes = static_cast<size_t>(count * size_bytes(case_.dtype));
    return case_.copy ? plain_memory(bytes) : world_.allocate(bytes);
  };
  if (case_.in_place || verb == Verb::broadcast) {
    in_memory_ = out_memory_ = memory(count_);
    const int64_t first = own.first;
    in_ = at(in_memory_, verb == Verb::all_gather ? first : 0, in_count);
    out_ = at(in_memory_, verb == Verb::reduce_scatter ? first : 0, out_count);
    return;
  }
  in_memory_ = memory(in_count);
  out_memory_ = memory(out_count);
  in_ = at(in_memory_, 0, in_count);
  out_ = at(out_memory_, 0, out_count);
}

void Exercise::call() {
  const int rank = world_.rank();
  const int size = world_.size();
  const ReduceOp op = checked_op(case_.dtype);
  switch (case_.verb) {
    case Verb::all_reduce: return world_.all_reduce(in_, out_, op);
    case Verb::all_gather: return world_.all_gather(in_, out_, parts_);
    case Verb::reduce_scatter: return world_.reduce_scatter(in_, out_, op, parts_);
    case Verb::all_to_all: return world_.all_to_all(in_, out_, parts_, own_part_);
    case Verb::broadcast: return world_.broadcast(out_, 0);
    case Verb::reduce: return world_.reduce(in_, out_, op, 0);
    case Verb::barrier: return world_.barrier();
    case Verb::send: {
      Work sent = world_.send_async(in_, (rank + 1) % size);
      world_.recv(out_, (rank + size - 1) % size);
      return sent.wait();
    }
    case Verb::recv: {
      const int partner = rank ^ 1;
      if (partner >= size) return;
      if (rank < partner) world_.send(in_, partner);
      world_.recv(out_, partner);
      if (rank > partner) world_.send(in_, partner);
      return;
    }
  }
}

void Exercise::write_input() {
  const Pattern pattern = Pattern::of_rank(case_.dtype, world_.rank(), world_.size());
  if (case_.verb == Verb::broadcast && world_.rank() != 0) return;
  pattern.write(in_.data, in_.count, case_.verb == Verb::all_gather ? part(world_.rank()).first : 0);
}

std::string Exercise::compare_output() const {
  const int rank = world_.rank();
  const int size = world_.size();
  const auto from = [&](int other) { return Pattern::of_rank(case_.dtype, other, size); };
  const auto reduced = [&] { return Pattern::reduced(case_.dtype, size); };
  switch (case_.verb) {
    case Verb::all_reduce: return reduced().difference(out_.data, out_.count);
    case Verb::reduce: return rank == 0 ? reduced().difference(out_.data, out_.count) : "";
    case Verb::reduce_scatter: return reduced().difference(out_.data, out_.count, part(rank).first);
    case Verb::broadcast: return from(0).difference(out_.data, out_.count);
    case Verb::send: return from((rank + size - 1) % size).difference(out_.data, out_.count);
    case Verb::recv: return (rank ^ 1) < size ? from(rank ^ 1).difference(out_.data, out_.count) : "";
    case Verb::barrier: return "";
    case Verb::all_gather:
    case Verb::all_to_all: break;
  }
  const bool gathers = case_.verb == Verb::all_gather;
  for (int other = 0; other < size; ++other) {
    const Part whole = part(gathers ? other : rank);
    const int64_t at_element = gathers ? whole.first : whole.count * other;
    const Buffer piece = at(out_memory_, at_element, whole.count);
    const std::string wrong = from(other).difference(piece.data, piece.count, whole.first);
    if (!wrong.empty()) return fmt::format("of rank {}'s part {}", other, wrong);
  }
  return "";
}

std::string Exercise::check() {
  if (case_.verb == Verb::barrier) {
    call();
    return "";
  }
  write_input();
  call();
  std::string wrong = compare_output();
  world_.barrier();  // a peer may still be reading
  write_random();
  return wrong;
}

void Exercise::write_random() const {
  const Pattern pattern = Pattern::random(case_.dtype, world_.rank());
  pattern.write(in_.data, in_.count);
  if (out_.data != in_.data) pattern.write(out_.data, out_.count);
}

}  // namespace caravan::measure
