#include "caravan/optim/matrix_ranks.h"

#include <algorithm>

namespace caravan {

MatrixRanks::MatrixRanks(const Mesh& mesh, const std::vector<std::string>& apart) : mesh_(mesh) {
  std::vector<std::string> names;
  bool is_whole = true;
  for (const MeshAxis& axis : mesh.axes()) {
    if (std::ranges::find(apart, axis.name()) != apart.end()) {
      is_whole = is_whole && axis.size() == 1;
      continue;
    }
    axes_.push_back(axis);
    names.push_back(axis.name());
    size_ *= axis.size();
    rank_ = rank_ * axis.size() + axis.coord();
  }
  if (is_whole || names.empty()) return;
  if (names.size() == 1) {
    joint_ = axes_.front();
  } else if (const MeshAxis* joined = mesh.joined(names)) {
    joint_ = *joined;
  } else {
    mesh_ = mesh.join("ranks of a matrix", names);
    joint_ = mesh_["ranks of a matrix"];
  }
}

Communicator& MatrixRanks::comm() const noexcept { return joint_ ? joint_->comm() : mesh_.world(); }

bool MatrixRanks::spans(const std::string& axis) const {
  const std::vector<std::string> parts = mesh_.made_of(axis);
  return std::ranges::any_of(axes_, [&](const MeshAxis& spanned) {
    return spanned.size() > 1 && std::ranges::find(parts, spanned.name()) != parts.end();
  });
}

int MatrixRanks::coord(int rank, const std::string& axis) const {
  int coord = 0;
  for (const std::string& listed : mesh_.made_of(axis)) {
    int own = mesh_[listed].coord();  // of an axis on which these ranks do not differ
    int rest = rank;
    for (auto spanned = axes_.rbegin(); spanned != axes_.rend(); ++spanned) {
      if (spanned->name() == listed) own = rest % spanned->size();
      rest /= spanned->size();
    }
    coord = coord * mesh_[listed].size() + own;
  }
  return coord;
}

}  // namespace caravan
