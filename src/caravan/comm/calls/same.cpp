#include "caravan/comm/calls/same.h"

#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>

#include "caravan/base/content_hash.h"
#include "caravan/base/differing_texts.h"
#include "caravan/base/error.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/comm/store/startup.h"

namespace caravan {
namespace {

using std::chrono::milliseconds;

constexpr const char* kNone = "not given";

/// "4:name5:value", so that no value can be mistaken for the next name.
std::string encode(const std::vector<SharedFact>& facts) {
  std::string text;
  for (const SharedFact& fact : facts) {
    for (const std::string* part : {&fact.name, &fact.value}) text += fmt::format("{}:{}", part->size(), *part);
  }
  return text;
}

std::string decode_part(std::string_view& text) {
  size_t size = 0;
  const size_t colon = text.find(':');
  std::from_chars(text.data(), text.data() + std::min(colon, text.size()), size);
  std::string part(text.substr(colon + 1, size));
  text.remove_prefix(std::min(text.size(), colon + 1 + size));
  return part;
}

std::vector<SharedFact> decode(std::string_view text) {
  std::vector<SharedFact> facts;
  while (!text.empty()) {
    std::string name = decode_part(text);
    facts.push_back({std::move(name), decode_part(text)});
  }
  return facts;
}

const std::string* value_of(const std::vector<SharedFact>& facts, const std::string& name) {
  const auto found = std::ranges::find(facts, name, &SharedFact::name);
  return found == facts.end() ? nullptr : &found->value;
}

/// The first difference of the two lists: a fact that both have, else one that only one of them has (comm.overlap,
/// which is used only with mesh.tp, comes after mesh.tp), else their order.
Disagreement first_difference(const std::vector<SharedFact>& first, const std::vector<SharedFact>& other) {
  for (const SharedFact& fact : first) {
    const std::string* theirs = value_of(other, fact.name);
    if (theirs != nullptr && *theirs != fact.value) {
      return {.name = fact.name, .first_value = fact.value, .other_value = *theirs};
    }
  }
  size_t i = 0;
  while (i < std::min(first.size(), other.size()) && first[i].name == other[i].name &&
         first[i].value == other[i].value) {
    ++i;
  }
  if (i < first.size()) {
    const std::string* theirs = value_of(other, first[i].name);
    if (theirs == nullptr) return {.name = first[i].name, .first_value = first[i].value, .other_value = kNone};
  }
  if (i < other.size()) {
    const std::string* ours = value_of(first, other[i].name);
    if (ours == nullptr) return {.name = other[i].name, .first_value = kNone, .other_value = other[i].value};
  }
  return {.name = "order",
          .first_value = i < first.size() ? first[i].name : kNone,
          .other_value = i < other.size() ? other[i].name : kNone};
}

Disagreement between(int first_rank, std::string_view first, int other_rank, std::string_view other) {
  Disagreement found = first_difference(decode(first), decode(other));
  found.first_rank = first_rank;
  found.other_rank = other_rank;
  return found;
}

/// Rank 0 compares the digests in the store and publishes the verdict: "" or the lowest rank that differs. Returns that
/// rank, or 0.
int compare_in_store(Store& store, const RankInfo& info, milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  constexpr milliseconds kGrace{2000};  // for rank 0 to time out first, since it knows who is missing
  const auto refuse = [&](const std::string& fact) {
    throw CommError({.op = "comm",
                     .subject = "world",
                     .fact = fact,
                     .where = fmt::format("rank {}", info.rank),
                     .action = "start all ranks with the same WORLD_SIZE, MASTER_ADDR and MASTER_PORT"});
  };
  if (info.rank != 0) {
    const auto verdict = get_from(store, "verdict", 0, deadline + kGrace);
    if (!verdict) refuse(missing_ranks_text({0}, info.world_size, store, timeout));
    if (verdict->starts_with("missing ")) refuse(verdict->substr(8));
    int rank = 0;
    std::from_chars(verdict->data(), verdict->data() + verdict->size(), rank);
    return rank;
  }
  const std::string own = store.get("digest/0", timeout);
  std::vector<int64_t> missing;
  int different = 0;
  for (int rank = 1; rank < info.world_size; ++rank) {
    const auto digest =
        get_from(store, fmt::format("digest/{}", rank), rank, missing.empty() ? deadline : deadline - timeout);
    if (!digest) {
      missing.push_back(rank);
    } else if (different == 0 && *digest != own) {
      different = rank;
    }
  }
  // Differing ranks end the job whether or not others are missing.
  if (!missing.empty() && different == 0) {
    const std::string text = missing_ranks_text(missing, info.world_size, store, timeout);
    store.set("verdict", "missing " + text);
    refuse(text);
  }
  store.set("verdict", std::to_string(different));
  return different;
}

}  // namespace

std::string Disagreement::to_string() const {
  const DifferingTexts shown = differing_texts(first_value, other_value);
  return fmt::format("is {} on rank {} and {} on rank {}", shown.first, first_rank, shown.other, other_rank);
}

std::optional<Disagreement> find_disagreement(Communicator& comm, const std::vector<SharedFact>& facts,
                                              const Call& call) {
  if (comm.size() == 1) return std::nullopt;
  const std::string text = encode(facts);
  const ContentHash hash = content_hash(text);
  std::array<int64_t, 2> digest{static_cast<int64_t>(hash.high), static_cast<int64_t>(hash.low)};
  std::vector<int64_t> all(2 * static_cast<size_t>(comm.size()));
  comm.all_gather({digest.data(), 2, Dtype::int64}, {all.data(), static_cast<int64_t>(all.size()), Dtype::int64}, {},
                  call);
  if (!comm.touches_memory()) return std::nullopt;  // a dry run: there are no other ranks
  for (int rank = 1; rank < comm.size(); ++rank) {
    if (std::equal(all.begin(), all.begin() + 2, all.begin() + 2 * rank)) continue;
    const std::string first = broadcast_text(comm, text, 0, call);
    return between(0, first, rank, broadcast_text(comm, text, rank, call));
  }
  return std::nullopt;
}

std::optional<Disagreement> find_disagreement(Store& store, const RankInfo& info, const std::vector<SharedFact>& facts,
                                              milliseconds timeout) {
  if (info.world_size == 1) return std::nullopt;
  const std::string text = encode(facts);
  store.set(fmt::format("digest/{}", info.rank), content_hash(text).hex());
  const int different = compare_in_store(store, info, timeout);
  if (different == 0) return std::nullopt;
  if (info.rank == 0 || info.rank == different) store.set(fmt::format("facts/{}", info.rank), text);
  const std::string first = store.get("facts/0", timeout);
  return between(0, first, different, store.get(fmt::format("facts/{}", different), timeout));
}

void check_same_on_all_ranks(Communicator& comm, std::string_view op, const std::vector<SharedFact>& facts,
                             const Call& call) {
  if (const auto found = find_disagreement(comm, facts, call)) {
    throw UsageError({.op = std::string(op),
                      .subject = found->name,
                      .fact = found->to_string(),
                      .where = comm.name().empty() ? "" : fmt::format("communicator {}", comm.name()),
                      .action = "give every rank the same"});
  }
}

}  // namespace caravan
