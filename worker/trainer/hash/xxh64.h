// XXH64, the 64-bit hash of https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md: finds damage, no protection
// against forgery.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace mp::trainer {

// Hash of a stream of bytes fed piece by piece. Thread-safety: one thread.
class Xxh64 {
 public:
  explicit Xxh64(uint64_t seed = 0);
  void Update(const void* data, size_t size);
  uint64_t Digest() const;

 private:
  uint64_t seed_;
  uint64_t lanes_[4];
  unsigned char buffer_[32];
  size_t buffered_ = 0;
  uint64_t total_ = 0;
};

uint64_t HashBytes(const void* data, size_t size);
// Sixteen hexadecimal digits.
std::string HashToHex(uint64_t hash);

}  // namespace mp::trainer
