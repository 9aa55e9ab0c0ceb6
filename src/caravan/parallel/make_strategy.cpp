#include "caravan/parallel/make_strategy.h"

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/parallel/ddp.h"
#include "caravan/parallel/techniques.h"

namespace caravan {

Strategy make_strategy(const StrategyChoice& choice, Module& model, Mesh& mesh) {
  if (choice.data_parallel == "ddp") {
    return ddp(model, mesh, {.bucket_bytes = choice.bucket_bytes, .compute_dtype = choice.compute_dtype});
  }
  throw UsageError({"strategy", choice.data_parallel, "is no data-parallel technique", "",
                    "use '" + nearest(choice.data_parallel, data_parallel_techniques()) + "'"});
}

}  // namespace caravan
