#include "caravan/comm/calls/agree.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <new>
#include <numeric>
#include <system_error>

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {
namespace {

constexpr int kResourceExit = 5;

struct CaughtError {
  int exit_code = 1;
  ErrorText text{};
};

ErrorText op_and_fact(std::string_view op, std::string fact) {
  return {.op = std::string(op), .fact = std::move(fact)};
}

CaughtError describe_error(const std::exception_ptr& error, std::string_view what) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& own) {
    return {own.exit_code(), own.text()};
  } catch (const std::bad_alloc&) {
    return {kResourceExit, op_and_fact(what, "ran out of memory")};
  } catch (const std::system_error& system) {
    return {kResourceExit, op_and_fact(what, system.what())};
  } catch (const std::exception& other) {
    const std::string text = other.what();  // torch's has a backtrace
    const std::string line = text.substr(0, text.find('\n'));
    const bool is_memory = line.find("can't allocate memory") != std::string::npos;  // of torch's allocator
    return {is_memory ? kResourceExit : 1, op_and_fact(what, line)};
  } catch (...) {
    return {1, op_and_fact(what, "threw an exception that is not a std::exception")};
  }
}

[[noreturn]] void throw_described(CaughtError error) {
  switch (error.exit_code) {
    case 2: throw UsageError(std::move(error.text));
    case 3: throw DataError(std::move(error.text));
    case 4: throw CommError(std::move(error.text));
    case kResourceExit: throw ResourceError(std::move(error.text));
    case 6: throw NumericsError(std::move(error.text));
    case 130: throw Interrupted(std::move(error.text));
    default: throw InternalError(std::move(error.text));
  }
}

/// The exit code and the five fields, each ended by a zero byte.
std::string packed_error(const CaughtError& error) {
  std::string packed = std::to_string(error.exit_code) + '\0';
  const ErrorText& text = error.text;
  for (const std::string* field : {&text.op, &text.subject, &text.fact, &text.where, &text.action}) {
    packed += *field;
    std::ranges::replace(packed.end() - static_cast<std::ptrdiff_t>(field->size()), packed.end(), '\0', ' ');
    packed += '\0';
  }
  return packed;
}

CaughtError unpacked_error(const std::string& packed) {
  std::array<std::string, 6> fields;
  size_t begin = 0;
  for (std::string& field : fields) {
    const size_t end = packed.find('\0', begin);
    field = packed.substr(begin, end - begin);
    begin = end + 1;
  }
  return {std::atoi(fields[0].c_str()), {fields[1], fields[2], fields[3], fields[4], fields[5]}};
}

bool is_comm_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const CommError&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

std::string broadcast_text(Communicator& comm, const std::string& text, int root, const Call& call) {
  auto length = static_cast<int64_t>(text.size());
  comm.broadcast({&length, 1, Dtype::int64}, root, call);
  std::string result = comm.rank() == root ? text : std::string(static_cast<size_t>(length), '\0');
  comm.broadcast({result.data(), length, Dtype::uint8}, root, call);
  return result;
}

std::vector<std::string> gather_texts(Communicator& comm, const std::string& text, const Call& call) {
  if (comm.size() == 1) return {text};
  const auto length = static_cast<int64_t>(text.size());
  std::vector<int64_t> lengths(static_cast<size_t>(comm.size()));
  comm.all_gather({&length, 1, Dtype::int64}, {lengths.data(), comm.size(), Dtype::int64}, {}, call);
  std::string all(static_cast<size_t>(std::accumulate(lengths.begin(), lengths.end(), int64_t{0})), '\0');
  comm.all_gather({text.data(), length, Dtype::uint8}, {all.data(), static_cast<int64_t>(all.size()), Dtype::uint8},
                  lengths, call);
  std::vector<std::string> texts;
  size_t begin = 0;
  for (const int64_t n : lengths) {
    texts.push_back(all.substr(begin, static_cast<size_t>(n)));
    begin += static_cast<size_t>(n);
  }
  return texts;
}

std::vector<std::string> gather_texts_to(Communicator& comm, const std::string& text, int root, const Call& call) {
  if (comm.size() == 1) return {text};
  const auto length = static_cast<int64_t>(text.size());
  std::vector<int64_t> lengths(static_cast<size_t>(comm.size()));
  comm.all_gather({&length, 1, Dtype::int64}, {lengths.data(), comm.size(), Dtype::int64}, {}, call);
  if (comm.rank() != root) {
    if (length > 0) comm.send({text.data(), length, Dtype::uint8}, root, call);
    return {};
  }
  std::vector<std::string> texts;
  for (int rank = 0; rank < comm.size(); ++rank) {
    const int64_t bytes = lengths[static_cast<size_t>(rank)];
    std::string& own = texts.emplace_back(rank == root ? text : std::string(static_cast<size_t>(bytes), '\0'));
    if (rank != root && bytes > 0) comm.recv({own.data(), bytes, Dtype::uint8}, rank, call);
  }
  return texts;
}

void take_maxima(Communicator& comm, std::span<int64_t> values, const Call& call) {
  const Buffer buffer{values.data(), static_cast<int64_t>(values.size()), Dtype::int64};
  comm.all_reduce(buffer, buffer, ReduceOp::max, call);
}

void throw_on_all_ranks(Communicator& comm, const std::exception_ptr& mine, const Call& call) {
  if (mine && (comm.size() == 1 || is_comm_error(mine))) std::rethrow_exception(mine);
  if (comm.size() == 1) return;
  int64_t first = mine ? comm.rank() : comm.size();
  comm.all_reduce({&first, 1, Dtype::int64}, {&first, 1, Dtype::int64}, ReduceOp::min, call);
  if (first == comm.size()) return;
  const auto root = static_cast<int>(first);
  CaughtError error = unpacked_error(
      broadcast_text(comm, comm.rank() == root ? packed_error(describe_error(mine, call.what)) : "", root, call));
  std::string& where = error.text.where;
  if (!where.starts_with("rank ") && where.find(" rank ") == std::string::npos)
    where += fmt::format("{}rank {}", where.empty() ? "" : ", ", root);
  throw_described(std::move(error));
}

void all_or_none(Communicator& comm, const std::function<void()>& work, const Call& call) {
  std::exception_ptr mine;
  try {
    work();
  } catch (...) {
    mine = std::current_exception();
  }
  throw_on_all_ranks(comm, mine, call);
}

void on_rank_0(Communicator& comm, const std::function<void()>& work, const Call& call) {
  all_or_none(
      comm,
      [&] {
        if (comm.rank() == 0) work();
      },
      call);
}

std::string text_of_rank_0(Communicator& comm, const std::function<std::string()>& work, const Call& call) {
  std::string text;
  on_rank_0(
      comm, [&] { text = work(); }, call);
  return broadcast_text(comm, text, 0, call);
}

}  // namespace caravan
