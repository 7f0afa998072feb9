#include "server/telemetry/log_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace mp {
namespace {

absl::Status ErrnoStatus(const std::string& path) { return absl::ErrnoToStatus(errno, path); }

}  // namespace

std::string LogStore::Path(const std::string& job_uid, int attempt, int rank) const {
  // The uid is one of ours: hexadecimal digits.
  return absl::StrCat(directory_, "/", job_uid, "/attempt-", attempt, "/rank-", rank, ".log");
}

absl::StatusOr<int64_t> LogStore::Size(const std::string& job_uid, int attempt, int rank) {
  struct stat status = {};
  const std::string path = Path(job_uid, attempt, rank);
  if (stat(path.c_str(), &status) == 0) return status.st_size;
  if (errno == ENOENT) return 0;
  return ErrnoStatus(path);
}

absl::StatusOr<int64_t> LogStore::Append(const std::string& job_uid, int attempt, int rank, int64_t offset,
                                         const std::string& data) {
  const absl::MutexLock lock(&mutex_);
  absl::StatusOr<int64_t> size = Size(job_uid, attempt, rank);
  if (!size.ok()) return size;
  if (offset < 0) return size;
  const int64_t known = *size - offset;
  if (known < 0 || known >= static_cast<int64_t>(data.size())) return size;
  const std::string path = Path(job_uid, attempt, rank);
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return ErrnoStatus(path);
  const auto closer = absl::MakeCleanup([fd] { close(fd); });
  size_t done = static_cast<size_t>(known);
  while (done < data.size()) {
    const ssize_t count = write(fd, data.data() + done, data.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus(path);
    done += static_cast<size_t>(count);
  }
  return offset + static_cast<int64_t>(data.size());
}

absl::StatusOr<std::string> LogStore::Read(const std::string& job_uid, int attempt, int rank, int64_t offset,
                                           int64_t limit) {
  const std::string path = Path(job_uid, attempt, rank);
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT) return std::string();
    return ErrnoStatus(path);
  }
  const auto closer = absl::MakeCleanup([fd] { close(fd); });
  std::string data(static_cast<size_t>(limit), '\0');
  ssize_t count = 0;
  do {
    count = pread(fd, data.data(), data.size(), offset);
  } while (count < 0 && errno == EINTR);
  if (count < 0) return ErrnoStatus(path);
  data.resize(static_cast<size_t>(count));
  return data;
}

absl::StatusOr<int64_t> LogStore::TailOffset(const std::string& job_uid, int attempt, int rank, int lines) {
  constexpr int64_t kBlock = 65536;
  absl::StatusOr<int64_t> size = Size(job_uid, attempt, rank);
  if (!size.ok()) return size;
  int64_t end = *size;
  int found = 0;
  while (end > 0) {
    const int64_t begin = std::max<int64_t>(0, end - kBlock);
    absl::StatusOr<std::string> block = Read(job_uid, attempt, rank, begin, end - begin);
    if (!block.ok()) return block.status();
    for (int64_t i = static_cast<int64_t>(block->size()) - 1; i >= 0; --i) {
      // The line feed at the very end closes the last line and begins none.
      if ((*block)[static_cast<size_t>(i)] != '\n' || begin + i + 1 == *size) continue;
      if (++found == lines) return begin + i + 1;
    }
    end = begin;
  }
  return 0;
}

}  // namespace mp
