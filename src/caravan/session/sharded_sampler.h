#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/data/samplers/base.h>

#include "caravan/mesh/mesh.h"

namespace caravan {

struct SamplerOptions {
  bool shuffle = true;  ///< each epoch in an order of its own, by the seed and the number of the epoch
  uint64_t seed = 1;
  bool drop_last = false;  ///< leave the rows out that do not fill a batch on every rank; else they are dealt too
};

/// Deals the rows of a data set to the ranks of an axis, for torch::data::make_data_loader: every row of an epoch goes
/// to one rank, once. Ranks that compute parts of the same rows have the same coordinate, and get the same ones.
///
///   ShardedSampler sampler(240, session["dp"], {.seed = 7});
///   auto loader = torch::data::make_data_loader(Squares().map(Stack<>()), sampler, 24 / session["dp"].size());
///   model.attach("sampler", sampler);
///   for (Progress now = model.load(run); sampler.epoch() < 4;) {
///     for (auto& [x, y] : sampler.over(*loader)) {
///
/// A batch is made of the next rows of the epoch's order, those of rank 0 first. The last one of an epoch has from half
/// to one and a half times as many rows, of which ranks get as many as one another or one less. What checkpoints keep
/// is the number of rows that the loops of all ranks have taken, so that any number of ranks, with any batch size, goes
/// on with the next ones. Batches with as many rows over all ranks, at least two on each, are the same on every number
/// of ranks.
///
/// Copies are the same sampler: that of the loader, and that which is attached. The workers of a loader may fetch
/// ahead. Its options enforce_ordering (the default) and drop_last = false have to stay: SamplerOptions has its own.
class ShardedSampler final : public torch::data::samplers::Sampler<> {
 public:
  /// Every rank of the axis calls it. Throws UsageError for fewer rows than ranks, and on every rank for other options
  /// on two ranks. Sends 16 bytes, and as many in each epoch, to compare batch sizes.
  ShardedSampler(int64_t rows, const MeshAxis& axis, const SamplerOptions& options = {});

  int64_t epoch() const noexcept;
  /// Rows of the epoch that all ranks together have taken.
  int64_t position() const noexcept;

  /// The batches of `loader` that are left of the epoch; none if all were taken. A batch is taken when the loop gets
  /// it. At its end the next epoch begins, and after a `break` this one goes on.
  template <class Loader>
  auto over(Loader& loader);

  /// For checkpoints. save() throws UsageError if batches were fetched without over(). load() throws DataError for
  /// another number of rows, seed or order, and if fewer rows are left of the epoch than there are ranks.
  std::string save() const;
  void load(const std::string& text);

  // What the loader calls.
  void reset(std::optional<size_t> new_size = std::nullopt) override;
  std::optional<std::vector<size_t>> next(size_t batch_size) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct State;
  void take();
  void end_epoch();

  template <class Loader>
  class Taken;

  std::shared_ptr<State> state_;
};

template <class Loader>
class ShardedSampler::Taken {
 public:
  Taken(Loader& loader, ShardedSampler& sampler) : loader_(loader), sampler_(sampler) {}
  struct End {};
  class Iterator {
   public:
    Iterator(Loader& loader, ShardedSampler& sampler) : sampler_(sampler), batch_(loader.begin()), end_(loader.end()) {
      see();
    }
    auto& operator*() { return *batch_; }
    Iterator& operator++() {
      ++batch_;
      see();
      return *this;
    }
    bool operator!=(End /*end*/) const { return has_batch_; }

   private:
    void see() {
      has_batch_ = batch_ != end_;
      has_batch_ ? sampler_.take() : sampler_.end_epoch();
    }
    ShardedSampler sampler_;
    decltype(std::declval<Loader&>().begin()) batch_, end_;
    bool has_batch_ = false;
  };
  Iterator begin() { return {loader_, sampler_}; }
  End end() const { return {}; }

 private:
  Loader& loader_;
  ShardedSampler sampler_;
};

template <class Loader>
auto ShardedSampler::over(Loader& loader) {
  return Taken<Loader>(loader, *this);
}

}  // namespace caravan
