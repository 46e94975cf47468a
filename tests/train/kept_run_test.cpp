// SPDX-License-Identifier: Apache-2.0
#include "train/kept_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/temporary_folder.h"
#include "train/checkpoint_sample.h"
#include "train/file_system.h"
#include "train/run_folder.h"

namespace fmmformer::train {
namespace {

using testing::HasSubstr;

Json sample_record() {
  return Json::parse(R"({"format": "fmmformer-record", "version": 1, "seed": 3,
    "vocabulary": {"level": "word", "size": 9, "fingerprint": "1a2b3c4d"},
    "curves": {"train": [{"step": 1, "loss": 1}],
               "valid": [{"step": 10, "loss": 0.123456789, "metric": null}]},
    "maps": {"heads": []}, "blend": [], "pictures": {}, "result": {"best_step": 10}})");
}

class KeptRun : public testing::Test {
 protected:
  KeptRun() {
    const RunFolder run = RunFolder::create(run_);
    run.write_config("name = \"x\"\n");
    run.write_record(sample_record());
    const CheckpointStore store(run.checkpoints(), StoreAccess::kWrite, 2);
    store.save(10, CheckpointSample(10, 6, /*best=*/true).content());
    store.save(20, CheckpointSample(20).content());
  }

  TemporaryFolder folder_;
  std::filesystem::path run_ = folder_ / "run", kept_ = folder_ / "results/deep/kept";
};

TEST_F(KeptRun, IsTheBestModelTheConfigAndACompactRecord) {
  keep_run(run_, kept_);
  EXPECT_EQ(first_value(read_safetensors(kept_ / "model.safetensors")), 10);
  EXPECT_EQ(read_text(kept_ / "config.toml"), "name = \"x\"\n");
  const Json record = RunPaths(kept_).read_record();
  EXPECT_EQ(record, compact_record(sample_record()));
  EXPECT_EQ(record.at("curves").dump(), R"({"valid":[{"step":10,"loss":0.12346,"metric":null}]})");
  for (const char* large : {"maps", "blend", "pictures"}) EXPECT_FALSE(record.contains(large));
  EXPECT_EQ(record.at("vocabulary"), sample_record().at("vocabulary"));
}

TEST_F(KeptRun, IsReplacedByALaterOne) {
  keep_run(run_, kept_);
  CheckpointStore(RunPaths(run_).checkpoints(), StoreAccess::kWrite)
      .save(30, CheckpointSample(30, 6, /*best=*/true).content());
  keep_run(run_, kept_);
  EXPECT_EQ(first_value(read_safetensors(kept_ / "model.safetensors")), 30);
}

TEST_F(KeptRun, MayBeTheRecordAlone) {
  keep_record(run_, kept_);
  EXPECT_FALSE(std::filesystem::exists(kept_ / "model.safetensors"));
  EXPECT_EQ(RunPaths(kept_).read_record().at("seed"), 3);
}

TEST_F(KeptRun, IsNotMadeOfADamagedOrMissingModel) {
  const auto message = [&](const std::filesystem::path& run) -> std::string {
    try {
      keep_run(run, kept_);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(message(folder_ / "nothing"), HasSubstr("holds no run"));
  std::filesystem::resize_file(run_ / "checkpoints/step-00000010/model.safetensors", 20);
  EXPECT_THAT(message(run_), HasSubstr("step-00000010' is damaged"));
  std::filesystem::remove_all(run_ / "checkpoints");
  EXPECT_THAT(message(run_), HasSubstr("no best checkpoint"));
  EXPECT_FALSE(std::filesystem::exists(kept_));
}

}  // namespace
}  // namespace fmmformer::train
