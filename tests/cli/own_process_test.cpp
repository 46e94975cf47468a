// SPDX-License-Identifier: Apache-2.0
#include "cli/own_process.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <stdexcept>

namespace fmmformer::cli {
namespace {

std::string error_of(const std::function<std::string()>& work) {
  try {
    in_own_process(work);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no error";
}

TEST(OwnProcess, AnswersOfAnyLengthComeBackAndNothingElseChangesHere) {
  int touched = 0;
  const std::string answer = in_own_process([&] {
    touched = 1;
    return std::string(1 << 20, 'x') + std::to_string(getpid());
  });
  EXPECT_EQ(touched, 0);
  EXPECT_EQ(answer.substr(0, 1 << 20), std::string(1 << 20, 'x'));
  EXPECT_NE(answer.substr(1 << 20), std::to_string(getpid()));
}

TEST(OwnProcess, AnErrorThereIsAnErrorHere) {
  EXPECT_EQ(error_of([]() -> std::string { throw std::runtime_error("no room"); }), "no room");
}

TEST(OwnProcess, AProcessThatIsKilledIsAnErrorThatSaysSo) {
  const std::string error = error_of([]() -> std::string {
    raise(SIGKILL);
    return "";
  });
  EXPECT_NE(error.find("Killed"), std::string::npos) << error;
}

}  // namespace
}  // namespace fmmformer::cli
