#include "worker/agent/file_check.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace mp::agent {
namespace {

namespace fs = std::filesystem;

class Check {
 public:
  Check(const v1::PrepareAttempt& prepare, std::string host)
      : root_(prepare.working_directory()), host_(std::move(host)) {}

  std::string Resolve(const std::string& path) const { return (fs::path(root_) / path).lexically_normal().string(); }

  void Fail(v1::EndCause cause, const std::string& field, const std::string& path, const std::string& what) {
    v1::PrepareError& error = errors_.emplace_back();
    error.set_cause(cause);
    error.set_field(field);
    error.set_message(absl::StrCat("host ", host_, ": ", path, ": ", what));
  }

  void ReadableFile(const std::string& field, const std::string& path) {
    const std::string full = Resolve(path);
    struct stat status = {};
    // Opened without blocking: a pipe in the place of a file must not hold us up.
    const int fd = open(full.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return Fail(v1::END_CAUSE_MISSING_FILE, field, full, std::generic_category().message(errno));
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode))
      Fail(v1::END_CAUSE_MISSING_FILE, field, full, "is not a regular file");
    close(fd);
  }

  void Folder(const std::string& field, const std::string& path) {
    const std::string full = Resolve(path);
    struct stat status = {};
    if (stat(full.c_str(), &status) != 0)
      return Fail(v1::END_CAUSE_MISSING_FILE, field, full, std::generic_category().message(errno));
    if (!S_ISDIR(status.st_mode)) Fail(v1::END_CAUSE_MISSING_FILE, field, full, "is not a folder");
  }

  // Checkpoints can be written: the folder is made now, so that a fault shows before hours of training.
  void WritableFolder(const std::string& field, const std::string& path) {
    const std::string full = Resolve(path);
    std::error_code error;
    fs::create_directories(full, error);
    if (error) return Fail(v1::END_CAUSE_BAD_CONFIG, field, full, absl::StrCat("can't be created: ", error.message()));
    if (access(full.c_str(), W_OK | X_OK) != 0)
      Fail(v1::END_CAUSE_BAD_CONFIG, field, full,
           absl::StrCat("can't be written: ", std::generic_category().message(errno)));
  }

  void Program(const std::string& field, const std::string& name) {
    if (name.find('/') != std::string::npos) {
      const std::string full = Resolve(name);
      if (access(full.c_str(), X_OK) != 0)
        Fail(v1::END_CAUSE_MISSING_FILE, field, full, std::generic_category().message(errno));
      return;
    }
    const char* path = std::getenv("PATH");  // NOLINT(concurrency-mt-unsafe): nothing writes it
    for (const auto folder : absl::StrSplit(path == nullptr ? "/usr/bin:/bin" : path, ':')) {
      if (access(absl::StrCat(folder, "/", name).c_str(), X_OK) == 0) return;
    }
    Fail(v1::END_CAUSE_MISSING_FILE, field, name, "is not in PATH");
  }

  std::vector<v1::PrepareError> TakeErrors() { return std::move(errors_); }

 private:
  const std::string root_;
  const std::string host_;
  std::vector<v1::PrepareError> errors_;
};

}  // namespace

std::vector<v1::PrepareError> CheckFiles(const v1::PrepareAttempt& prepare, const std::string& host,
                                         const std::string& trainer) {
  Check check(prepare, host);
  const v1::JobSpec& spec = prepare.spec();
  check.Folder("working_directory", prepare.working_directory());
  if (spec.has_workload()) {
    if (spec.workload().command_size() > 0) check.Program("workload.command[0]", spec.workload().command(0));
    return check.TakeErrors();
  }
  for (int i = 0; i < spec.data().train_size(); ++i)
    check.ReadableFile(absl::StrCat("data.train[", i, "].path"), spec.data().train(i).path());
  for (int i = 0; i < spec.data().eval_size(); ++i)
    check.ReadableFile(absl::StrCat("data.eval[", i, "].path"), spec.data().eval(i).path());
  if (spec.model().has_config_path())
    check.ReadableFile("model.config_path", spec.model().config_path() + "/config.json");
  check.WritableFolder("training.output_dir", spec.training().output_dir());
  const std::string& resume = prepare.resume_from();
  if (resume != "none" && resume != "latest" && !resume.empty())
    check.Folder("training.resume_from_checkpoint", resume);
  check.Program("", trainer);
  return check.TakeErrors();
}

}  // namespace mp::agent
