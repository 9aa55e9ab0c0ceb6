#include "caravan/plan/checkpoint_size.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "caravan/comm/record.h"
#include "caravan/formats/checkpoint/background_save.h"
#include "caravan/formats/checkpoint/state_checkpoint.h"
#include "caravan/train/model/trained_model.h"

namespace caravan {

CheckpointSize checkpoint_size(const Recipe& recipe, int64_t vocabulary, int num_ranks) {
  ModelConfig config = recipe.model;
  if (config.vocabulary == 0) config.vocabulary = vocabulary;
  const auto num_places = static_cast<int>(recipe.pipeline.degree);
  const int of_place = num_ranks / num_places;
  CheckpointSize size;
  double total = 0, most = 0;
  for (int place = 0; place < num_places; ++place) {
    const int rank = place * of_place;
    Mesh mesh = Mesh::create(make_record_world(rank, num_ranks), mesh_axes(recipe, num_ranks));
    const TrainedModel trained(recipe, config, mesh, {}, at::kMeta);
    const std::vector<CheckpointPiece> pieces = checkpoint_pieces(trained.tensors, mesh);
    double mean = 0;  // of the ranks of the place
    for (const CheckpointPiece& piece : pieces) {
      mean += static_cast<double>(piece.tensor.nbytes()) / std::max(1, piece.num_replicas);
    }
    total += mean * of_place;
    most = std::max({most, mean, static_cast<double>(BackgroundSave::bytes_of_copy(pieces))});
  }
  size.rank_bytes = std::llround(most);
  size.total_bytes = std::llround(total);
  return size;
}

}  // namespace caravan
