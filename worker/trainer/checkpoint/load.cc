#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <sstream>
#include <system_error>

#include "worker/trainer/checkpoint/checkpoint.h"
#include "worker/trainer/checkpoint/directory_name.h"
#include "worker/trainer/checkpoint/tensor_file.h"
#include "worker/trainer/config/error.h"
#include "worker/trainer/hash/xxh64.h"

namespace mp::trainer {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void Fail(const std::string& path, const std::string& what) {
  throw TrainerError(EndCause::kCheckpoint, path + ": " + what);
}

JsonValue ReadMetadata(const std::string& directory) {
  const std::string path = (fs::path(directory) / kMetadataName).string();
  std::ifstream file(path, std::ios::binary);
  if (!file) Fail(path, std::string("cannot open: ") + std::generic_category().message(errno));
  std::ostringstream content;
  content << file.rdbuf();
  std::string text = content.str();
  // {"xxh64":"0123456789abcdef","metadata":INNER}
  constexpr std::string_view kStart = "{\"xxh64\":\"";
  constexpr std::string_view kMiddle = "\",\"metadata\":";
  const size_t inner = kStart.size() + 16 + kMiddle.size();
  if (text.size() < inner + 2 || !text.starts_with(kStart) ||
      text.compare(kStart.size() + 16, kMiddle.size(), kMiddle) != 0 || !text.ends_with("}\n")) {
    Fail(path, "is not a checkpoint's metadata or is cut short");
  }
  const std::string hash = text.substr(kStart.size(), 16);
  const std::string body = text.substr(inner, text.size() - inner - 2);
  if (HashToHex(HashBytes(body.data(), body.size())) != hash) Fail(path, "its checksum is wrong");
  try {
    JsonValue metadata = ParseJson(body);
    if (metadata.At("format").AsInteger() != 1) {
      Fail(path, "has format " + metadata.At("format").ToString() + "; this program reads 1");
    }
    return metadata;
  } catch (const JsonError& error) {
    Fail(path, error.what());
  }
}

// A slice asked for, and which parts of it have been filled.
struct Wanted {
  TensorSlice* slice;
  std::vector<std::pair<int64_t, int64_t>> filled;  // [first, last) relative to the slice
};

void Fill(const TensorSlice& saved, const std::string& file, Wanted* wanted) {
  TensorSlice& slice = *wanted->slice;
  if (saved.global_shape != slice.global_shape) {
    Fail(file, slice.name + " has another shape than the model: the checkpoint belongs to another model");
  }
  if (saved.data.scalar_type() != slice.data.scalar_type()) Fail(file, slice.name + " has another type than expected");
  const int64_t first = std::max(saved.offset, slice.offset);
  const int64_t last = std::min(saved.offset + saved.data.numel(), slice.offset + slice.data.numel());
  if (first >= last) return;
  slice.data.slice(0, first - slice.offset, last - slice.offset)
      .copy_(saved.data.slice(0, first - saved.offset, last - saved.offset));
  wanted->filled.emplace_back(first - slice.offset, last - slice.offset);
}

// The file that most likely holds all, the one with shared state, the others.
std::vector<size_t> ReadingOrder(size_t files, const CheckpointGroup& group) {
  std::vector<size_t> order(files);
  std::iota(order.begin(), order.end(), size_t{0});
  const auto mine = static_cast<size_t>(group.rank);
  if (mine < files) std::rotate(order.begin(), order.begin() + group.rank, order.begin() + group.rank + 1);
  return order;
}

bool IsFilled(const std::map<std::string, Wanted>& wanted) {
  return std::all_of(wanted.begin(), wanted.end(), [](const auto& entry) {
    int64_t filled = 0;
    for (const auto& [first, last] : entry.second.filled) filled += last - first;
    return filled >= entry.second.slice->data.numel();
  });
}

void CheckFilled(const std::string& directory, std::map<std::string, Wanted>& wanted) {
  for (auto& [name, want] : wanted) {
    std::sort(want.filled.begin(), want.filled.end());
    int64_t next = 0;
    for (const auto& [first, last] : want.filled) {
      if (first != next) Fail(directory, name + (first < next ? ": slices overlap" : ": a part is missing"));
      next = last;
    }
    if (next != want.slice->data.numel()) Fail(directory, name + ": a part is missing");
  }
}

ReplicatedState Load(const std::string& path, std::vector<TensorSlice>& slices, const CheckpointGroup& group) {
  const JsonValue metadata = ReadMetadata(path);
  ReplicatedState state;
  try {
    state.values = metadata.At("values");
    const auto& files = metadata.At("files").AsArray();
    const bool same_world = static_cast<int>(files.size()) == group.world_size;
    std::map<std::string, Wanted> wanted;
    for (TensorSlice& slice : slices) {
      if (slice.data.numel() > 0) wanted[slice.name] = {&slice, {}};
    }
    for (const size_t rank : ReadingOrder(files.size(), group)) {
      const bool mine = static_cast<int>(rank) == group.rank;
      if (same_world && !mine && rank != 0 && IsFilled(wanted)) continue;
      const std::string name = files[rank].At("name").AsString();
      if (name != RankFileName(static_cast<int>(rank))) Fail(path, "file name " + name + " is out of order");
      const std::string file = (fs::path(path) / name).string();
      for (const TensorSlice& saved :
           ReadTensorFile(file, files[rank].At("bytes").AsInteger(), files[rank].At("xxh64").AsString())) {
        if (saved.name.starts_with("replicated/")) {
          state.tensors[saved.name.substr(11)] = saved.data.reshape(saved.global_shape);
        } else if (saved.name.starts_with("rank/")) {
          if (same_world && mine) state.rank_tensors[saved.name.substr(5)] = saved.data.reshape(saved.global_shape);
        } else if (const auto it = wanted.find(saved.name); it != wanted.end()) {
          Fill(saved, file, &it->second);
        }
      }
    }
    CheckFilled(path, wanted);
  } catch (const JsonError& error) {
    Fail(path, std::string("its metadata is wrong: ") + error.what());
  } catch (const c10::Error& error) {
    Fail(path, error.what_without_backtrace());
  }
  return state;
}

}  // namespace

std::vector<std::string> ListCheckpoints(const std::string& output_dir) {
  std::vector<std::pair<std::pair<int64_t, int>, std::string>> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(output_dir, error)) {
    const auto name = ParseDirectoryName(entry.path().filename().string());
    if (name && entry.is_directory(error)) found.push_back({{name->step, name->attempt}, entry.path().string()});
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<std::string> paths;
  paths.reserve(found.size());
  for (auto& [key, path] : found) paths.push_back(std::move(path));
  return paths;
}

ReplicatedState LoadCheckpoint(const std::string& path, std::vector<TensorSlice>& slices,
                               const CheckpointGroup& group) {
  ReplicatedState state;
  std::string mine;
  try {
    state = Load(path, slices, group);
  } catch (const TrainerError& error) {
    mine = error.what();
  }
  // One rank's damage is every rank's: all must load the same checkpoint.
  const std::vector<std::string> all = group.all_gather(mine);
  for (const std::string& problem : all) {
    if (!problem.empty()) throw TrainerError(EndCause::kCheckpoint, problem);
  }
  return state;
}

}  // namespace mp::trainer
