#include <caravan/base/text.h>
#include <string>
#include <vector>

/// Ends with 0 if the torch-free library links on its own.
int main() {
  const std::vector<std::string> choices{"layers", "heads"};
  return caravan::nearest("lyers", choices) == "layers" ? 0 : 1;
}
