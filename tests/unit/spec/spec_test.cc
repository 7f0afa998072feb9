#include "server/spec/spec.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/unit/mutation.h"

namespace mp {
namespace {

using testing::HasSubstr;
using testing::UnorderedElementsAre;

constexpr char kGood[] = R"(
name: good
model: {config: {model_type: llama, hidden_size: 64, intermediate_size: 128, num_hidden_layers: 2, num_attention_heads: 4,
                 vocab_size: 256, max_position_embeddings: 128}}
data: {train: [{path: t.txt}], sequence_length: 64}
training: {max_steps: 10, output_dir: out, per_device_train_batch_size: 4}
)";

v1::CreateJobRequest Request(const std::string& document, const std::vector<std::string>& overrides = {}) {
  v1::CreateJobRequest request;
  request.set_spec_document(document);
  for (const std::string& assignment : overrides) request.add_overrides(assignment);
  return request;
}

std::map<std::string, std::string> ViolationsFor(const std::string& document,
                                                 const std::vector<std::string>& overrides = {}) {
  const auto spec = ResolveSpec(Request(document, overrides));
  EXPECT_FALSE(spec.ok());
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
  std::map<std::string, std::string> found;
  for (const FieldViolation& violation : ViolationsOf(spec.status())) {
    EXPECT_TRUE(found.emplace(violation.field, violation.description).second)
        << violation.field << " is reported twice";
  }
  return found;
}

std::vector<std::string> Fields(const std::map<std::string, std::string>& violations) {
  std::vector<std::string> fields;
  for (const auto& [field, description] : violations) fields.push_back(field);
  return fields;
}

TEST(SpecTest, FillsEveryDefault) {
  const auto spec = ResolveSpec(Request(kGood));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->precision().policy(), v1::PrecisionSpec::FP32);
  EXPECT_EQ(spec->precision().reduce_dtype(), v1::Dtype::FP32);
  EXPECT_EQ(spec->training().adam_beta2(), 0.999);
  EXPECT_EQ(spec->training().per_device_eval_batch_size(), 4);
  EXPECT_EQ(spec->restart().max_attempts(), 3);
  EXPECT_EQ(spec->resources().node_class(), v1::ResourceSpec::CPU);
  EXPECT_FALSE(spec->precision().has_fp8());
  const auto fp8 = ResolveSpec(Request(kGood, {"precision.policy=FP8"}));
  ASSERT_TRUE(fp8.ok()) << fp8.status();
  EXPECT_EQ(fp8->precision().param_dtype(), v1::Dtype::BF16);
  EXPECT_EQ(fp8->precision().fp8().amax_history_len(), 32);
  const auto fp16 = ResolveSpec(Request(kGood, {"precision.policy=FP16"}));
  EXPECT_EQ(fp16->precision().loss_scale().mode(), v1::LossScaleSpec::DYNAMIC);
  EXPECT_EQ(fp16->precision().loss_scale().growth_interval(), 2000);
}

TEST(SpecTest, ShardingFollowsItsStrategy) {
  const auto full = ResolveSpec(Request(kGood));
  ASSERT_TRUE(full.ok()) << full.status();
  EXPECT_EQ(full->sharding().strategy(), v1::ShardingSpec::FULL_SHARD);
  EXPECT_TRUE(full->sharding().reshard_after_forward());
  EXPECT_FALSE(full->sharding().has_hybrid_shard_degree());
  const auto hybrid = ResolveSpec(
      Request(kGood, {"sharding.strategy=HYBRID_SHARD", "resources.nodes=3", "resources.devices_per_node=8"}));
  ASSERT_TRUE(hybrid.ok()) << hybrid.status();
  EXPECT_EQ(hybrid->sharding().hybrid_shard_degree(), 8);
  EXPECT_TRUE(hybrid->sharding().reshard_after_forward());
  const auto kept = ResolveSpec(Request(kGood, {"sharding.strategy=SHARD_GRAD_OP"}));
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_FALSE(kept->sharding().reshard_after_forward());
}

TEST(SpecTest, ShardingThatContradictsItselfIsRefused) {
  const auto found =
      ViolationsFor(kGood, {"sharding.strategy=HYBRID_SHARD", "sharding.hybrid_shard_degree=3", "resources.nodes=4"});
  EXPECT_THAT(found.at("sharding.hybrid_shard_degree"), HasSubstr("does not divide the number of ranks"));
  EXPECT_THAT(Fields(ViolationsFor(kGood, {"sharding.strategy=NO_SHARD", "sharding.hybrid_shard_degree=1",
                                           "sharding.reshard_after_forward=true"})),
              UnorderedElementsAre("sharding.hybrid_shard_degree", "sharding.reshard_after_forward"));
  EXPECT_THAT(Fields(ViolationsFor(kGood, {"sharding.backward_prefetch=BACKWARDS", "sharding.limit_all_gathers=2"})),
              UnorderedElementsAre("sharding.backward_prefetch", "sharding.limit_all_gathers"));
}

TEST(SpecTest, OptimizerCheckpointingAndLossScaleAreChecked) {
  EXPECT_THAT(Fields(ViolationsFor(kGood, {"training.momentum=0.9"})), UnorderedElementsAre("training.momentum"));
  EXPECT_THAT(Fields(ViolationsFor(kGood, {"training.optim=SGD", "training.momentum=1",
                                           "training.activation_checkpointing.every_n_layers=0"})),
              UnorderedElementsAre("training.momentum", "training.activation_checkpointing.every_n_layers"));
  EXPECT_THAT(Fields(ViolationsFor(
                  kGood, {"precision.policy=FP16", "precision.loss_scale.init_scale=16",
                          "precision.loss_scale.min_scale=32", "precision.loss_scale.max_consecutive_skips=-1"})),
              UnorderedElementsAre("precision.loss_scale.min_scale", "precision.loss_scale.max_consecutive_skips"));
  EXPECT_THAT(Fields(ViolationsFor(kGood, {"precision.loss_scale.max_consecutive_skips=5"})),
              UnorderedElementsAre("precision.loss_scale.max_consecutive_skips"));
}

TEST(SpecTest, TheResolvedSpecResolvesToItself) {
  const std::vector<std::vector<std::string>> variants = {
      {"precision.policy=FP32"},
      {"precision.policy=BF16", "sharding.strategy=NO_SHARD"},
      {"precision.policy=FP16", "sharding.strategy=SHARD_GRAD_OP"},
      {"precision.policy=FP8", "sharding.strategy=HYBRID_SHARD"},
      {"training.optim=SGD", "training.activation_checkpointing.mode=FULL"}};
  for (const auto& variant : variants) {
    const auto once = ResolveSpec(Request(kGood, variant));
    ASSERT_TRUE(once.ok());
    v1::CreateJobRequest again;
    *again.mutable_spec() = *once;
    const auto twice = ResolveSpec(again);
    ASSERT_TRUE(twice.ok()) << twice.status();
    EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(*once, *twice));
  }
}

TEST(SpecTest, JsonAndCamelCaseAreRead) {
  const auto spec = ResolveSpec(
      Request(R"({"name": "j", "model": {"configPath": "m"}, "data": {"train": [{"path": "t"}], "sequenceLength": 32},
    "training": {"maxSteps": "7", "outputDir": "o", "evalStrategy": "NO"}})"));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->training().max_steps(), 7);
  EXPECT_EQ(spec->training().eval_strategy(), v1::TrainingSpec::NO);
}

TEST(SpecTest, EveryViolationIsReportedAtOnce) {
  const auto violations = ViolationsFor(R"(
name: Bad_Name
model: {config: {model_type: llama, hidden_sise: 64, hidden_size: 60, num_attention_heads: 7, vocab_size: 100}}
precision: {policy: FP7, loss_scale: {mode: STATIC}, fp8: {margin: 99}}
data: {train: [{path: ../up.txt}, {format: PDF, path: x}], sequence_length: 99999}
training: {max_stepz: 3, learning_rate: -1, warmup_steps: many, output_dir: "", eval_strategy: STEPS}
resources: {nodes: 0, node_class: TPU}
scheduling: {queue: other, time_limit: soon}
restart: {max_attempts: 0}
)");
  EXPECT_THAT(Fields(violations),
              UnorderedElementsAre("name", "model.config.hidden_sise", "model.config.num_attention_heads",
                                   "model.config.vocab_size", "precision.policy", "precision.loss_scale.scale",
                                   "precision.fp8", "data.train[0].path", "data.train[1].format", "data.eval",
                                   "data.sequence_length", "training.max_stepz", "training.max_steps",
                                   "training.learning_rate", "training.warmup_steps", "training.output_dir",
                                   "training.eval_steps", "resources.nodes", "resources.node_class", "scheduling.queue",
                                   "scheduling.time_limit", "restart.max_attempts"));
  EXPECT_THAT(violations.at("training.max_stepz"), HasSubstr("did you mean \"max_steps\""));
  EXPECT_THAT(violations.at("precision.policy"), HasSubstr("FP32, BF16, FP16, FP8"));
  EXPECT_THAT(violations.at("data.sequence_length"), HasSubstr("2048"));
}

TEST(SpecTest, CombinationsThatCannotWork) {
  EXPECT_THAT(Fields(ViolationsFor(kGood, {"precision.policy=FP8", "resources.node_class=P4"})),
              UnorderedElementsAre("precision.policy"));
  EXPECT_THAT(Fields(ViolationsFor(kGood, {"precision.policy=BF16", "precision.param_dtype=FP16"})),
              UnorderedElementsAre("precision.param_dtype"));
  EXPECT_THAT(Fields(ViolationsFor(kGood, {"precision.policy=FP8", "data.sequence_length=63",
                                           "training.per_device_train_batch_size=1"})),
              UnorderedElementsAre("precision.policy"));
  EXPECT_THAT(Fields(ViolationsFor(kGood, {"precision.policy=FP8", "model.config.hidden_size=72"})),
              UnorderedElementsAre("precision.policy"));
  EXPECT_THAT(Fields(ViolationsFor(kGood, {"precision.loss_scale={mode: DYNAMIC, scale: 2}"})),
              UnorderedElementsAre("precision.loss_scale.scale"));
  EXPECT_THAT(Fields(ViolationsFor(kGood, {"training.warmup_steps=11"})),
              UnorderedElementsAre("training.warmup_steps"));
  EXPECT_THAT(Fields(ViolationsFor(kGood, {"model.config_path=x"})), UnorderedElementsAre("model.config"));
}

TEST(SpecTest, WrongTypesAreNamed) {
  const auto violations = ViolationsFor(kGood, {"training=3", "data.train={a: 1}", "model.config=[1]",
                                                "resources.nodes=1.5", "restart.max_attempts=99999999999"});
  for (const char* field : {"training", "data.train", "model.config", "resources.nodes", "restart.max_attempts"})
    EXPECT_TRUE(violations.contains(field)) << field;
}

TEST(SpecTest, OverridesReachEverywhereAndTheirFaultsAreNamed) {
  const auto spec = ResolveSpec(
      Request(kGood, {"name=other", "training.max_steps=99", "model.config.hidden_size=128",
                      "scheduling.labels={zone: a}", "data.train=[{path: x}]", "scheduling.time_limit=2h"}));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->name(), "other");
  EXPECT_EQ(spec->model().config().fields().at("hidden_size").number_value(), 128);
  EXPECT_EQ(spec->scheduling().labels().at("zone"), "a");
  EXPECT_EQ(spec->data().train_size(), 1);
  EXPECT_EQ(spec->scheduling().time_limit().seconds(), 7200);
  EXPECT_THAT(Fields(ViolationsFor(kGood, {"training.nonsense=1", "no equals"})),
              UnorderedElementsAre("training.nonsense", "no equals"));
}

TEST(SpecTest, AWorkloadExcludesTheTrainersParts) {
  EXPECT_TRUE(ResolveSpec(Request("{name: w, workload: {command: [python3, train.py], env: {A_1: x}}}")).ok());
  EXPECT_THAT(
      Fields(ViolationsFor(
          "{name: w, workload: {command: [], env: {LD_PRELOAD: x, RANK: y, 1a: z}}, training: {max_steps: 1}}")),
      UnorderedElementsAre("workload.command", "workload.env.LD_PRELOAD", "workload.env.RANK", "workload.env.1a",
                           "training"));
}

TEST(SpecTest, TextThatIsNoSpecIsRefusedWithItsPlace) {
  EXPECT_THAT(ViolationsFor("a: [1,").at("(document)"), HasSubstr("line"));
  EXPECT_TRUE(ViolationsFor("- a\n- b").contains("(document)"));
  EXPECT_TRUE(ViolationsFor("name: b\n" + std::string(kGood)).contains("name"));
  EXPECT_TRUE(ViolationsFor(std::string(2 << 20, 'x')).contains("(document)"));
  EXPECT_TRUE(ViolationsFor("a: 1\n---\nb: 2").contains("(document)"));
}

TEST(SpecTest, TextIsUtf8AndJsonsEscapesAreUnderstood) {
  EXPECT_THAT(ViolationsFor("name: \xff").at("(document)"), HasSubstr("UTF-8"));
  EXPECT_THAT(ViolationsFor("\xff\xfe"
                            "a")
                  .at("(document)"),
              HasSubstr("UTF-8"));
  const auto spec =
      ResolveSpec(Request(R"({"name": "j", "workload": {"command": ["\ud83d\uDE00", "\\ud83d\\ude00"]}})"));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->workload().command(0), "\xF0\x9F\x98\x80");
  EXPECT_EQ(spec->workload().command(1), "\\ud83d\\ude00");
}

TEST(SpecTest, AliasesCannotStandForAMountain) {
  std::string bomb = "x0: &x0 [1,1,1,1,1,1,1,1,1,1]\n";
  for (int i = 1; i < 12; ++i) {
    absl::StrAppend(&bomb, "x", i, ": &x", i, " [");
    for (int j = 0; j < 10; ++j) absl::StrAppend(&bomb, "*x", i - 1, ",");
    absl::StrAppend(&bomb, "]\n");
  }
  absl::StrAppend(&bomb, "model: {config: {a: *x11}}\n");
  EXPECT_FALSE(ResolveSpec(Request(bomb)).ok());
}

TEST(SpecTest, StrayBracketsAreRefused) {
  for (const std::string stray : {"]", "}", "] ]", "...\n]", "- a\n]"}) {
    EXPECT_FALSE(ResolveSpec(Request(absl::StrCat(kGood, stray))).ok()) << stray;
    EXPECT_FALSE(ResolveSpec(Request(stray)).ok()) << stray;
  }
}

TEST(SpecTest, DeepNestingIsRefused) {
  for (const std::string_view bracket : {"[", "{", "- ", "? ", "{a: "}) {
    std::string text;
    for (int i = 0; i < 100000; ++i) text += bracket;
    EXPECT_FALSE(ResolveSpec(Request(text)).ok()) << bracket;
  }
}

TEST(SpecTest, DamagedTextIsRefusedOrResolvesToItself) {
  int refused = 0;
  for (unsigned seed = 0; seed < 5000; ++seed) {
    const std::string text = Mutator(seed).Damage(kGood);
    const auto once = ResolveSpec(Request(text));
    if (!once.ok()) {
      ++refused;
      ASSERT_EQ(once.status().code(), absl::StatusCode::kInvalidArgument) << "seed " << seed << ": " << text;
      ASSERT_FALSE(ViolationsOf(once.status()).empty()) << once.status() << "seed " << seed << ": " << text;
      continue;
    }
    v1::CreateJobRequest again;
    *again.mutable_spec() = *once;
    const auto twice = ResolveSpec(again);
    ASSERT_TRUE(twice.ok()) << twice.status() << " seed " << seed << ": " << text;
    EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(*once, *twice)) << "seed " << seed << ": " << text;
  }
  EXPECT_GT(refused, 2500);
  EXPECT_LT(refused, 5000);
}

TEST(StatusDetailsTest, SurviveTheWire) {
  const absl::Status status = InvalidSpec({{"a.b", "wrong"}, {"c", "worse"}});
  const absl::Status back = FromGrpc(ToGrpc(status));
  EXPECT_EQ(back.code(), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(ViolationsOf(back).size(), 2U);
  EXPECT_EQ(ViolationsOf(back)[1].description, "worse");
  EXPECT_TRUE(FromGrpc(grpc::Status::OK).ok());
}

}  // namespace
}  // namespace mp
