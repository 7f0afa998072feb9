// mp-trainer: one rank of a job.
#include <ATen/Parallel.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <functional>
#include <iostream>
#include <new>
#include <sstream>
#include <string>
#include <system_error>

#include "worker/trainer/config/error.h"
#include "worker/trainer/config/job.h"
#include "worker/trainer/device/cpu/cpu_device.h"
#include "worker/trainer/device/cuda/library.h"
#include "worker/trainer/loop/trainer.h"
#include "worker/trainer/report/reporter.h"
#include "worker/trainer/sharding/process_group.h"

namespace mp::trainer {
namespace {

constexpr char kUsage[] =
    R"(mp-trainer: trains one rank of a job, with or without a controller.

Usage: mp-trainer --job FILE [--print-config]

  --job FILE       the job: a spec in JSON, as `mpctl submit --dry-run -o json` prints it
  --print-config   print the job with every default filled in, and exit
  --version        print the version, and exit

Report lines (proto/mp/v1/trainer.proto, one JSON object a line) go to standard output, messages to standard error.

Environment:
  RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT   as torchrun sets them; none: one rank
  OMP_NUM_THREADS         threads of this rank (default 1)
  MP_ATTEMPT              number of this start of the job, part of checkpoint names (default 1)
  MP_RESUME_FROM          none | latest | path; replaces training.resume_from_checkpoint
  MP_COLLECTIVE_TIMEOUT   seconds until a peer that does not answer is given up (default 600)
  MP_REPORT_FD            descriptor for report lines (default 1)
  MP_COMMAND_FD           descriptor for command lines; its end ends the rank (default none)
  MP_RENDEZVOUS_FD        rank 0: a socket that listens on MASTER_PORT already
  MP_CPU_GEMM             native | fp32: how bf16 values are multiplied on a CPU (default: by the CPU)
  MP_CPU_KERNELS          native | aten: aten runs on a CPU the operations that a GPU runs (default native)
  MP_CUDA_LIBRARY         path of libmp_cuda.so (default: beside this program, else in ../lib)
  MP_CHECK_DEVICE_WAITS   1: a training step that waits for the device is an error

Exit status: 0 trained; 1 unexpected error; 2 usage; 10 out of memory; 11 not finite; 12 peer lost; 13 bad data;
14 bad config; 15 missing file; 16 checkpoint. The last report line names the cause as well.

Examples:
  mp-trainer --job job.json
  torchrun --no-python --nproc-per-node 2 mp-trainer --job job.json
)";

struct Arguments {
  std::string job;
  bool print_config = false;
};

int ExitStatus(EndCause cause) { return 10 + static_cast<int>(cause); }

int IntegerFromEnvironment(const char* name, int fallback) {
  const char* text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): before any thread
  if (text == nullptr) return fallback;
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto result = std::from_chars(text, end, value);
  if (result.ec != std::errc() || result.ptr != end || value < 0) {
    throw TrainerError(EndCause::kBadConfig, std::string(name) + "=" + text + ": a whole number is needed");
  }
  return value;
}

std::string ReadJobFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw TrainerError(EndCause::kMissingFile, "--job " + path + ": " + std::generic_category().message(errno));
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Threads, and what must not keep a rank alive that nobody waits for.
void PrepareProcess() {
  std::signal(SIGPIPE, SIG_IGN);
  at::set_num_threads(std::max(1, IntegerFromEnvironment("OMP_NUM_THREADS", 1)));
}

[[noreturn]] void EndOrphaned() {
  std::fputs("mp-trainer: the worker is gone; this rank ends\n", stderr);
  _exit(3);
}

// The device of this rank among those that it sees: workers show each rank one, torchrun shows all.
int DeviceIndex() { return IntegerFromEnvironment("LOCAL_RANK", 0); }

std::unique_ptr<Device> MakeDevice(const JobConfig& job) {
  if (job.device == JobConfig::Device::kCPU) return MakeCpuDevice();
  fp8::SetCudaCast(LoadCudaLibrary().cast_to_fp8);
  return LoadCudaLibrary().make_device(DeviceIndex());
}

// `on_peer_lost` may be called from any thread where collectives run on a GPU.
void Train(const JobConfig& job, const Rendezvous& rendezvous, Device* device, Reporter* reporter,
           Whereabouts* whereabouts, const std::function<void(const std::string&)>& on_peer_lost) {
  const char* resume = std::getenv("MP_RESUME_FROM");  // NOLINT(concurrency-mt-unsafe): nothing writes it
  const auto host_collectives = JoinProcessGroup(rendezvous);
  std::unique_ptr<Collectives> device_collectives;
  if (!device->place().is_cpu() && rendezvous.world_size > 1) {
    device_collectives = LoadCudaLibrary().make_collectives(rendezvous, host_collectives.get(), on_peer_lost);
  }
  Trainer(job, IntegerFromEnvironment("MP_ATTEMPT", 1),
          resume != nullptr && *resume != '\0' ? resume : job.training.resume_from_checkpoint, device,
          device_collectives ? device_collectives.get() : host_collectives.get(), reporter, whereabouts)
      .Run();
}

// `detail`: what the allocator said, if anything.
std::string OutOfMemoryMessage(const Device& device, const Whereabouts& whereabouts, const std::string& detail) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  std::string message = std::string("out of memory in ") + whereabouts.phase.load();
  if (whereabouts.step.load() > 0) message += " of step " + std::to_string(whereabouts.step.load());
  // c10's CPU allocator: "... you tried to allocate N bytes. Error code 12 ..."; the CUDA one: "CUDA out of memory.
  // Tried to allocate 2.00 GiB. GPU 0 has a total capacity of ..."
  if (const size_t asked = detail.find("you tried to allocate "); asked != std::string::npos) {
    message += ": " + detail.substr(asked, detail.find(" bytes", asked) + 6 - asked);
  } else if (const size_t tried = detail.find("Tried to allocate "); tried != std::string::npos) {
    message += ": " + detail.substr(tried, detail.find(". ", tried) - tried);
  }
  const Device::Memory memory = device.memory();
  return message + "; this rank holds " + std::to_string(memory.held / kMiB) + " MiB, " +
         std::to_string(memory.peak / kMiB) +
         " MiB at its peak. Smaller: training.per_device_train_batch_size, data.sequence_length, "
         "training.activation_checkpointing, or more ranks under a sharding strategy";
}

int Fail(Reporter* reporter, EndCause cause, const std::string& message, int64_t step) {
  std::fprintf(stderr, "mp-trainer: %s\n", message.c_str());
  if (reporter != nullptr) reporter->Failed(cause, message, step);
  return ExitStatus(cause);
}

// The one border between exceptions and exit status.
int Run(const Arguments& arguments) {
  std::unique_ptr<Reporter> reporter;
  std::unique_ptr<Device> device = MakeCpuDevice();
  Whereabouts whereabouts;
  try {
    PrepareProcess();
    const Rendezvous rendezvous = RendezvousFromEnvironment();
    if (!arguments.print_config) {
      const int command_fd = IntegerFromEnvironment("MP_COMMAND_FD", -1);
      reporter = std::make_unique<Reporter>(rendezvous.rank, IntegerFromEnvironment("MP_REPORT_FD", STDOUT_FILENO),
                                            command_fd, EndOrphaned);
    }
    const JobConfig job = ParseJob(ReadJobFile(arguments.job));
    if (arguments.print_config) {
      std::cout << JobToJson(job) << "\n";
      return 0;
    }
    device = MakeDevice(job);
    Train(job, rendezvous, device.get(), reporter.get(), &whereabouts, [&](const std::string& message) {
      // The rank's own thread may wait for the lost peer for ever.
      _exit(Fail(reporter.get(), EndCause::kPeerLost, message, whereabouts.step.load()));
    });
    return 0;
  } catch (const TrainerError& error) {
    return Fail(reporter.get(), error.cause(), error.what(), whereabouts.step.load());
  } catch (const std::bad_alloc&) {
    return Fail(reporter.get(), EndCause::kOutOfMemory, OutOfMemoryMessage(*device, whereabouts, ""),
                whereabouts.step.load());
  } catch (const c10::Error& error) {
    const std::string what = error.what_without_backtrace();
    // c10's CPU allocator throws a plain error with the first text.
    if (what.find("allocate memory") != std::string::npos || what.find("CUDA out of memory") != std::string::npos) {
      return Fail(reporter.get(), EndCause::kOutOfMemory, OutOfMemoryMessage(*device, whereabouts, what),
                  whereabouts.step.load());
    }
    std::fprintf(stderr, "mp-trainer: %s\n", what.c_str());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mp-trainer: %s\n", error.what());
    return 1;
  }
}

int Main(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--help" || argument == "-h") {
      std::fputs(kUsage, stdout);
      return 0;
    }
    if (argument == "--version") {
      std::puts("mp-trainer " MP_VERSION);
      return 0;
    }
    if (argument == "--print-config") {
      arguments.print_config = true;
    } else if (argument == "--job" && i + 1 < argc) {
      arguments.job = argv[++i];
    } else {
      std::fprintf(stderr, "mp-trainer: unknown argument or missing value: %s (see --help)\n", argument.c_str());
      return 2;
    }
  }
  if (arguments.job.empty()) {
    std::fputs("mp-trainer: --job FILE is needed (see --help)\n", stderr);
    return 2;
  }
  return Run(arguments);
}

}  // namespace
}  // namespace mp::trainer

int main(int argc, char** argv) { return mp::trainer::Main(argc, argv); }
