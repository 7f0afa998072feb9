#include "worker/trainer/checkpoint/tensor_file.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <system_error>

#include "worker/trainer/config/error.h"
#include "worker/trainer/hash/xxh64.h"

namespace mp::trainer {
namespace {

[[noreturn]] void Fail(const std::string& path, const std::string& what) {
  throw TrainerError(EndCause::kCheckpoint, path + ": " + what);
}

// The whole file as bytes, uint8 [size].
at::Tensor ReadWhole(const std::string& path, int64_t expected) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) Fail(path, std::string("cannot open: ") + std::generic_category().message(errno));
  struct Closer {
    int fd;
    ~Closer() { close(fd); }
  } closer{fd};
  struct stat status = {};
  if (fstat(fd, &status) != 0) Fail(path, std::generic_category().message(errno));
  if (status.st_size != expected) {
    Fail(path, std::to_string(status.st_size) + " bytes; the metadata says " + std::to_string(expected));
  }
  at::Tensor bytes = at::empty({expected}, at::TensorOptions().dtype(at::kByte));
  int64_t done = 0;
  while (done < expected) {
    const ssize_t count = read(fd, bytes.data_ptr<uint8_t>() + done, static_cast<size_t>(expected - done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) Fail(path, count < 0 ? std::generic_category().message(errno) : "ends early");
    done += count;
  }
  return bytes;
}

TensorSlice ReadSlice(const JsonValue& entry, const at::Tensor& body) {
  TensorSlice slice;
  slice.name = entry.At("name").AsString();
  int64_t global = 1;
  for (const JsonValue& size : entry.At("global_shape").AsArray()) {
    const int64_t extent = size.AsInteger();
    if (extent < 0 || (extent > 0 && global > std::numeric_limits<int64_t>::max() / extent))
      throw JsonError("global_shape is too large");
    global *= extent;
    slice.global_shape.push_back(extent);
  }
  const std::string& dtype = entry.At("dtype").AsString();
  if (dtype != "F32" && dtype != "U8") throw JsonError("dtype " + dtype + " is not known");
  const at::ScalarType type = dtype == "F32" ? at::kFloat : at::kByte;
  const int64_t width = dtype == "F32" ? 4 : 1;
  slice.offset = entry.At("offset").AsInteger();
  const int64_t count = entry.At("count").AsInteger();
  const int64_t begin = entry.At("begin").AsInteger();
  if (slice.offset < 0 || count < 0 || slice.offset > global || count > global - slice.offset) {
    throw JsonError("slice of " + slice.name + " lies outside its tensor");
  }
  if (begin < 0 || begin > body.numel() || count > (body.numel() - begin) / width) {
    throw JsonError("data of " + slice.name + " lies outside the file");
  }
  slice.data = at::empty({count}, at::TensorOptions().dtype(type));
  std::memcpy(slice.data.data_ptr(), body.data_ptr<uint8_t>() + begin, static_cast<size_t>(count * width));
  return slice;
}

}  // namespace

TensorFileContents LayOutTensorFile(const std::vector<TensorSlice>& slices) {
  TensorFileContents file;
  JsonValue::Array entries;
  int64_t begin = 0;
  for (const TensorSlice& slice : slices) {
    at::Tensor data = slice.data.contiguous();
    if (data.scalar_type() != at::kFloat && data.scalar_type() != at::kByte) {
      throw TrainerError(EndCause::kCheckpoint, slice.name + ": only float32 and uint8 tensors can be saved");
    }
    JsonValue::Array shape;
    for (const int64_t extent : slice.global_shape) shape.emplace_back(extent);
    entries.push_back(JsonValue::Object{{"name", slice.name},
                                        {"dtype", data.scalar_type() == at::kFloat ? "F32" : "U8"},
                                        {"global_shape", std::move(shape)},
                                        {"offset", slice.offset},
                                        {"count", data.numel()},
                                        {"begin", begin}});
    begin += static_cast<int64_t>(data.nbytes());
    file.data.push_back(std::move(data));
  }
  const std::string json = JsonValue(JsonValue::Object{{"tensors", std::move(entries)}}).ToString();
  const uint64_t length = json.size();
  file.header.resize(sizeof(length));
  std::memcpy(file.header.data(), &length, sizeof(length));
  file.header += json;
  Xxh64 hash;
  hash.Update(file.header.data(), file.header.size());
  for (const at::Tensor& data : file.data) hash.Update(data.data_ptr(), data.nbytes());
  file.hash = hash.Digest();
  file.bytes = static_cast<int64_t>(file.header.size()) + begin;
  return file;
}

std::vector<TensorSlice> ReadTensorFile(const std::string& path, int64_t bytes, const std::string& hash) {
  if (bytes < 8) Fail(path, "is too short for a header");
  const at::Tensor whole = ReadWhole(path, bytes);
  const std::string found = HashToHex(HashBytes(whole.data_ptr(), static_cast<size_t>(bytes)));
  if (found != hash) Fail(path, "its checksum is " + found + "; the metadata says " + hash);
  uint64_t length = 0;
  std::memcpy(&length, whole.data_ptr(), sizeof(length));
  if (length > static_cast<uint64_t>(bytes) - 8) Fail(path, "its header is longer than the file");
  try {
    const std::string_view text(reinterpret_cast<const char*>(whole.data_ptr<uint8_t>()) + 8, length);
    const JsonValue header = ParseJson(text);
    const at::Tensor body = whole.slice(0, static_cast<int64_t>(8 + length));
    std::vector<TensorSlice> slices;
    for (const JsonValue& entry : header.At("tensors").AsArray()) slices.push_back(ReadSlice(entry, body));
    return slices;
  } catch (const JsonError& error) {
    Fail(path, std::string("its header is wrong: ") + error.what());
  }
}

}  // namespace mp::trainer
