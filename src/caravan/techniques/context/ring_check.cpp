#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/techniques/context/ring_schedule.h"

namespace caravan {
namespace {

using Kind = RingStep::Kind;

/// Executes the tables of all ranks in turns until no rank can continue.
class RingRun {
 public:
  RingRun(std::span<const std::span<const RingStep>> tables, bool is_backward)
      : n_(tables.size()), is_backward_(is_backward) {
    for (const auto& table : tables) ranks_.push_back({.table = table});
  }

  void run() {
    for (bool moves = true; moves;) {
      moves = false;
      for (size_t rank = 0; rank < n_; ++rank) {
        for (; !has_ended(rank) && step(rank); ++ranks_[rank].at) moves = true;
      }
    }
    for (size_t rank = 0; rank < n_; ++rank) {
      if (!has_ended(rank)) refuse_wait(rank);
    }
    for (size_t rank = 0; rank < n_; ++rank) finish(rank);
  }

 private:
  /// Keys and values, or the sum of their gradients.
  struct Item {
    int turn = -1;            ///< the turn that it belongs to; -1: there is none
    bool is_sent = false;     ///< a send of it has not been waited for yet
    int coming = -1;          ///< the turn of what is being received in its place; -1: nothing
    size_t end_of_sends = 0;  ///< number of messages that must be sent and received before a wait ends
    size_t end_of_recvs = 0;
  };
  struct Rank {
    std::span<const RingStep> table;
    size_t at = 0;
    Item keys{.turn = 0};
    Item sums{};
    int num_computed = 0;
    int num_added = 0;
    std::vector<size_t> sends{}, recvs{};  ///< the steps that start them, in order
  };

  bool has_ended(size_t rank) const { return ranks_[rank].at == ranks_[rank].table.size(); }
  size_t next(size_t rank) const { return (rank + 1) % n_; }
  size_t before(size_t rank) const { return (rank + n_ - 1) % n_; }

  [[noreturn]] void refuse(size_t rank, size_t at, const std::string& fact) const {
    const auto& table = ranks_[rank].table;
    throw InternalError(
        {.op = "ring",
         .subject = fmt::format("rank {} of {}, {}", rank, n_,
                                at < table.size() ? fmt::format("step {} ({})", at, to_string(table[at])) : "the end"),
         .fact = fact,
         .action = "report this as a bug: the schedule of the ring is wrong"});
  }
  [[noreturn]] void refuse(size_t rank, const std::string& fact) const { refuse(rank, ranks_[rank].at, fact); }
  void require(bool holds, size_t rank, const char* fact) const {
    if (!holds) refuse(rank, fact);
  }

  /// False if the rank has to wait.
  bool step(size_t rank) {
    Rank& self = ranks_[rank];
    const auto [kind, turn] = self.table[self.at];
    const int last = static_cast<int>(n_) - (kind == Kind::send_sums || kind == Kind::recv_sums ? 0 : 1);
    const bool is_of_sums = kind == Kind::add || kind == Kind::send_sums || kind == Kind::recv_sums;
    require(turn >= 0 && (turn <= last || kind == Kind::wait_sums), rank, "there is no such turn");
    require(is_backward_ || !(is_of_sums || kind == Kind::wait_sums), rank, "a forward pass has no gradients");
    switch (kind) {
      case Kind::compute:
        require(self.keys.turn == turn, rank, "the keys of this turn are not there");
        require(self.num_computed == turn, rank, "is there twice, or a turn before it is missing");
        ++self.num_computed;
        return true;
      case Kind::add:
        require(self.num_computed == turn + 1, rank, "its gradients are not computed, or are those of another turn");
        require(self.num_added == turn, rank, "is there twice, or a turn before it is missing");
        require(turn == 0 || self.sums.turn == turn, rank, "the sum of this turn has not arrived");
        require(!self.sums.is_sent, rank, "the sum is in flight to the next rank");
        ++self.num_added;
        self.sums.turn = turn;
        return true;
      case Kind::send_keys: return send(rank, self.keys);
      case Kind::send_sums:
        require(self.num_added == turn, rank, "the gradients of this rank are not added");
        return send(rank, self.sums);
      case Kind::recv_keys: return recv(rank, self.keys);
      case Kind::recv_sums: return recv(rank, self.sums);
      case Kind::wait_keys: return wait(rank, self.keys);
      case Kind::wait_sums: return wait(rank, self.sums);
    }
    refuse(rank, "is of an unknown kind");
  }

  bool send(size_t rank, Item& item) {
    Rank& self = ranks_[rank];
    require(item.turn + 1 == self.table[self.at].turn, rank, "what it sends is not there");
    require(!item.is_sent, rank, "is there twice");
    item.is_sent = true;
    self.sends.push_back(self.at);
    item.end_of_sends = self.sends.size();
    compare(rank, self.sends.size() - 1);
    return true;
  }

  bool recv(size_t rank, Item& item) {
    Rank& self = ranks_[rank];
    require(item.coming < 0, rank, "is there twice");
    item.coming = self.table[self.at].turn;
    self.recvs.push_back(self.at);
    item.end_of_recvs = self.recvs.size();
    compare(before(rank), self.recvs.size() - 1);
    return true;
  }

  /// Message `i` from `sender` to the next rank: messages between two ranks match in the order in which they start.
  void compare(size_t sender, size_t i) const {
    const Rank& from = ranks_[sender];
    const Rank& to = ranks_[next(sender)];
    if (i >= from.sends.size() || i >= to.recvs.size()) return;
    const RingStep sent = from.table[from.sends[i]];
    const RingStep received = to.table[to.recvs[i]];
    const bool are_keys = sent.kind == Kind::send_keys;
    if (are_keys == (received.kind == Kind::recv_keys) && sent.turn == received.turn) return;
    refuse(sender, from.sends[i],
           fmt::format("is message {} to rank {}, which receives another one there, in its step {} ({})", i,
                       next(sender), to.recvs[i], to_string(received)));
  }

  /// A send may have to wait until the next rank has started to receive it, since messages can be longer than any
  /// buffer.
  bool wait(size_t rank, Item& item) {
    Rank& self = ranks_[rank];
    require(item.coming == self.table[self.at].turn, rank, "it is not being received");
    if (ranks_[before(rank)].sends.size() < item.end_of_recvs) return false;
    if (item.is_sent && ranks_[next(rank)].recvs.size() < item.end_of_sends) return false;
    item = {.turn = item.coming};
    return true;
  }

  /// The rank that a waiting rank waits for.
  size_t awaited_by(size_t rank) const {
    const Rank& self = ranks_[rank];
    const Item& item = self.table[self.at].kind == Kind::wait_keys ? self.keys : self.sums;
    return ranks_[before(rank)].sends.size() < item.end_of_recvs ? before(rank) : next(rank);
  }

  [[noreturn]] void refuse_wait(size_t rank) const {
    const size_t other = awaited_by(rank);
    const char* due = other == before(rank) ? "send" : "receive";
    if (has_ended(other)) refuse(rank, fmt::format("waits forever: rank {} does not {} it", other, due));
    refuse(rank, fmt::format("waits forever for rank {} to {} it, which waits in its step {} ({})", other, due,
                             ranks_[other].at, to_string(ranks_[other].table[ranks_[other].at])));
  }

  void finish(size_t rank) const {
    const Rank& self = ranks_[rank];
    const int n = static_cast<int>(n_);
    require(self.num_computed == n, rank, "a turn is not computed");
    require(!self.keys.is_sent && self.keys.coming < 0, rank, "keys are still in flight");
    if (!is_backward_) return;
    require(self.num_added == n, rank, "the gradients of a turn are not added");
    require(!self.sums.is_sent && self.sums.coming < 0, rank, "sums are still in flight");
    require(self.sums.turn == n, rank, "the sum for the rank's own keys has not arrived");
  }

  size_t n_;
  bool is_backward_;
  std::vector<Rank> ranks_;
};

}  // namespace

void check_ring(std::span<const std::span<const RingStep>> tables, bool is_backward) {
  RingRun(tables, is_backward).run();
}

}  // namespace caravan
