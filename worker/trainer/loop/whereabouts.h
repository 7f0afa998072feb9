// Where a rank is in its run, for the report when it fails.
#pragma once

#include <atomic>
#include <cstdint>

namespace mp::trainer {

// Thread-safety: any thread may read while the rank writes.
struct Whereabouts {
  std::atomic<int64_t> step{0};             // the optimizer step at work; 0 before the first
  std::atomic<const char*> phase{"start"};  // a literal: "forward", "checkpoint", ...
};

}  // namespace mp::trainer
