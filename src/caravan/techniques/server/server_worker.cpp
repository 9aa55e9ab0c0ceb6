#include "caravan/techniques/server/server_worker.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include "caravan/optim/grad_norm.h"

namespace caravan {

ServerWorker::ServerWorker(FlatState& state, ShardServer& server, const ServerLinks& links, double clip_norm)
    : state_(state), server_(server), links_(links), clip_norm_(clip_norm) {}

void ServerWorker::begin() {
  pulls_.assign(state_.layout.buckets().size(), {});
  held_.clear();
  squares_ = 0;
}

void ServerWorker::push(const Bucket& bucket, const at::Tensor& gradients) {
  squares_ += sum_of_squares(gradients);
  if (clip_norm_ > 0) {
    held_.emplace_back(&bucket, gradients);
  } else {
    send(bucket, gradients);
  }
}

void ServerWorker::send(const Bucket& bucket, const at::Tensor& gradients) {
  Pull& pull = pulls_[static_cast<size_t>(bucket.index)];
  const at::Tensor& leaf = state_.kept_leaves[static_cast<size_t>(bucket.index)];
  for (int rank = 0; rank < links_.pushes->size(); ++rank) {
    const int64_t count = shard_count(bucket, rank);
    if (count == 0) continue;
    const int64_t offset = shard_offset(bucket, rank);
    if (rank == links_.pushes->rank()) {
      server_.apply_own(bucket, gradients.narrow(0, offset, count));
      pull.reads_own = true;
      continue;
    }
    // Nothing reads the unsharded parameters between their last use in this backward and the next pull.
    pull.received.push_back(recv_async(*links_.values, leaf.narrow(0, offset, count), rank, "values for a worker"));
    send_async(*links_.pushes, at::tensor({int64_t{bucket.index}}, at::kLong), rank, "push");
    send_async(*links_.pushes, gradients.narrow(0, offset, count), rank, "gradients of a worker");
  }
}

bool ServerWorker::has_values(const Bucket& bucket) {
  Pull& pull = pulls_[static_cast<size_t>(bucket.index)];
  while (!pull.received.empty()) {
    if (!pull.received.back().done()) return false;
    pull.received.back().wait();
    pull.received.pop_back();
  }
  if (pull.reads_own) pull.reads_own = !server_.read_own(bucket);
  return !pull.reads_own;
}

double ServerWorker::finish_step() {
  const at::NoGradGuard no_grad;
  const double norm = std::sqrt(std::exchange(squares_, 0));
  if (!std::isfinite(norm)) return norm;
  const double scale = clip_scale(norm, clip_norm_);
  for (auto& [bucket, gradients] : held_) {
    if (scale != 1) gradients.mul_(scale);
    send(*bucket, gradients);
    gradients = at::Tensor();
  }
  held_.clear();
  return norm;
}

void ServerWorker::stop() {
  for (int rank = 0; rank < links_.pushes->size(); ++rank) {
    if (rank == links_.pushes->rank() || !server_.is_server(rank)) continue;
    send_async(*links_.pushes, at::tensor({kNoMore}, at::kLong), rank, "push");
  }
}

bool ServerWorker::is_done() {
  return std::ranges::all_of(pulls_, [](Pull& pull) {
    std::erase_if(pull.received, [](Work& work) {
      if (!work.done()) return false;
      work.wait();
      return true;
    });
    return pull.received.empty();
  });
}

}  // namespace caravan
