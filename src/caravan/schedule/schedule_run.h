#pragma once

#include <array>
#include <deque>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "caravan/schedule/schedule.h"

namespace caravan {

/// Executes the tables of all ranks symbolically: check(). The constructor refuses what can be detected without
/// execution.
class ScheduleRun {
 public:
  ScheduleRun(std::span<const Schedule> tables, const Units& units, std::span<const int> rank_of_stage, int capacity,
              int chunk_slots);
  void run();

 private:
  /// The state of one rank.
  struct Rank {
    const Schedule* table = nullptr;
    size_t at = 0;                          // position of the next entry
    Schedule pass;                          // events of the current pass
    size_t num_done = 0;                    // number of them that are done
    std::vector<std::vector<int>> changed;  // additions() of the table
    std::vector<bool> holds;                // groups that its units use
    std::vector<bool> is_there;             // whether gathered groups have unsharded parameters
    std::vector<bool> has_gathered;         // joint groups
    bool has_backward = false;              // a backward since the last update
    int num_updates = 0;
    bool waits = false;                         // in a joint gather, for other ranks
    std::map<int, std::map<int, int>> to_add;   // by group and micro-batch: additions still to come
    std::map<int, int> num_reductions;          // of each group, in the whole table
    std::set<std::pair<int, int>> has_reduced;  // group and micro-batch
    std::set<std::pair<int, int>> unreduced;    // the same: something was added and is not reduced yet
    std::set<int> fetched;                      // groups whose parameters are fetched and not gathered yet
    std::set<int> slots;                        // groups of chunks that have a slot
    std::set<int> away;                         // groups whose sums are evicted
    std::set<std::pair<int, int>> stored;       // unit and micro-batch of activations that are evicted
    std::set<int> stepped;                      // groups that have stepped
    std::vector<size_t> of_joint;               // positions of gathers and reductions of joint groups
  };
  using Done = std::vector<std::set<int>>;  // micro-batches, by stage

  [[noreturn]] void refuse(size_t rank, size_t at, const std::string& fact, const std::string& action = "") const;
  [[noreturn]] void refuse(size_t rank, const std::string& fact) const { refuse(rank, ranks_[rank].at, fact); }
  const Action& entry(size_t rank) const { return (*ranks_[rank].table)[ranks_[rank].at]; }
  std::string group_text(int group) const;

  void place_stages(std::span<const int> rank_of_stage);
  void validate_entry(size_t rank, const Action& entry);
  void prepare(size_t rank);
  bool step(size_t rank);  ///< false: it waits
  void begin_pass(size_t rank, const Action& event);
  void compute(size_t rank, const Action& event);
  bool gather(size_t rank, int group);
  void free(size_t rank, int group);
  void reduce(size_t rank, const Action& entry);
  int check_crossing(size_t rank, const Action& entry, int here) const;  ///< the other rank
  bool send(size_t rank, const Action& entry);
  bool recv(size_t rank, const Action& entry);
  void update(size_t rank);
  void fetch(size_t rank, const Action& entry);
  void evict(size_t rank, const Action& entry);
  void step_group(size_t rank, int group);
  void refuse_waiting() const;
  bool awaits(const Action& next, size_t other) const;
  bool will_give(const Action& next, size_t other) const;
  std::string text_of_cycle(size_t first) const;
  void finish(size_t rank) const;
  void compare_joint() const;

  std::span<const Schedule> tables_;
  int capacity_;
  int chunk_slots_;
  const Units& units_;
  std::vector<int> rank_of_stage_;
  std::vector<Rank> ranks_;
  int num_micro_batches_ = 1;  // a step has at least one
  bool trains_ = false;
  std::array<Done, 5> done_;      // by kind of pass
  std::array<Done, 2> sent_;      // inputs of a stage; gradients for a stage
  std::array<Done, 2> received_;  // the same
  std::map<std::pair<size_t, size_t>, std::deque<std::pair<Action, size_t>>> sends_;  // in flight; with position
};

}  // namespace caravan
