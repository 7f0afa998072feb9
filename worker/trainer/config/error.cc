#include "worker/trainer/config/error.h"

namespace mp::trainer {

const char* EndCauseName(EndCause cause) {
  switch (cause) {
    case EndCause::kOutOfMemory:
      return "END_CAUSE_OUT_OF_MEMORY";
    case EndCause::kNonFinite:
      return "END_CAUSE_NON_FINITE";
    case EndCause::kPeerLost:
      return "END_CAUSE_PEER_LOST";
    case EndCause::kBadData:
      return "END_CAUSE_BAD_DATA";
    case EndCause::kBadConfig:
      return "END_CAUSE_BAD_CONFIG";
    case EndCause::kMissingFile:
      return "END_CAUSE_MISSING_FILE";
    case EndCause::kCheckpoint:
      return "END_CAUSE_CHECKPOINT";
  }
  return "END_CAUSE_UNSPECIFIED";
}

}  // namespace mp::trainer
