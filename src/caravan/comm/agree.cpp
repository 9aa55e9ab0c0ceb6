#include "caravan/comm/agree.h"

#include <numeric>

namespace caravan {

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

void take_maxima(Communicator& comm, std::span<int64_t> values, const Call& call) {
  const Buffer buffer{values.data(), static_cast<int64_t>(values.size()), Dtype::int64};
  comm.all_reduce(buffer, buffer, ReduceOp::max, call);
}

}  // namespace caravan
