#pragma once

#include <exception>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "caravan/comm/communicator.h"

namespace caravan {

/// Returns the text of `root` on every rank. Every rank calls it. Sends 8 bytes, then the text.
std::string broadcast_text(Communicator& comm, const std::string& text, int root, const Call& call = {});

/// Returns the texts of all ranks, in rank order, on every rank. Every rank calls it. Sends 8 bytes, then the texts.
std::vector<std::string> gather_texts(Communicator& comm, const std::string& text, const Call& call = {});

/// The texts of all ranks, in rank order, on rank `root`; empty elsewhere. Every rank calls it. Sends the text to the
/// root alone, and 8 bytes to all.
std::vector<std::string> gather_texts_to(Communicator& comm, const std::string& text, int root, const Call& call = {});

/// Replaces each value by the maximum over all ranks. Every rank calls it with the same number of values. Sends one
/// all-reduce of them.
void take_maxima(Communicator& comm, std::span<int64_t> values, const Call& call = {});

/// Every rank calls it with the error that it caught, or null. If any rank has one, all ranks throw the error of the
/// lowest such rank, with the class of its exit code, and `where` naming the rank. Other exceptions become
/// ResourceError if memory or the system failed, else InternalError. A CommError is rethrown at once, because the peers
/// cannot be reached. Sends 8 bytes, and the text of the error if there is one.
void throw_on_all_ranks(Communicator& comm, const std::exception_ptr& mine, const Call& call = {});

/// Runs `work`, then throw_on_all_ranks with what it threw. `work` must not call `comm`.
void all_or_none(Communicator& comm, const std::function<void()>& work, const Call& call = {});

/// The same for work that rank 0 does for all, such as in the run folder. Every rank calls it.
void on_rank_0(Communicator& comm, const std::function<void()>& work, const Call& call = {});

/// The same for work with a result, which every rank gets.
std::string text_of_rank_0(Communicator& comm, const std::function<std::string()>& work, const Call& call = {});

}  // namespace caravan
