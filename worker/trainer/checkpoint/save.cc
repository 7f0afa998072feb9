#include <cstdio>
#include <filesystem>

#include "worker/trainer/checkpoint/checkpoint.h"
#include "worker/trainer/checkpoint/directory_name.h"
#include "worker/trainer/checkpoint/tensor_file.h"
#include "worker/trainer/config/error.h"
#include "worker/trainer/hash/xxh64.h"

namespace mp::trainer {
namespace {

namespace fs = std::filesystem;

constexpr char kRefused[] = "refused";

// Runs `work` on this rank and gathers the outcomes: either every rank returns every rank's result, or every rank
// throws the first failure.
std::vector<std::string> Together(const CheckpointGroup& group, const std::function<std::string()>& work) {
  std::string mine;
  try {
    mine = "+" + work();
  } catch (const std::exception& error) {
    mine = std::string("-") + error.what();
  }
  std::vector<std::string> all = group.all_gather(mine);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty() || all[rank][0] != '+') {
      throw TrainerError(EndCause::kCheckpoint, "checkpoint not saved: rank " + std::to_string(rank) + ": " +
                                                    (all[rank].empty() ? "no answer" : all[rank].substr(1)));
    }
    all[rank].erase(0, 1);
  }
  return all;
}

// What processes of this or an earlier attempt left when they died.
void RemoveLeftovers(const std::string& output_dir, int attempt, FileSystem* file_system) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(output_dir, error)) {
    const auto name = ParseTemporaryName(entry.path().filename().string());
    if (name && name->attempt <= attempt) file_system->RemoveAll(entry.path().string());
  }
}

std::vector<TensorSlice> AllSlices(const std::vector<TensorSlice>& slices, const ReplicatedState& state, int rank) {
  std::vector<TensorSlice> all = slices;
  for (TensorSlice& slice : all) slice.data = slice.data.cpu();
  const auto add = [&](const std::string& prefix, const std::map<std::string, at::Tensor>& tensors) {
    for (const auto& [name, tensor] : tensors) {
      all.push_back({prefix + name, tensor.sizes().vec(), 0, tensor.contiguous().reshape({-1})});
    }
  };
  if (rank == 0) add("replicated/", state.tensors);
  add("rank/", state.rank_tensors);
  return all;
}

std::string Metadata(int64_t step, int attempt, const ReplicatedState& state, const std::vector<std::string>& files) {
  JsonValue::Array list;
  for (const std::string& file : files) list.push_back(ParseJson(file));
  const std::string inner = JsonValue(JsonValue::Object{{"format", 1},
                                                        {"step", step},
                                                        {"attempt", attempt},
                                                        {"world_size", static_cast<int64_t>(files.size())},
                                                        {"values", state.values},
                                                        {"files", std::move(list)}})
                                .ToString();
  return "{\"xxh64\":\"" + HashToHex(HashBytes(inner.data(), inner.size())) + "\",\"metadata\":" + inner + "}\n";
}

}  // namespace

bool SaveCheckpoint(const std::string& output_dir, int64_t step, int attempt, const std::vector<TensorSlice>& slices,
                    const ReplicatedState& state, const CheckpointGroup& group,
                    const std::function<bool(const std::string& path)>& permit, CheckpointInfo* info,
                    FileSystem* file_system) {
  const std::string name = DirectoryName(step, attempt);
  const std::string final_path = (fs::path(output_dir) / name).string();
  const std::string aside = (fs::path(output_dir) / (kTemporaryPrefix + name)).string();

  Together(group, [&]() -> std::string {
    if (group.rank != 0) return "";
    file_system->CreateDirectories(output_dir);
    RemoveLeftovers(output_dir, attempt, file_system);
    file_system->CreateDirectories(aside);
    return "";
  });
  int64_t bytes = 0;
  const std::vector<std::string> files = Together(group, [&] {
    const TensorFileContents file = LayOutTensorFile(AllSlices(slices, state, group.rank));
    std::vector<Bytes> pieces = {{file.header.data(), file.header.size()}};
    for (const at::Tensor& data : file.data) pieces.push_back({data.data_ptr(), data.nbytes()});
    const std::string file_name = RankFileName(group.rank);
    file_system->WriteFile((fs::path(aside) / file_name).string(), pieces);
    return JsonValue(JsonValue::Object{{"name", file_name}, {"bytes", file.bytes}, {"xxh64", HashToHex(file.hash)}})
        .ToString();
  });
  for (const std::string& file : files) bytes += ParseJson(file).At("bytes").AsInteger();

  const std::vector<std::string> outcome = Together(group, [&]() -> std::string {
    if (group.rank != 0) return "";
    if (!permit(final_path)) {
      file_system->RemoveAll(aside);
      return kRefused;
    }
    const std::string metadata = Metadata(step, attempt, state, files);
    file_system->WriteFile((fs::path(aside) / kMetadataName).string(), {{metadata.data(), metadata.size()}});
    file_system->SyncDirectory(aside);
    file_system->ReplaceDirectory(aside, final_path);
    file_system->SyncDirectory(output_dir);
    return "";
  });
  if (outcome[0] == kRefused) return false;
  *info = {final_path, step, bytes};
  return true;
}

}  // namespace mp::trainer
