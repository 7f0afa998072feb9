#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "worker/trainer/config/error.h"
#include "worker/trainer/sharding/process_group.h"

namespace mp::trainer {
namespace {

const char* Environment(const char* name) {
  return std::getenv(name);  // NOLINT(concurrency-mt-unsafe): at start, before any thread
}

std::optional<int> IntegerVariable(const char* name, int least, int most) {
  const char* text = Environment(name);
  if (text == nullptr) return std::nullopt;
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto result = std::from_chars(text, end, value);
  if (result.ec != std::errc() || result.ptr != end || value < least || value > most) {
    throw TrainerError(EndCause::kBadConfig, std::string(name) + "=" + text + ": a whole number from " +
                                                 std::to_string(least) + " to " + std::to_string(most) + " is needed");
  }
  return value;
}

}  // namespace

Rendezvous RendezvousFromEnvironment() {
  constexpr int kMaxRanks = 1 << 20;
  Rendezvous rendezvous;
  rendezvous.world_size = IntegerVariable("WORLD_SIZE", 1, kMaxRanks).value_or(1);
  rendezvous.rank = IntegerVariable("RANK", 0, rendezvous.world_size - 1).value_or(0);
  rendezvous.listen_fd = IntegerVariable("MP_RENDEZVOUS_FD", 0, 1 << 20).value_or(-1);
  if (const auto seconds = IntegerVariable("MP_COLLECTIVE_TIMEOUT", 1, 86400)) {
    rendezvous.timeout = std::chrono::seconds(*seconds);
  }
  if (rendezvous.world_size == 1) return rendezvous;
  if (Environment("RANK") == nullptr) {
    throw TrainerError(EndCause::kBadConfig,
                       "WORLD_SIZE is set and RANK is not; set RANK, MASTER_ADDR and MASTER_PORT as torchrun does");
  }
  const char* address = Environment("MASTER_ADDR");
  if (address == nullptr || *address == '\0') {
    throw TrainerError(EndCause::kBadConfig, "MASTER_ADDR is not set; it must name the host of rank 0");
  }
  rendezvous.master_address = address;
  const auto port = IntegerVariable("MASTER_PORT", 1, 65535);
  if (!port)
    throw TrainerError(EndCause::kBadConfig, "MASTER_PORT is not set; it must be a free port of the host of rank 0");
  rendezvous.master_port = *port;
  return rendezvous;
}

}  // namespace mp::trainer
