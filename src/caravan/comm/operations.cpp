#include "caravan/comm/operations.h"

#include <numeric>
#include <string>
#include <tuple>

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace caravan {
namespace {

/// A label cut to the size of Operation::what. The labels of the two sides of a message are compared, so one that is
/// too long ends with a hash of the whole: "gradient of keys, turn 2, decoder.lay~1f09ac35".
std::string message_label(std::string_view label) {
  constexpr size_t kMost = std::tuple_size_v<decltype(Operation::what)> - 1;
  if (label.size() <= kMost) return std::string(label);
  const std::string hash = fmt::format("~{:08x}", static_cast<uint32_t>(XXH3_64bits(label.data(), label.size())));
  return std::string(label.substr(0, kMost - hash.size())) + hash;
}

Operation new_operation(Verb verb, const Call& call, const Stream& stream) {
  Operation operation;
  operation.verb = verb;
  operation.where = call.where;
  operation.stream = stream;
  call.what.copy(operation.what.data(), operation.what.size() - 1);  // the text may be empty, without memory
  return operation;
}

Operation new_operation(Verb verb, const ConstBuffer& in, const Buffer& out, const Call& call, const Stream& stream) {
  Operation operation = new_operation(verb, call, stream);
  operation.dtype = verb == Verb::recv ? out.dtype : in.dtype;
  operation.in = in;
  operation.out = out;
  return operation;
}

std::vector<int64_t> complete_counts(std::span<const int64_t> counts, int64_t each, int size) {
  if (counts.empty()) return std::vector<int64_t>(static_cast<size_t>(size), each);
  return {counts.begin(), counts.end()};
}

}  // namespace

int64_t part_begin(std::span<const int64_t> counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
}

Operation all_reduce_operation(const ConstBuffer& in, const Buffer& out, ReduceOp op, const Call& call,
                               const Stream& stream) {
  Operation operation = new_operation(Verb::all_reduce, in, out, call, stream);
  operation.op = op;
  return operation;
}

Operation all_gather_operation(const ConstBuffer& in, const Buffer& out, std::span<const int64_t> counts, int size,
                               const Call& call, const Stream& stream) {
  Operation operation = new_operation(Verb::all_gather, in, out, call, stream);
  operation.recv_counts = complete_counts(counts, in.count, size);
  return operation;
}

Operation reduce_scatter_operation(const ConstBuffer& in, const Buffer& out, ReduceOp op,
                                   std::span<const int64_t> counts, int size, const Call& call, const Stream& stream) {
  Operation operation = new_operation(Verb::reduce_scatter, in, out, call, stream);
  operation.op = op;
  operation.send_counts = complete_counts(counts, out.count, size);
  return operation;
}

Operation all_to_all_operation(const ConstBuffer& in, const Buffer& out, std::span<const int64_t> send_counts,
                               std::span<const int64_t> recv_counts, int size, const Call& call, const Stream& stream) {
  Operation operation = new_operation(Verb::all_to_all, in, out, call, stream);
  operation.send_counts = complete_counts(send_counts, in.count / size, size);
  operation.recv_counts = complete_counts(recv_counts, out.count / size, size);
  return operation;
}

Operation broadcast_operation(const Buffer& buffer, int root, const Call& call, const Stream& stream) {
  Operation operation = new_operation(Verb::broadcast, buffer, buffer, call, stream);
  operation.root = root;
  return operation;
}

Operation reduce_operation(const ConstBuffer& in, const Buffer& out, ReduceOp op, int root, const Call& call,
                           const Stream& stream) {
  Operation operation = new_operation(Verb::reduce, in, out, call, stream);
  operation.op = op;
  operation.root = root;
  return operation;
}

Operation message_operation(Verb verb, const ConstBuffer& in, const Buffer& out, int peer, const Call& call,
                            const Stream& stream) {
  Operation operation = new_operation(verb, in, out, {message_label(call.what), call.where}, stream);
  operation.peer = peer;
  return operation;
}

Operation barrier_operation(const Call& call) { return new_operation(Verb::barrier, call, {}); }

Operation same_call(const Operation& operation, int peer) {
  Operation call;
  call.verb = operation.verb;
  call.op = operation.op;
  call.dtype = operation.dtype;
  call.in = operation.in;
  call.out = operation.out;
  call.send_counts = operation.send_counts;
  call.recv_counts = operation.recv_counts;
  call.root = operation.root;
  call.peer = peer;
  call.stream = operation.stream;
  call.what = operation.what;
  call.where = operation.where;
  return call;
}

}  // namespace caravan
