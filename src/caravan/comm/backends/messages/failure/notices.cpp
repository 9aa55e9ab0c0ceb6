#include "caravan/comm/backends/messages/failure/notices.h"

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan::messages {
namespace {

constexpr std::chrono::milliseconds kTextDelay{500};  // a rank first claims a failure, then writes its text
constexpr const char* kQuestions = "questions";

std::string failure_key(const std::string& scope) { return "failure/" + scope; }
std::string claims_key(const std::string& scope) { return failure_key(scope) + "/claims"; }
/// Set as soon as one rank has left; the counts of each are below it.
std::string left_key(const std::string& scope) { return "left/" + scope; }
std::string left_key(const std::string& scope, int rank) { return fmt::format("left/{}/{}", scope, rank); }
/// The number of ranks that have left, with or without counts.
std::string gone_key(const std::string& scope) { return "gone/" + scope; }
std::string progress_key(const std::string& scope, int world_rank) {
  return fmt::format("calls/{}/{}", scope, world_rank);
}

}  // namespace

template <class Result, class Call>
Result Notices::ask_store(Result otherwise, const Call& call) noexcept {
  try {
    if (store_ != nullptr && !store_is_lost_) return call();
  } catch (const std::exception&) {
    store_is_lost_ = true;
  }
  return otherwise;
}

/// The value of `key`; "" if no rank sets it in time, which is not an error: that rank may be slow, or gone.
std::string Notices::get(const std::string& key) {
  try {
    return store_->get(key, kTextDelay);
  } catch (const CommError&) {
    // Throws if the store is lost.
    return store_->has(key) ? store_->get(key, kTextDelay) : "";
  }
}

std::string Notices::publish_failure(const std::string& scope, const std::string& text) noexcept {
  return ask_store(text, [&] {
    if (store_->add(claims_key(scope), 1) == 1) {
      store_->set(failure_key(scope), text);
      return text;
    }
    const std::string first = get(failure_key(scope));
    return first.empty() ? text : first;
  });
}

std::string Notices::failure(const std::string& scope) noexcept {
  return ask_store(std::string(), [&] {
    const std::string key = failure_key(scope);
    return store_->has(key) ? get(key) : "";
  });
}

void Notices::publish_departure(const std::string& scope, const GroupInfo& group, const CallCounts* counts) noexcept {
  ask_store(0, [&] {
    if (counts != nullptr) {
      store_->set(left_key(scope, group.rank), counts->bytes());
      store_->set(left_key(scope), "");
    }
    if (store_->add(gone_key(scope), 1) < group.size) return 0;
    for (int rank = 0; rank < group.size; ++rank) {
      store_->remove(left_key(scope, rank));
      store_->remove(progress_key(scope, group.world_ranks[static_cast<size_t>(rank)]));
    }
    for (const std::string& key : {left_key(scope), gone_key(scope), failure_key(scope), claims_key(scope)}) {
      store_->remove(key);
    }
    return 0;
  });
}

int Notices::find_departed(const std::string& scope, const GroupInfo& group, const CallCounts& counts,
                           const Descriptor& call) noexcept {
  return ask_store(-1, [&] {
    if (!store_->has(left_key(scope))) return -1;
    for (int peer = 0; peer < group.size; ++peer) {
      if (peer == group.rank || (is_point_to_point(call) && peer != call.root)) continue;
      const std::string key = left_key(scope, peer);
      if (store_->has(key) && !counts.has_issued(get(key), call, group.rank)) return peer;
    }
    return -1;
  });
}

int64_t Notices::add_questions(int64_t amount) noexcept {
  return ask_store(int64_t{0}, [&] { return store_->add(kQuestions, amount); });
}

void Notices::publish_progress(const std::string& scope, int world_rank, const CallCounts& counts) noexcept {
  ask_store(0, [&] {
    store_->set(progress_key(scope, world_rank), counts.bytes());
    return 0;
  });
}

std::optional<std::string> Notices::progress(const std::string& scope, int world_rank) noexcept {
  return ask_store(std::optional<std::string>(), [&]() -> std::optional<std::string> {
    const std::string key = progress_key(scope, world_rank);
    if (!store_->has(key)) return std::nullopt;
    return get(key);
  });
}

}  // namespace caravan::messages
