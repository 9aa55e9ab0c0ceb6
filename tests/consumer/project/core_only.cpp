#include <caravan/base/text.h>
#include <string>

/// Ends with 0 if the torch-free library links on its own.
int main() { return caravan::nearest("lyers", {"layers", "heads"}) == std::string("layers") ? 0 : 1; }
