// What the shippers send, and what they are told is stored.
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "worker/agent/agent.h"

namespace mp::agent {

std::optional<v1::ShipLogsRequest> Agent::NextLogs() {
  constexpr int64_t kChunk = 65536;
  const absl::MutexLock lock(&mutex_);
  for (auto& [key, attempt] : attempts_) {
    for (const auto& rank : attempt.ranks) {
      if (rank->refused || rank->logs_acked >= rank->spooled) continue;
      v1::ShipLogsRequest request;
      std::string data(static_cast<size_t>(std::min(kChunk, rank->spooled - rank->logs_acked)), '\0');
      const ssize_t count = pread(rank->spool.get(), data.data(), data.size(), rank->logs_acked);
      if (count <= 0) {
        spdlog::error("the output of rank {} can't be read back: {}", rank->rank,
                      std::generic_category().message(errno));
        rank->logs_acked = rank->spooled;
        continue;
      }
      data.resize(static_cast<size_t>(count));
      *request.mutable_id() = attempt.prepare.id();
      request.set_rank(rank->rank);
      request.set_offset(rank->logs_acked);
      request.set_data(std::move(data));
      return request;
    }
  }
  return std::nullopt;
}

std::optional<v1::ShipEventsRequest> Agent::NextEvents() {
  constexpr size_t kMaxEvents = 256;
  constexpr size_t kMaxBytes = size_t{2} << 20;
  const absl::MutexLock lock(&mutex_);
  for (auto& [key, attempt] : attempts_) {
    for (const auto& rank : attempt.ranks) {
      if (rank->refused || rank->events.empty()) continue;
      v1::ShipEventsRequest request;
      *request.mutable_id() = attempt.prepare.id();
      request.set_rank(rank->rank);
      request.set_first_sequence(rank->first_event);
      size_t bytes = 0;
      for (size_t i = 0; i < std::min(kMaxEvents, rank->events.size()) && bytes < kMaxBytes; ++i) {
        *request.add_events() = rank->events[i];
        bytes += rank->events[i].ByteSizeLong();
      }
      return request;
    }
  }
  return std::nullopt;
}

Rank* Agent::FindRank(const v1::AttemptId& id, int rank) {
  Attempt* attempt = Find(id);
  if (attempt == nullptr) return nullptr;
  for (const auto& candidate : attempt->ranks) {
    if (candidate->rank == rank) return candidate.get();
  }
  return nullptr;
}

void Agent::LogsAcknowledged(const v1::ShipLogsResponse& response) {
  {
    const absl::MutexLock lock(&mutex_);
    Rank* rank = FindRank(response.id(), response.rank());
    if (rank == nullptr) return;
    rank->refused = rank->refused || response.refused();
    if (!response.refused()) rank->logs_acked = response.stored();
  }
  Post([] {});  // the attempt may be complete now
}

void Agent::EventsAcknowledged(const v1::ShipEventsResponse& response) {
  {
    const absl::MutexLock lock(&mutex_);
    Rank* rank = FindRank(response.id(), response.rank());
    if (rank == nullptr) return;
    rank->refused = rank->refused || response.refused();
    while (!response.refused() && !rank->events.empty() && rank->first_event <= response.stored()) {
      rank->events.pop_front();
      ++rank->first_event;
    }
    if (!response.refused() && response.stored() + 1 < rank->first_event) {
      spdlog::error("the controller has lost events of rank {}: it has {}, the next one is {}", rank->rank,
                    response.stored(), rank->first_event);
      rank->refused = true;
    }
  }
  Post([] {});
}

}  // namespace mp::agent
