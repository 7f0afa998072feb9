// Random initial weights, element by element: a value depends on the seed, the parameter's name and the element's place
// alone. A rank makes its own elements and no others, and every world size starts with the same model.
//
// Thread-safety: any thread.
#pragma once

#include <cstdint>
#include <string>

namespace mp::trainer {

// out[0, count) becomes elements [begin, begin + count) of the parameter's normal distribution with mean 0 and `std`:
// Philox 4x32-10 (Salmon et al. 2011), keyed by a hash of seed and name, through the Box-Muller transform.
void FillNormal(int64_t seed, const std::string& name, double std, int64_t begin, int64_t count, float* out);

}  // namespace mp::trainer
