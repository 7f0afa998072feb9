#include "worker/trainer/data/corpus.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "worker/trainer/config/error.h"
#include "worker/trainer/hash/xxh64.h"

namespace mp::trainer {
namespace {

// Appends the file's bytes to `out`.
void ReadFile(const std::string& path, const std::string& field, std::string* out) {
  const auto fail = [&](EndCause cause, const std::string& what) {
    throw TrainerError(cause, field + ": " + path + ": " + what);
  };
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    fail(errno == ENOENT ? EndCause::kMissingFile : EndCause::kBadData, std::generic_category().message(errno));
  struct Closer {
    int fd;
    ~Closer() { close(fd); }
  } closer{fd};
  struct stat status = {};
  if (fstat(fd, &status) != 0) fail(EndCause::kBadData, std::generic_category().message(errno));
  if (!S_ISREG(status.st_mode)) fail(EndCause::kBadData, "is not a regular file; a text file is needed");
  if (status.st_size == 0) fail(EndCause::kBadData, "is empty");
  const size_t start = out->size();
  out->resize(start + static_cast<size_t>(status.st_size));
  size_t done = start;
  while (done < out->size()) {
    const ssize_t count = read(fd, out->data() + done, out->size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(EndCause::kBadData, std::generic_category().message(errno));
    if (count == 0) fail(EndCause::kBadData, "became shorter while it was read");
    done += static_cast<size_t>(count);
  }
}

}  // namespace

Corpus::Corpus(const std::vector<DataSourceConfig>& sources, int64_t sequence_length, int64_t vocab_size,
               const std::string& field)
    : sequence_length_(sequence_length) {
  if (vocab_size < 256) {
    throw TrainerError(EndCause::kBadConfig, "model.config.vocab_size: " + std::to_string(vocab_size) +
                                                 " is too small for byte tokens; at least 256 is needed");
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    ReadFile(sources[i].path, field + "[" + std::to_string(i) + "].path", &tokens_);
  }
  if (samples() < 1) {
    throw TrainerError(EndCause::kBadData, field + ": " + std::to_string(tokens_.size()) +
                                               " tokens do not fill one sample of data.sequence_length = " +
                                               std::to_string(sequence_length_));
  }
  Xxh64 hash(static_cast<uint64_t>(sequence_length_));
  hash.Update(tokens_.data(), tokens_.size());
  fingerprint_ = hash.Digest();
}

void Corpus::Sample(int64_t index, int64_t* input_ids, int64_t* labels) const {
  const auto* tokens = reinterpret_cast<const unsigned char*>(tokens_.data());
  const int64_t start = index * sequence_length_;
  for (int64_t i = 0; i < sequence_length_; ++i) {
    const int64_t next = start + i + 1;
    input_ids[i] = tokens[start + i];
    labels[i] = next < static_cast<int64_t>(tokens_.size()) ? tokens[next] : -100;
  }
}

}  // namespace mp::trainer
