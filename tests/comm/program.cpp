#include "tests/comm/program.h"

#include <numeric>

#include "tests/comm/reference.h"

namespace caravan::testing {
namespace {

void call_all(Communicator& comm, int64_t count, Dtype dtype) {
  const int n = comm.size();
  const int rank = comm.rank();
  Data one(count, dtype);
  Data all(count * n, dtype);
  Data more(count * n, dtype);
  comm.all_reduce(one.buffer(), one.buffer(), ReduceOp::max);
  comm.all_gather(one.const_buffer(), all.buffer());
  comm.reduce_scatter(all.const_buffer(), one.buffer(), ReduceOp::min);
  comm.all_to_all(all.const_buffer(), more.buffer());
  for (int root = 0; root < n; ++root) {
    comm.broadcast(one.buffer(), root);
    comm.reduce(one.const_buffer(), one.buffer(), ReduceOp::max, root);
  }
  if (n > 1) {
    Data letter(count, dtype);
    comm.send(one.const_buffer(), (rank + 1) % n);
    comm.recv(letter.buffer(), (rank + n - 1) % n);
  }
  comm.barrier();
}

void call_uneven(Communicator& comm, int64_t scale, Dtype dtype) {
  const std::vector<int64_t> counts = uneven_counts(comm.size(), scale);
  const int64_t own = counts[comm.rank()];
  Data part(own, dtype);
  Data all(std::accumulate(counts.begin(), counts.end(), int64_t{0}), dtype);
  comm.all_gather(part.const_buffer(), all.buffer(), counts);
  comm.reduce_scatter(all.const_buffer(), part.buffer(), ReduceOp::max, counts);
  // All ranks send counts[r] elements to rank r.
  const std::vector<int64_t> received(comm.size(), own);
  Data out(own * comm.size(), dtype);
  comm.all_to_all(all.const_buffer(), out.buffer(), counts, received);
}

}  // namespace

std::vector<Traffic> run_program(const std::shared_ptr<Communicator>& comm) {
  const int rank = comm->rank();
  std::vector<int> row;
  std::vector<int> column;
  for (int other = 0; other < comm->size(); ++other) {
    if (other / 2 == rank / 2) row.push_back(other);
    if (other % 2 == rank % 2) column.push_back(other);
  }
  const auto rows = comm->split(row, "row");
  const auto columns = comm->split(column, "column");
  std::vector<Traffic> counted;
  for (const auto& each : {comm, rows, columns}) {
    call_all(*each, 0, Dtype::fp32);
    call_all(*each, 1037, Dtype::bf16);
    call_all(*each, 24, Dtype::boolean);
    call_uneven(*each, 17, Dtype::fp64);
    counted.push_back(each->traffic());
  }
  return counted;
}

}  // namespace caravan::testing
