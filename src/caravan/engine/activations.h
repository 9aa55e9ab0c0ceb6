#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "caravan/memory/tiers.h"

namespace caravan {

/// The tensors that autograd saves in the forward of units, on host or disk between their eviction and their fetch. (As
/// SSDTrain, arXiv 2408.10013.)
///
/// They are captured by default hooks of saved variables, so ops of torch, of this library and of users are all alike;
/// tensors in closures and in AutogradContext::saved_data are not. A storage is moved once, whole, however many views
/// of it are saved by however many units. A storage moves only when autograd alone holds it: parameters, buffers, the
/// batch, tables in caches and the input of the next unit stay, and what is moved frees memory. If somebody else still
/// has it at the eviction of its unit, the evictions of later units of the micro-batch try again. Storages below
/// kSmallest stay.
///
/// Stores run beside the next event; settle() waits for them and frees the device memory, so what the device holds at
/// an event does not depend on how fast the copies are.
///
/// As without hooks, a saved tensor that is changed in place is an error in backward. A graph that is kept
/// (retain_graph) keeps what is fetched. A graph may outlive this, and one without backward gives back what it has
/// stored when it ends. The rank's thread calls it and ends its graphs.
class Activations {
 public:
  static constexpr int64_t kSmallest = 4096;  ///< bytes

  /// `tier`: host or disk. Throws UsageError in a process that has loaded Python's torch, whose hooks replace ours.
  Activations(std::shared_ptr<Tiers> tiers, Tier tier);
  ~Activations();
  Activations(const Activations&) = delete;
  Activations& operator=(const Activations&) = delete;

  struct Capture;  ///< what one forward of a unit saves

  /// Captures what this thread saves during its lifetime, as the forward of `unit`; the innermost scope counts.
  class Scope {
   public:
    /// Without `captures`: what is saved stays on the device. A null `activations` changes nothing.
    Scope(Activations* activations, int unit, int micro_batch, bool captures);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Activations* activations_;
    std::pair<int, int> key_;
    bool captures_;
    Capture* outer_ = nullptr;
  };

  /// Forgets what earlier steps have captured.
  void begin_step();
  /// Waits for all stores and frees the device memory of what they have stored. Throws their error.
  void settle();
  /// Starts to store what the forward of `unit` has saved in `micro_batch`.
  void evict(int unit, int micro_batch);
  /// The same for every unit whose forward has ended since the last call: for steps without a table.
  void evict_ended();
  /// Starts to load it; what is still being stored stays on the device instead.
  void fetch(int unit, int micro_batch);

 private:
  friend class SavedTensor;
  using Key = std::pair<int, int>;  ///< unit, micro-batch
  struct Blocks;
  struct Piece;
  std::shared_ptr<Piece> piece_of(const at::Tensor& tensor, Capture& capture);

  std::shared_ptr<Blocks> blocks_;
  std::map<Key, std::unique_ptr<Capture>> captures_;
  std::map<int, std::vector<std::weak_ptr<Piece>>> held_elsewhere_;  ///< at their eviction, by micro-batch
  std::vector<std::shared_ptr<Piece>> in_flight_;
  std::vector<Key> ended_;
};

}  // namespace caravan
