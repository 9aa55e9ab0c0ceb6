#pragma once

#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "caravan/engine/flat/flat.h"
#include "caravan/engine/flat/pool.h"
#include "caravan/engine/strategy.h"
#include "caravan/module/module.h"

namespace caravan {

/// Communication between pipeline stages on different ranks: all outputs of a stage, and the gradients of those that
/// require one. The next receive from each peer is posted ahead, and a send is waited for at the second next send to
/// the same peer, so both overlap computation. A send of a micro-batch is complete at the latest when something of it
/// is received back, since a stage sends after it has received.
///
/// Sends the tensors, and their shapes: once, with the first micro-batch, if shapes are static (Strategy), else with
/// each.
class StageLinks {
 public:
  /// `device`: of received tensors. The others outlive this.
  StageLinks(const Mesh& mesh, const Strategy& strategy, at::Device device);

  /// `table` is the table of this rank, and outlives the step.
  void begin_step(const Schedule& table, int num_micro_batches);
  /// Returns when everything is sent.
  void finish_step();

  /// Sends the outputs of the stage before `entry.unit`'s or, for a gradient, the gradients of its inputs that require
  /// one, in order. Throws ShapeError if shapes are static and these are not those of the first micro-batch.
  void put(const Action& entry, int stage, const Tensors& tensors);
  /// Receives the same; activations require gradients as on the sender.
  Tensors get(const Action& entry, int stage);

  /// Outside of a step: sends the outputs of the stage before `stage`, with their shapes.
  void put_alone(int stage, const Tensors& outputs);
  Tensors get_alone(int stage);

  void poll();
  /// Time in ms that this rank waited for other stages in this step.
  double wait_ms() const noexcept { return waited_ms_; }

 private:
  /// Metadata of a tensor.
  struct Shape {
    at::ScalarType dtype;
    std::vector<int64_t> sizes;
    bool has_gradient;
    bool operator==(const Shape&) const = default;
  };
  using Shapes = std::vector<Shape>;
  struct Receipt {
    Tensors tensors;
    std::vector<Work> works;
  };
  using Route = std::pair<int, bool>;  ///< coordinate of the peer, is a gradient
  using Works = std::vector<Work>;
  struct Sent {
    int micro_batch;
    Works works;
  };
  using Key = std::pair<int, int>;  ///< receiving stage and micro-batch (static: 0)

  FlatCell cell(int from, int to) const;
  Works send_all(const FlatCell& cell, const Tensors& tensors, const Call& call, bool is_gradient = false);
  Works recv_all(const FlatCell& cell, const Tensors& tensors, const Call& call) const;
  /// Throws ShapeError if the header has no room for it.
  Shapes describe(const Tensors& tensors, int stage) const;
  void check_same(const Shapes& agreed, const Shapes& shapes, int stage, int micro_batch) const;
  Work send_shapes(const FlatCell& cell, const Shapes& shapes) const;
  Shapes recv_shapes(const FlatCell& cell) const;
  Tensors make(const Shapes& shapes) const;
  void keep_one(Route route, Sent sent);
  void wait_for_sends(int micro_batch);
  void wait(Works& works);
  Key key(int stage, int micro_batch) const;
  /// Shapes of what crosses into `stage`; null: not known yet.
  const Shapes* shapes_of(int stage, int micro_batch) const;
  Shapes with_gradient(const Shapes& shapes, int stage) const;
  Receipt post(const Action& entry, int stage);
  void post_next(int peer);

  const Mesh& mesh_;
  const Strategy& strategy_;
  at::Device device_;
  std::optional<BufferPool> to_send_;  ///< if ranks read each other's memory: copies of tensors in flight
  int num_micro_batches_ = 0;
  std::map<Key, Shapes> shapes_;                           ///< of what crosses
  std::map<int, std::deque<std::pair<Action, int>>> due_;  ///< receives of the step, by peer, with their stages
  std::map<int, Receipt> posted_;                          ///< the first of due_, by peer
  std::map<Route, std::deque<Sent>> sends_;
  double waited_ms_ = 0;
};

}  // namespace caravan
