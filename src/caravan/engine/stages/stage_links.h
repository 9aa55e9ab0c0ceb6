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

/// What crosses between the stages of a pipeline that are on different ranks: all outputs of a stage, and the gradients
/// of those that have one. The next receive of each peer is posted ahead, and sends are waited for when the next but
/// one goes the same way, so both travel while the ranks compute. What is sent of a micro-batch is there, at the
/// latest, when more of it comes back: a stage sends after it has received.
///
/// Sent: the tensors. Where shapes are static, their shapes once, with the first micro-batch (Strategy), else with
/// each.
class StageLinks {
 public:
  /// `device`: of what is received. The others outlive this.
  StageLinks(const Mesh& mesh, const Strategy& strategy, at::Device device);

  /// `table` is that of this rank, and outlives the step.
  void begin_step(const Schedule& table, int num_micro_batches);
  /// Returns when everything is sent.
  void finish_step();

  /// The outputs of the stage before `entry.unit`'s; of a gradient, those of its inputs that require one, in order.
  /// Throws ShapeError if shapes are static and these are not those of the first micro-batch.
  void put(const Action& entry, int stage, const Tensors& tensors);
  /// The same, received; activations require gradients as they did where they come from.
  Tensors get(const Action& entry, int stage);

  /// Outside of a step: the outputs of the stage before `stage`, with their shapes.
  void put_alone(int stage, const Tensors& outputs);
  Tensors get_alone(int stage);

  void poll();
  /// This rank has waited for other stages so long in the step.
  double wait_ms() const noexcept { return waited_ms_; }

 private:
  /// A tensor without its numbers.
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
  /// Throws ShapeError for what no header has room for.
  Shapes describe(const Tensors& tensors, int stage) const;
  void check_same(const Shapes& agreed, const Shapes& shapes, int stage, int micro_batch) const;
  Work send_shapes(const FlatCell& cell, const Shapes& shapes) const;
  Shapes recv_shapes(const FlatCell& cell) const;
  Tensors make(const Shapes& shapes) const;
  void keep_one(Route route, Sent sent);
  void wait_for_sends(int micro_batch);
  void wait(Works& works);
  Key key(int stage, int micro_batch) const;
  /// Of what crosses into `stage`; null: not known yet.
  const Shapes* shapes_of(int stage, int micro_batch) const;
  Shapes with_gradient(const Shapes& shapes, int stage) const;
  Receipt post(const Action& entry, int stage);
  void post_next(int peer);

  const Mesh& mesh_;
  const Strategy& strategy_;
  at::Device device_;
  std::optional<BufferPool> to_send_;  ///< where ranks read each other's memory: copies of what is on its way
  int num_micro_batches_ = 0;
  std::map<Key, Shapes> shapes_;                           ///< of what crosses
  std::map<int, std::deque<std::pair<Action, int>>> due_;  ///< receives of the step, by peer, with their stages
  std::map<int, Receipt> posted_;                          ///< the first of due_, by peer
  std::map<Route, std::deque<Sent>> sends_;
  double waited_ms_ = 0;
};

}  // namespace caravan
