#include "worker/trainer/hash/xxh64.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>

namespace mp::trainer {
namespace {

static_assert(std::endian::native == std::endian::little);

// The five primes of the specification.
constexpr uint64_t kP1 = 0x9E3779B185EBCA87ULL;
constexpr uint64_t kP2 = 0xC2B2AE3D27D4EB4FULL;
constexpr uint64_t kP3 = 0x165667B19E3779F9ULL;
constexpr uint64_t kP4 = 0x85EBCA77C2B2AE63ULL;
constexpr uint64_t kP5 = 0x27D4EB2F165667C5ULL;

template <typename T>
T Read(const unsigned char* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

uint64_t Round(uint64_t lane, uint64_t input) { return std::rotl(lane + input * kP2, 31) * kP1; }

uint64_t MergeRound(uint64_t hash, uint64_t lane) { return (hash ^ Round(0, lane)) * kP1 + kP4; }

void Stripe(uint64_t* lanes, const unsigned char* from) {
  for (size_t i = 0; i < 4; ++i) lanes[i] = Round(lanes[i], Read<uint64_t>(from + 8 * i));
}

}  // namespace

Xxh64::Xxh64(uint64_t seed) : seed_(seed), lanes_{seed + kP1 + kP2, seed + kP2, seed, seed - kP1}, buffer_{} {}

void Xxh64::Update(const void* data, size_t size) {
  const auto* from = static_cast<const unsigned char*>(data);
  total_ += size;
  if (buffered_ > 0) {
    const size_t count = std::min(size, sizeof(buffer_) - buffered_);
    std::memcpy(buffer_ + buffered_, from, count);
    buffered_ += count;
    from += count;
    size -= count;
    if (buffered_ < sizeof(buffer_)) return;
    Stripe(lanes_, buffer_);
    buffered_ = 0;
  }
  for (; size >= 32; from += 32, size -= 32) Stripe(lanes_, from);
  if (size > 0) std::memcpy(buffer_, from, size);
  buffered_ = size;
}

uint64_t Xxh64::Digest() const {
  uint64_t hash = seed_ + kP5;
  if (total_ >= 32) {
    hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) + std::rotl(lanes_[3], 18);
    for (const uint64_t lane : lanes_) hash = MergeRound(hash, lane);
  }
  hash += total_;
  const unsigned char* from = buffer_;
  size_t left = buffered_;
  for (; left >= 8; from += 8, left -= 8) hash = std::rotl(hash ^ Round(0, Read<uint64_t>(from)), 27) * kP1 + kP4;
  if (left >= 4) {
    hash = std::rotl(hash ^ (Read<uint32_t>(from) * kP1), 23) * kP2 + kP3;
    from += 4;
    left -= 4;
  }
  for (; left > 0; ++from, --left) hash = std::rotl(hash ^ (*from * kP5), 11) * kP1;
  hash = (hash ^ (hash >> 33)) * kP2;
  hash = (hash ^ (hash >> 29)) * kP3;
  return hash ^ (hash >> 32);
}

uint64_t HashBytes(const void* data, size_t size) {
  Xxh64 hash;
  hash.Update(data, size);
  return hash.Digest();
}

std::string HashToHex(uint64_t hash) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

}  // namespace mp::trainer
