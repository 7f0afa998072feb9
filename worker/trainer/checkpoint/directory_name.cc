#include "worker/trainer/checkpoint/directory_name.h"

#include <charconv>
#include <cstdio>
#include <string_view>

namespace mp::trainer {

std::string DirectoryName(int64_t step, int attempt) {
  char name[64];
  std::snprintf(name, sizeof(name), "step-%08lld-attempt-%d", static_cast<long long>(step), attempt);
  return name;
}

std::optional<CheckpointName> ParseDirectoryName(const std::string& name) {
  constexpr std::string_view kStep = "step-";
  constexpr std::string_view kAttempt = "-attempt-";
  if (!name.starts_with(kStep)) return std::nullopt;
  CheckpointName parsed;
  const char* end = name.data() + name.size();
  const auto step = std::from_chars(name.data() + kStep.size(), end, parsed.step);
  if (step.ec != std::errc() || !std::string_view(step.ptr, static_cast<size_t>(end - step.ptr)).starts_with(kAttempt))
    return std::nullopt;
  const auto attempt = std::from_chars(step.ptr + kAttempt.size(), end, parsed.attempt);
  if (attempt.ec != std::errc() || attempt.ptr != end) return std::nullopt;
  // Only names as we write them: "step-60-attempt-1" is somebody else's.
  if (DirectoryName(parsed.step, parsed.attempt) != name) return std::nullopt;
  return parsed;
}

std::optional<CheckpointName> ParseTemporaryName(const std::string& name) {
  if (!name.starts_with(kTemporaryPrefix)) return std::nullopt;
  return ParseDirectoryName(name.substr(sizeof(kTemporaryPrefix) - 1));
}

std::string RankFileName(int rank) {
  char name[32];
  std::snprintf(name, sizeof(name), "rank-%05d.tensors", rank);
  return name;
}

}  // namespace mp::trainer
