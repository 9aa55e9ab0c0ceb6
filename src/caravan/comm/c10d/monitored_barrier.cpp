#include "caravan/comm/c10d/monitored_barrier.h"

#include <algorithm>
#include <vector>

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/comm/c10d/methods.h"

namespace caravan {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

void monitored_barrier(C10dQueue& queue, int rank, int size, milliseconds timeout) {
  constexpr int kTag = -1;  // users' tags begin with 0
  const milliseconds limit = timeout.count() > 0 ? std::min(timeout, queue.timeout()) : queue.timeout();
  const auto deadline = steady_clock::now() + limit;
  const C10dWork::Call call{c10d_methods::kMonitoredBarrier, {}, {}, milliseconds(0), {}};
  std::vector<std::pair<int, c10::intrusive_ptr<C10dWork>>> arrivals;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    queue.send(call, at::zeros({1}, at::kByte), peer, kTag);
    arrivals.emplace_back(peer, queue.receive(call, at::zeros({1}, at::kByte), peer, kTag));
  }
  std::vector<int64_t> missing;
  for (const auto& [peer, work] : arrivals) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
    try {
      work->wait(std::max(left, milliseconds(1)));
    } catch (const CommError&) {
      if (steady_clock::now() < deadline) throw;  // a failure; at the deadline, others may have timed out as well
      missing.push_back(peer);
    }
  }
  if (missing.empty()) return;
  const CommError error(
      {.op = call.method.name,
       .fact = fmt::format("Timed out: rank{} {} of {} did not join within {} s", missing.size() == 1 ? "" : "s",
                           join(missing), size, std::chrono::duration<double>(limit).count()),
       .where = fmt::format("rank {}", rank),
       .action = "see what those ranks do instead"});
  queue.abort(error.what());
  throw error;
}

}  // namespace caravan
