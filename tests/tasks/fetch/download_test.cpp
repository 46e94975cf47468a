// SPDX-License-Identifier: Apache-2.0
#include "tasks/fetch/download.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
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
using testing::IsEmpty;
using testing::Key;
using testing::Not;
using testing::Pair;
using testing::UnorderedElementsAre;

std::string some_bytes(size_t count) {
  std::string bytes(count, '\0');
  uint32_t state = 1;
  for (char& byte : bytes) byte = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  return bytes;
}

class DownloadTest : public testing::Test {
 protected:
  DownloadTest() {
    setenv("no_proxy", "127.0.0.1", 1);
    write_file(elsewhere_ / "right", kRight);
    file_ = {.name = "set.gz",
             .size = std::ssize(kRight),
             .sha256 = sha256_of_file(elsewhere_ / "right")};
  }

  Downloaded fetch(const std::vector<std::string>& addresses) {
    file_.addresses = addresses;
    return download(file_, options_,
                    {.on_progress = [&](const Progress& now) { progress_.push_back(now); },
                     .on_notice = [&](const std::string& text) { notices_ += text + "\n"; }});
  }

  std::string error_of(const std::vector<std::string>& addresses) {
    try {
      fetch(addresses);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "nothing was thrown";
  }

  std::map<std::string, std::string> files() const { return files_in(folder_.path()); }
  std::string part() const { return read_file(folder_ / "set.gz.part"); }
  void expect_the_file() const { EXPECT_EQ(read_file(folder_ / "set.gz"), kRight); }

  const std::string kRight = some_bytes(300'000);
  TemporaryFolder folder_, elsewhere_;
  RemoteFile file_;
  DownloadOptions options_{.folder = folder_.path(),
                           .tries = 3,
                           .pause = std::chrono::milliseconds(1),
                           .stall_limit = std::chrono::seconds(1)};
  std::vector<Progress> progress_;
  std::string notices_;
};

TEST_F(DownloadTest, BringsAFileAndItsChecksum) {
  const HttpServer server(
      [&](const Request& request, const Connection& to) { to.serve(request, kRight); });
  const Downloaded downloaded = fetch({server.address()});
  EXPECT_THAT(files(), UnorderedElementsAre(Pair("set.gz", kRight),
                                            Pair("set.gz.sha256", file_.sha256 + "  set.gz\n")));
  EXPECT_EQ(downloaded.path, folder_ / "set.gz");
  EXPECT_EQ(downloaded.size, std::ssize(kRight));
  EXPECT_EQ(downloaded.sha256, file_.sha256);
  EXPECT_EQ(downloaded.trust, Trust::kPublished);
  EXPECT_EQ(downloaded.address, server.address());
}

TEST_F(DownloadTest, ReportsProgressToTheEndOfDownloadAndVerification) {
  const HttpServer server(
      [&](const Request& request, const Connection& to) { to.serve(request, kRight); });
  fetch({server.address()});
  ASSERT_GE(progress_.size(), 2u);
  EXPECT_EQ(progress_.front().phase, Phase::kDownload);
  EXPECT_EQ(progress_.back().phase, Phase::kVerify);
  EXPECT_EQ(progress_.back().done, std::ssize(kRight));
  for (const Progress& now : progress_) EXPECT_EQ(now.total, std::ssize(kRight));
}

TEST_F(DownloadTest, MakesTheFolder) {
  const HttpServer server(
      [&](const Request& request, const Connection& to) { to.serve(request, kRight); });
  options_.folder = folder_ / "a/b";
  fetch({server.address()});
  EXPECT_THAT(files(), UnorderedElementsAre(Key("a/b/set.gz"), Key("a/b/set.gz.sha256")));
}

TEST_F(DownloadTest, FollowsRedirects) {
  const HttpServer server([&](const Request& request, const Connection& to) {
    if (request.path == "/file") return to.reply("302 Found", "see there", "Location: /real\r\n");
    to.serve(request, kRight);
  });
  fetch({server.address()});
  expect_the_file();
}

TEST_F(DownloadTest, ARedirectWithoutATargetOrInACircleIsAnError) {
  const HttpServer nowhere([](const Request&, const Connection& to) {
    to.reply("301 Moved Permanently", "<Error>PermanentRedirect</Error>");
  });
  EXPECT_THAT(error_of({nowhere.address()}), HasSubstr("the server answers 301"));
  const HttpServer circle([](const Request&, const Connection& to) {
    to.reply("302 Found", "", "Location: /file\r\n");
  });
  EXPECT_THAT(error_of({circle.address()}), HasSubstr("redirects"));
  EXPECT_THAT(files(), IsEmpty());
}

TEST_F(DownloadTest, ADownloadThatBreaksOffGoesOnWhereItStopped) {
  std::atomic<int> count = 0;
  const HttpServer server([&](const Request& request, const Connection& to) {
    if (count++ > 0) return to.serve(request, kRight);
    to.send("HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n" + kRight.substr(0, 100'000));
  });
  fetch({server.address()});
  expect_the_file();
  ASSERT_EQ(server.requests().size(), 2u);
  EXPECT_EQ(server.requests()[1].from, 100'000);
  EXPECT_THAT(notices_, HasSubstr("trying again"));
}

TEST_F(DownloadTest, AnotherAddressGoesOnWhereTheFirstStopped) {
  const HttpServer first([&](const Request&, const Connection& to) {
    to.send("HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n" + kRight.substr(0, 100'000));
  });
  options_.tries = 1;
  const HttpServer second(
      [&](const Request& request, const Connection& to) { to.serve(request, kRight); });
  EXPECT_EQ(fetch({first.address(), second.address()}).address, second.address());
  expect_the_file();
  EXPECT_EQ(second.requests()[0].from, 100'000);
}

TEST_F(DownloadTest, AnEarlierRunIsContinued) {
  write_file(folder_ / "set.gz.part", kRight.substr(0, 123'456));
  const HttpServer server(
      [&](const Request& request, const Connection& to) { to.serve(request, kRight); });
  fetch({server.address()});
  expect_the_file();
  EXPECT_EQ(server.requests().at(0).from, 123'456);
}

TEST_F(DownloadTest, AServerThatIgnoresRangesSendsTheWholeAnew) {
  write_file(folder_ / "set.gz.part", kRight.substr(0, 123'456));
  const HttpServer server(
      [&](const Request&, const Connection& to) { to.reply("200 OK", kRight); });
  fetch({server.address()});
  expect_the_file();
  EXPECT_EQ(server.requests().size(), 1u);
}

TEST_F(DownloadTest, APartThatWasNotAskedForIsRefused) {
  write_file(folder_ / "set.gz.part", kRight.substr(0, 1000));
  const HttpServer server([&](const Request&, const Connection& to) {
    to.reply("206 Partial Content", "12345", "Content-Range: bytes 500-504/300000\r\n");
  });
  EXPECT_THAT(error_of({server.address()}),
              HasSubstr("asked for the bytes from 1000 on, the server sends others"));
  EXPECT_EQ(part(), kRight.substr(0, 1000));
}

TEST_F(DownloadTest, WhatIsCompleteButUnnamedIsVerifiedAndNotFetchedAgain) {
  const HttpServer server(
      [&](const Request& request, const Connection& to) { to.serve(request, kRight); });
  write_file(folder_ / "set.gz.part", kRight);
  fetch({server.address()});
  expect_the_file();
  EXPECT_THAT(server.requests(), IsEmpty());

  std::filesystem::remove(folder_ / "set.gz");
  write_file(folder_ / "set.gz.part", kRight);
  file_.size = 0;  // not published: only the server knows, and answers 416
  fetch({server.address()});
  expect_the_file();
  EXPECT_EQ(server.requests().size(), 1u);
}

TEST_F(DownloadTest, APartThatIsLongerThanTheFileIsReplaced) {
  for (const int64_t size : {std::ssize(kRight), int64_t{0}}) {
    const HttpServer server(
        [&](const Request& request, const Connection& to) { to.serve(request, kRight); });
    write_file(folder_ / "set.gz.part", kRight + "more");
    file_.size = size;
    fetch({server.address()});
    expect_the_file();
    std::filesystem::remove(folder_ / "set.gz");
  }
}

TEST_F(DownloadTest, ALengthThatIsNeverReachedIsAnErrorThatKeepsWhatCame) {
  const HttpServer server([&](const Request& request, const Connection& to) {
    if (request.from > 0) return;
    to.send("HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n" + kRight.substr(0, 1000));
  });
  EXPECT_THAT(error_of({server.address()}),
              AllOf(HasSubstr("What came so far (1.0 kB) is kept in '" +
                              (folder_ / "set.gz.part").string()),
                    HasSubstr("the same command goes on from there")));
  EXPECT_EQ(server.requests().size(), 3u);
  EXPECT_THAT(files(), ElementsAre(Pair("set.gz.part", kRight.substr(0, 1000))));
}

TEST_F(DownloadTest, ALengthThatIsTooShortIsAnError) {
  const HttpServer server([&](const Request&, const Connection& to) {
    to.send("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + kRight);
  });
  EXPECT_THAT(error_of({server.address()}),
              HasSubstr("the server offers 1000 bytes, the file has 300000 bytes"));
  EXPECT_THAT(files(), IsEmpty());
}

TEST_F(DownloadTest, AnEndWithoutALengthIsNotTakenForTheEndOfTheFile) {
  std::atomic<int> count = 0;
  const HttpServer server([&](const Request& request, const Connection& to) {
    if (count++ > 0) return to.serve(request, kRight);
    to.send("HTTP/1.0 200 OK\r\n\r\n" + kRight.substr(0, 5000));
  });
  fetch({server.address()});
  expect_the_file();
  EXPECT_EQ(server.requests()[1].from, 5000);
}

TEST_F(DownloadTest, MoreBytesThanTheFileHasAreRefused) {
  const HttpServer server([&](const Request&, const Connection& to) {
    to.send("HTTP/1.0 200 OK\r\n\r\n" + kRight + kRight);
  });
  EXPECT_THAT(error_of({server.address()}), HasSubstr("more came than the 300000 bytes"));
  EXPECT_THAT(files(), IsEmpty());
}

TEST_F(DownloadTest, AFileThatTheDiskHasNoRoomForIsRefusedBeforeItComes) {
  file_.size = 0;
  const HttpServer server([](const Request&, const Connection& to) {
    to.send("HTTP/1.1 200 OK\r\nContent-Length: 900000000000000000\r\n\r\nbytes");
  });
  EXPECT_THAT(error_of({server.address()}),
              AllOf(HasSubstr("needs 900.0 PB more"), HasSubstr("free some space")));
  EXPECT_THAT(files(), IsEmpty());
}

TEST_F(DownloadTest, BytesOfAnotherFileAreNotTakenForThisOne) {
  const std::string wrong(kRight.size(), 'x');
  write_file(elsewhere_ / "wrong", wrong);
  const HttpServer server(
      [&](const Request& request, const Connection& to) { to.serve(request, wrong); });
  EXPECT_THAT(error_of({server.address()}), AllOf(HasSubstr(server.address() + ": its sha256 is " +
                                                            sha256_of_file(elsewhere_ / "wrong")),
                                                  HasSubstr("wanted is " + file_.sha256)));
  EXPECT_THAT(files(), IsEmpty());
  EXPECT_EQ(server.requests().size(), 1u);
}

TEST_F(DownloadTest, GarbageFromAnEarlierRunIsFoundOutAndReplaced) {
  write_file(folder_ / "set.gz.part", std::string(1000, 'x'));
  const HttpServer server(
      [&](const Request& request, const Connection& to) { to.serve(request, kRight); });
  fetch({server.address()});
  expect_the_file();
}

TEST_F(DownloadTest, AWebPageIsNotAFile) {
  file_.size = 0;
  file_.sha256 = "";
  for (const char* page : {"<!DOCTYPE html><p>log in", "\n <HTML><head>"}) {
    const HttpServer server([&](const Request&, const Connection& to) {
      to.reply("200 OK", page, "Content-Type: text/html\r\n");
    });
    EXPECT_THAT(error_of({server.address()}), HasSubstr("a web page came instead of the file"));
  }
  EXPECT_THAT(files(), IsEmpty());
}

TEST_F(DownloadTest, AnEmptyAnswerIsNotAFile) {
  file_.size = 0;
  file_.sha256 = "";
  const HttpServer server([](const Request&, const Connection& to) { to.reply("200 OK", ""); });
  EXPECT_THAT(error_of({server.address()}), HasSubstr("no byte came"));
  EXPECT_THAT(files(), IsEmpty());
}

TEST_F(DownloadTest, WhereAFileIsNotThereTheNextAddressIsAsked) {
  const HttpServer gone([](const Request&, const Connection& to) {
    to.reply("404 Not Found", "<html>it was here</html>");
  });
  const HttpServer mirror(
      [&](const Request& request, const Connection& to) { to.serve(request, kRight); });
  EXPECT_EQ(fetch({gone.address(), mirror.address()}).address, mirror.address());
  expect_the_file();
  EXPECT_EQ(gone.requests().size(), 1u);
  EXPECT_THAT(notices_, HasSubstr(gone.address() + ": the server answers 404 (not there)"));
}

TEST_F(DownloadTest, ABusyServerIsAskedAgain) {
  std::atomic<int> count = 0;
  const HttpServer server([&](const Request& request, const Connection& to) {
    if (count++ < 2) return to.reply("503 Service Unavailable", "later");
    to.serve(request, kRight);
  });
  fetch({server.address()});
  expect_the_file();
}

TEST_F(DownloadTest, AServerThatFallsSilentIsGivenUp) {
  options_.tries = 1;
  const HttpServer server([&](const Request&, const Connection& to) {
    to.send("HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n" + kRight.substr(0, 2000));
    to.hang();
  });
  EXPECT_THAT(error_of({server.address()}), HasSubstr("too slow"));
  EXPECT_EQ(part(), kRight.substr(0, 2000));
}

TEST_F(DownloadTest, AServerThatNeverAnswersIsGivenUp) {
  options_.tries = 1;
  const HttpServer server([](const Request&, const Connection& to) { to.hang(); });
  EXPECT_THAT(error_of({server.address()}), HasSubstr("too slow"));
  EXPECT_THAT(files(), IsEmpty());
}

TEST_F(DownloadTest, AServerThatDripsIsGivenUp) {
  options_.tries = 1;
  const HttpServer server([&](const Request&, const Connection& to) {
    to.send("HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n");
    while (to.send("x")) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  });
  EXPECT_THAT(error_of({server.address()}), HasSubstr("too slow"));
}

TEST_F(DownloadTest, WithoutANetworkTheErrorSaysHowToBringTheFile) {
  // Nothing listens on port 1, and other protocols are not ours.
  EXPECT_THAT(error_of({"http://127.0.0.1:1/set.gz", "ftp://127.0.0.1/set.gz"}),
              AllOf(HasSubstr("no address gave set.gz"), HasSubstr("http://127.0.0.1:1/set.gz: "),
                    HasSubstr("ftp://127.0.0.1/set.gz: "),
                    HasSubstr("bring the file from another machine (300000 bytes) to '" +
                              (folder_ / "set.gz").string() + "'"),
                    HasSubstr("sha256 " + file_.sha256), HasSubstr("run the same command again")));
  EXPECT_THAT(files(), IsEmpty());
}

TEST_F(DownloadTest, AFileBroughtByHandNeedsNoNetwork) {
  write_file(folder_ / "set.gz", kRight);
  const Downloaded downloaded = fetch({"http://127.0.0.1:1/set.gz"});
  EXPECT_EQ(downloaded.address, "");
  EXPECT_EQ(downloaded.trust, Trust::kPublished);
  EXPECT_EQ(downloaded.size, std::ssize(kRight));
}

TEST_F(DownloadTest, AWrongFileBroughtByHandIsNamedAndLeftAlone) {
  write_file(folder_ / "set.gz", "wrong");
  EXPECT_THAT(error_of({"http://127.0.0.1:1/set.gz"}),
              AllOf(HasSubstr("set.gz' is not the published file"),
                    HasSubstr("wanted is " + file_.sha256), HasSubstr("delete it")));
  EXPECT_EQ(read_file(folder_ / "set.gz"), "wrong");
}

TEST_F(DownloadTest, WithoutAPublishedChecksumTheFirstFileIsTrustedAndRemembered) {
  file_.size = 0;
  const std::string sha256 = std::exchange(file_.sha256, "");
  const HttpServer server(
      [&](const Request& request, const Connection& to) { to.serve(request, kRight); });
  EXPECT_EQ(fetch({server.address()}).trust, Trust::kFirstUse);
  EXPECT_EQ(read_file(folder_ / "set.gz.sha256"), sha256 + "  set.gz\n");
  EXPECT_EQ(fetch({server.address()}).trust, Trust::kRecorded);
  EXPECT_EQ(server.requests().size(), 1u);
}

TEST_F(DownloadTest, AFileThatChangesAfterItsFirstFetchIsNoticed) {
  file_.size = 0;
  file_.sha256 = "";
  const HttpServer server(
      [&](const Request& request, const Connection& to) { to.serve(request, kRight); });
  fetch({server.address()});
  write_file(folder_ / "set.gz", "changed");
  EXPECT_THAT(error_of({server.address()}), HasSubstr("set.gz has changed"));

  // The same from the server: what came is kept until the user has decided.
  std::filesystem::remove(folder_ / "set.gz");
  const HttpServer later(
      [](const Request& request, const Connection& to) { to.serve(request, "a new version"); });
  EXPECT_THAT(error_of({later.address()}),
              AllOf(HasSubstr("set.gz has changed"), HasSubstr("that of the first fetch was"),
                    HasSubstr("set.gz.sha256' and run this again")));
  EXPECT_EQ(part(), "a new version");
  std::filesystem::remove(folder_ / "set.gz.sha256");
  EXPECT_EQ(fetch({later.address()}).trust, Trust::kFirstUse);
  EXPECT_EQ(read_file(folder_ / "set.gz"), "a new version");
}

TEST_F(DownloadTest, ARecordThatIsNoChecksumIsAnError) {
  file_.sha256 = "";
  write_file(folder_ / "set.gz", kRight);
  write_file(folder_ / "set.gz.sha256", "not a checksum");
  EXPECT_THAT(error_of({}), AllOf(HasSubstr("set.gz.sha256' should hold the checksum"),
                                  Not(HasSubstr("no address"))));
}

TEST_F(DownloadTest, AFolderThatCannotBeMadeIsNamed) {
  write_file(folder_ / "file", "in the way");
  options_.folder = folder_ / "file/below";
  EXPECT_THAT(error_of({"http://127.0.0.1:1/"}),
              AllOf(HasSubstr("cannot make the folder"), HasSubstr("file/below")));
}

}  // namespace
}  // namespace fmmformer::tasks::fetch
