// Names inside an output directory; see format.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace mp::trainer {

inline constexpr char kTemporaryPrefix[] = ".tmp-";
inline constexpr char kMetadataName[] = "metadata.json";

struct CheckpointName {
  int64_t step = 0;
  int attempt = 0;
};

std::string DirectoryName(int64_t step, int attempt);  // "step-00000060-attempt-1"
std::optional<CheckpointName> ParseDirectoryName(const std::string& name);
std::optional<CheckpointName> ParseTemporaryName(const std::string& name);
std::string RankFileName(int rank);  // "rank-00000.tensors"

}  // namespace mp::trainer
