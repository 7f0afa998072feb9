// Causes with which a rank ends; names match mp.v1.EndCause. One handler in main turns them into a Failed event.
#pragma once

#include <stdexcept>
#include <string>

namespace mp::trainer {

enum class EndCause { kOutOfMemory, kNonFinite, kPeerLost, kBadData, kBadConfig, kMissingFile, kCheckpoint };

// "END_CAUSE_OUT_OF_MEMORY" and so on.
const char* EndCauseName(EndCause cause);

class TrainerError : public std::runtime_error {
 public:
  TrainerError(EndCause cause, const std::string& message) : std::runtime_error(message), cause_(cause) {}
  EndCause cause() const { return cause_; }

 private:
  EndCause cause_;
};

}  // namespace mp::trainer
