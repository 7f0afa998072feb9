// Debian's Gloo headers are older than the library inside libtorch_cpu: no vtable of Gloo's may come from them into our
// binaries.
#include <gtest/gtest.h>

#include <unistd.h>

#include <array>
#include <cstdio>
#include <memory>
#include <string>

#include "worker/trainer/sharding/process_group.h"

namespace mp::trainer {
namespace {

std::string Output(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string text;
  std::array<char, 4096> buffer{};
  while (size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe.get())) text.append(buffer.data(), count);
  return text;
}

TEST(GlooLinkageTest, NoVtableOfGlooIsDefinedHere) {
  // Pulls gloo.cc into this binary; volatile, or the compiler sees through it.
  std::unique_ptr<Collectives> (*volatile join)(const Rendezvous&) = &JoinProcessGroup;
  EXPECT_EQ(join(Rendezvous{})->world_size(), 1);
  const std::string exe = "/proc/" + std::to_string(getpid()) + "/exe";
  ASSERT_NE(Output("nm -C " + exe).find("mp::trainer::JoinProcessGroup"), std::string::npos);
  const std::string symbols =
      Output("nm -C --defined-only " + exe + " | grep -E 'vtable for gloo::|typeinfo for gloo::' || true");
  EXPECT_EQ(symbols, "");
}

}  // namespace
}  // namespace mp::trainer
