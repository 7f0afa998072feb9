#include "worker/trainer/checkpoint/file_system.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "worker/trainer/config/error.h"

namespace mp::trainer {
namespace {

[[noreturn]] void Fail(const std::string& path, const char* action, int error) {
  throw TrainerError(EndCause::kCheckpoint,
                     path + ": cannot " + action + ": " + std::generic_category().message(error));
}

class Descriptor {
 public:
  Descriptor(const std::string& path, int flags) : path_(path), fd_(open(path.c_str(), flags | O_CLOEXEC, 0644)) {
    if (fd_ < 0) Fail(path, "open", errno);
  }
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  void Write(const Bytes& bytes) const {
    const auto* from = static_cast<const char*>(bytes.data);
    size_t done = 0;
    while (done < bytes.size) {
      const ssize_t count = write(fd_, from + done, bytes.size - done);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) Fail(path_, "write", errno);
      done += static_cast<size_t>(count);
    }
  }
  void Sync() const {
    if (fsync(fd_) != 0) Fail(path_, "sync", errno);
  }

 private:
  std::string path_;
  int fd_;
};

class SystemFileSystem : public FileSystem {
 public:
  void CreateDirectories(const std::string& path) override {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) Fail(path, "create the directory", error.value());
  }

  void WriteFile(const std::string& path, const std::vector<Bytes>& pieces) override {
    const Descriptor file(path, O_WRONLY | O_CREAT | O_TRUNC);
    for (const Bytes& piece : pieces) file.Write(piece);
    file.Sync();
  }

  void SyncDirectory(const std::string& path) override { Descriptor(path, O_RDONLY | O_DIRECTORY).Sync(); }

  void ReplaceDirectory(const std::string& from, const std::string& to) override {
    if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return;
    if (errno != EEXIST) Fail(to, "rename the checkpoint to its name", errno);
    if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) != 0) {
      Fail(to, "exchange the checkpoint of the same name", errno);
    }
    RemoveAll(from);
  }

  void RemoveAll(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) Fail(path, "remove", error.value());
  }
};

}  // namespace

FileSystem* RealFileSystem() {
  static SystemFileSystem file_system;
  return &file_system;
}

}  // namespace mp::trainer
