#include "caravan/comm/store/wire/errors.h"

#include <fmt/format.h>

namespace caravan {

CommError key_not_set(std::string_view key, std::chrono::milliseconds timeout, std::string where) {
  return CommError(
      {.op = "store",
       .subject = std::string(key),
       .fact = fmt::format("no rank set this key within {:.1f} s", static_cast<double>(timeout.count()) / 1e3),
       .where = std::move(where),
       .action = "look for the rank that should have set it, or raise the time-out"});
}

UsageError not_a_counter(std::string_view key, std::string_view holds, int64_t amount, std::string where) {
  return UsageError(
      {.op = "store",
       .subject = std::string(key),
       .fact = fmt::format("holds \"{}\", which is not a counter that {} can be added to", holds.substr(0, 80), amount),
       .where = std::move(where),
       .action = "use another key for the counter"});
}

UsageError rejected_handshake(const JobKey& key, int rank, std::string address, const store_protocol::Answer& answer,
                              bool genuine) {
  using store_protocol::Verdict;
  ErrorText text{.op = "store",
                 .subject = std::move(address),
                 .fact = "",
                 .where = rank < 0 ? "" : fmt::format("rank {} of {}, job \"{}\"", rank, key.world_size, key.id),
                 .action = "start all ranks of the job with the same CARAVAN_SECRET, and check MASTER_PORT"};
  if (genuine && answer.verdict == Verdict::other_job) {
    text.fact = fmt::format("the store there belongs to job \"{}\", not to \"{}\"", answer.job, key.id);
    text.action = "give each job its own MASTER_PORT, or its ranks the same CARAVAN_JOB_ID";
  } else if (genuine) {
    text.fact =
        fmt::format("the job there has {} ranks, this rank was started with {}", answer.world_size, key.world_size);
    text.action = "start all ranks of the job with the same WORLD_SIZE";
  } else if (answer.verdict != Verdict::wrong_secret) {
    text.fact = "the server there does not know the secret of this job";
  } else if (key.secret.empty()) {
    text.fact = "the store there requires the secret of its job, and CARAVAN_SECRET is not set here";
  } else {
    text.fact = "the store there does not accept this rank's CARAVAN_SECRET: it belongs to another job";
  }
  return UsageError(std::move(text));
}

}  // namespace caravan
