// SPDX-License-Identifier: Apache-2.0
// What happens to a download when its process is killed, raced or out of disk space.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <thread>

#include "core/temporary_folder.h"
#include "tasks/fetch/folder_contents.h"
#include "tasks/fetch/http_server.h"
#include "tasks/fetch/sha256.h"

namespace fmmformer::tasks::fetch {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Key;
using testing::UnorderedElementsAre;

const std::string kFile(2'000'000, 'f');

class FetchProcess {
 public:
  explicit FetchProcess(std::vector<std::string> arguments, const std::filesystem::path& output) {
    arguments.insert(arguments.begin(), FMMFORMER_FETCH_ONCE);
    std::vector<char*> plain;
    for (std::string& argument : arguments) plain.push_back(argument.data());
    plain.push_back(nullptr);
    process_ = fork();
    if (process_ != 0) return;
    const int file = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (dup2(file, STDOUT_FILENO) >= 0) execv(plain[0], plain.data());
    _exit(127);
  }
  FetchProcess(const FetchProcess&) = delete;
  FetchProcess& operator=(const FetchProcess&) = delete;

  void kill() const { ::kill(process_, SIGKILL); }
  int exit_code() const {
    int status = 0;
    waitpid(process_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t process_ = -1;
};

class FetchProcesses : public testing::Test {
 protected:
  FetchProcesses() {
    setenv("no_proxy", "127.0.0.1", 1);
    write_file(elsewhere_ / "right", kFile);
    sha256_ = sha256_of_file(elsewhere_ / "right");
  }
  std::vector<std::string> arguments(const HttpServer& server) const {
    return {folder_.path().string(), "set.gz", sha256_, server.address()};
  }
  static bool wait_for_bytes(const std::filesystem::path& path, size_t bytes) {
    for (int i = 0; i < 1000; ++i) {
      std::error_code error;
      const auto size = std::filesystem::file_size(path, error);
      if (!error && size >= bytes) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  TemporaryFolder folder_, elsewhere_;
  std::string sha256_;
};

TEST_F(FetchProcesses, AKilledDownloadLeavesItsPartWhichTheNextOneContinues) {
  std::atomic<bool> first = true;
  const HttpServer server([&](const Request& request, const Connection& to) {
    if (!first.exchange(false)) return to.serve(request, kFile);
    to.send("HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\n" + kFile.substr(0, 700'000));
    to.hang();
  });
  const FetchProcess killed(arguments(server), elsewhere_ / "output");
  ASSERT_TRUE(wait_for_bytes(folder_ / "set.gz.part", 700'000));
  killed.kill();
  EXPECT_EQ(killed.exit_code(), -1);
  EXPECT_THAT(files_in(folder_.path()), ElementsAre(Key("set.gz.part")));

  EXPECT_EQ(FetchProcess(arguments(server), elsewhere_ / "output").exit_code(), 0);
  EXPECT_EQ(server.requests().back().from, 700'000);
  EXPECT_EQ(read_file(folder_ / "set.gz"), kFile);
}

TEST_F(FetchProcesses, OfTwoAtOnceOneFetchesAndTheOtherWaits) {
  std::mutex mutex;
  std::condition_variable changed;
  bool may_end = false;
  const HttpServer server([&](const Request&, const Connection& to) {
    to.send("HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\n" + kFile.substr(0, 1000));
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return may_end; });
    to.send(kFile.substr(1000));
  });
  const FetchProcess first(arguments(server), elsewhere_ / "first");
  ASSERT_TRUE(wait_for_bytes(folder_ / "set.gz.part", 1000));
  const FetchProcess second(arguments(server), elsewhere_ / "second");
  EXPECT_TRUE(wait_for_bytes(elsewhere_ / "second", 1));  // it says that it waits
  {
    const std::lock_guard lock(mutex);
    may_end = true;
  }
  changed.notify_all();
  EXPECT_EQ(first.exit_code(), 0);
  EXPECT_EQ(second.exit_code(), 0);
  EXPECT_THAT(read_file(elsewhere_ / "second"), HasSubstr("another process is fetching set.gz"));
  EXPECT_EQ(server.requests().size(), 1u);
  EXPECT_THAT(files_in(folder_.path()), UnorderedElementsAre(Key("set.gz"), Key("set.gz.sha256")));
}

TEST_F(FetchProcesses, AFullDiskKeepsWhatCameAndSaysWhatToDo) {
  const HttpServer server(
      [](const Request& request, const Connection& to) { to.serve(request, kFile); });
  std::vector<std::string> with_limit = arguments(server);
  with_limit.emplace_back("1000000");  // stands for a full disk
  EXPECT_EQ(FetchProcess(with_limit, elsewhere_ / "output").exit_code(), 1);
  EXPECT_THAT(
      read_file(elsewhere_ / "output"),
      AllOf(HasSubstr("cannot write"), HasSubstr("set.gz.part"), HasSubstr("or use another disk")));
  EXPECT_THAT(files_in(folder_.path()), ElementsAre(Key("set.gz.part")));
  EXPECT_EQ(FetchProcess(arguments(server), elsewhere_ / "output").exit_code(), 0);
  EXPECT_EQ(read_file(folder_ / "set.gz"), kFile);
}

}  // namespace
}  // namespace fmmformer::tasks::fetch
