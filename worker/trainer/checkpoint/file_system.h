// The file operations of a checkpoint, behind an interface so that a test can make any one of them fail.
//
// Each throws TrainerError(kCheckpoint) with the path and the system's message. Thread-safety: of the implementation's
// choice; the real one may be called from any thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace mp::trainer {

struct Bytes {
  const void* data;
  size_t size;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual void CreateDirectories(const std::string& path) = 0;
  // Creates or replaces the file and syncs it.
  virtual void WriteFile(const std::string& path, const std::vector<Bytes>& pieces) = 0;
  virtual void SyncDirectory(const std::string& path) = 0;
  // Puts directory `from` at `to`. Where `to` exists, the two are exchanged in one call and the old one is removed.
  virtual void ReplaceDirectory(const std::string& from, const std::string& to) = 0;
  // A path that does not exist is no error.
  virtual void RemoveAll(const std::string& path) = 0;
};

// The machine's own. Never null, lives as long as the process.
FileSystem* RealFileSystem();

}  // namespace mp::trainer
