#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "caravan/comm/types.h"

namespace caravan::algorithms {

/// How a collective is built from sends and recvs. The header of each algorithm gives its steps, its bytes and when it
/// is best; docs/design/collectives.md compares them.
enum class Algorithm : uint8_t { direct, ring, recursive_doubling, rabenseifner, binomial, chain };
inline constexpr int kNumAlgorithms = 6;

/// The verbs that have algorithms: all except send, recv and barrier.
inline constexpr Verb kVerbs[] = {Verb::all_reduce, Verb::all_gather, Verb::reduce_scatter,
                                  Verb::all_to_all, Verb::broadcast,  Verb::reduce};

std::string_view name(Algorithm algorithm) noexcept;
/// The algorithms that serve `verb`, direct first; none for send, recv and barrier.
std::span<const Algorithm> algorithms_for(Verb verb) noexcept;
bool serves(Algorithm algorithm, Verb verb) noexcept;
/// Its path for PathLog: "gloo all_reduce by ring".
std::string path_of(std::string_view backend, Verb verb, Algorithm algorithm);
/// Throws UsageError naming the algorithms that serve `verb` if this one does not.
void check_serves(Algorithm algorithm, Verb verb);

}  // namespace caravan::algorithms
