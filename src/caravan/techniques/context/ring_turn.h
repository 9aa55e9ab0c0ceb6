#pragma once

#include <string>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "caravan/mesh/mesh.h"
#include "caravan/nn/attention/fused_attention.h"
#include "caravan/techniques/context/ring_order.h"

namespace caravan {

/// A ring in which each rank executes the schedule.
struct Ring {
  MeshAxis axis;
  RingSchedule schedule;
  RingOrder order;
};

/// The attention of one layer in one pass, kept by the graph for its backward.
struct RingCall : torch::CustomClassHolder {
  RingCall(Ring ring_, std::string what_) : ring(std::move(ring_)), what(std::move(what_)) {}
  Ring ring;
  std::string what;
  // Of the tokens of all ranks, one after another.
  at::Tensor documents{};  ///< undefined: each row is one document
  at::Tensor positions{};  ///< in the text, int64 on the CPU; undefined: neither scores nor windows need them
  int64_t window = 0;      ///< 0: none
  Scores scores{};         ///< without positions; their bias is an input of the pass
};

/// The queries and keys of a turn.
class RingTurn {
 public:
  RingTurn(const RingCall& call, int turn, int64_t length)
      : call_(call),
        length_(length),
        part_(call.ring.order.part(call.ring.axis.coord(), turn, call.ring.axis.size(), length)),
        seen_(part_.is_causal ? VisibleKeys::causal() : VisibleKeys::all()) {
    sees_nothing_ = part_.num_queries == 0;
    if (!sees_nothing_ && call.documents.defined()) {
      const at::Tensor of_queries = for_queries(call.documents, 1), of_keys = for_keys(call.documents, 1);
      restrict(VisibleKeys::all().within_documents(of_queries, of_keys),
               [&] { return seen_.within_documents(of_queries, of_keys); });
    }
    if (!sees_nothing_ && call.window > 0) {
      const at::Tensor of_queries = for_queries(call.positions, 0), of_keys = for_keys(call.positions, 0);
      restrict(VisibleKeys::all().within_window(call.window, of_queries, of_keys),
               [&] { return seen_.within_window(call.window, of_queries, of_keys); });
    }
  }

  bool sees_nothing() const noexcept { return sees_nothing_; }
  const VisibleKeys& seen() const noexcept { return seen_; }
  at::Tensor queries(const at::Tensor& x) const { return x.narrow(1, part_.first_query, part_.num_queries); }
  AttentionBlock queries(const AttentionBlock& x) const { return x.queries(part_.first_query, part_.num_queries); }
  at::Tensor keys(const at::Tensor& x) const { return x.narrow(1, 0, part_.num_keys); }
  Scores scores(const at::Tensor& bias) const {
    Scores scores = call_.scores;
    if (!bias.defined()) return scores;
    scores.bias = bias;
    scores.query_positions = for_queries(call_.positions, 0);
    scores.key_positions = for_keys(call_.positions, 0);
    return scores;
  }

 private:
  /// Of what all ranks have, one after another on `dim`.
  at::Tensor for_queries(const at::Tensor& all, int64_t dim) const {
    return all.narrow(dim, call_.ring.axis.coord() * length_ + part_.first_query, part_.num_queries);
  }
  at::Tensor for_keys(const at::Tensor& all, int64_t dim) const {
    return all.narrow(dim, part_.from * length_, part_.num_keys);
  }
  /// To what restricted() gives, unless all of the keys are within `limits`.
  template <class Restricted>
  void restrict(const VisibleKeys& limits, const Restricted& restricted) {
    if (limits.is_everything(part_.num_keys)) return;
    seen_ = restricted();
    sees_nothing_ = seen_.is_nothing();
  }

  const RingCall& call_;
  int64_t length_;
  RingPart part_;
  VisibleKeys seen_;
  bool sees_nothing_ = false;
};

}  // namespace caravan
