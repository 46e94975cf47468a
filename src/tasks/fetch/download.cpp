// SPDX-License-Identifier: Apache-2.0
#include "tasks/fetch/download.h"

#include <strings.h>

#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "fmmformer/core/way_out.h"
#include "tasks/fetch/byte_text.h"
#include "tasks/fetch/http_get.h"
#include "tasks/fetch/part_file.h"

namespace fmmformer::tasks::fetch {
namespace {

namespace fs = std::filesystem;

// A try that brought this much counts as progress: a line that breaks every few minutes must not
// use up the tries of a file that takes hours.
constexpr int64_t kWorthwhile = 1 << 20;

/// Something is wrong with what an address offers; another one may do.
class AddressError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

std::string size_text(int64_t bytes) {
  return bytes < 1000 ? byte_text(bytes) : std::to_string(bytes) + " bytes";
}

/// Servers answer with a page of their own, and status 200, where a log-in or a notice is in the
/// way. None of our files is a page.
bool is_web_page(std::span<const std::byte> bytes) {
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const size_t start = text.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  if (start == std::string_view::npos) return false;
  text.remove_prefix(start);
  const auto begins_with = [&](std::string_view tag) {
    return text.size() >= tag.size() && strncasecmp(text.data(), tag.data(), tag.size()) == 0;
  };
  return begins_with("<!doctype html") || begins_with("<html");
}

/// Appends what comes to the file, as long as it can be what was asked for.
class PartSink : public BodySink {
 public:
  PartSink(const RemoteFile& file, PartFile& part, const Listener& listener)
      : file_(file), part_(part), listener_(listener) {}

  void begin(const ResponseHead& head) override {
    if (head.first != 0 && head.first != part_.size()) {
      throw AddressError("asked for the bytes from " + std::to_string(part_.size()) +
                         " on, the server sends others");
    }
    if (head.total >= 0 && file_.size > 0 && head.total != file_.size) {
      throw AddressError("the server offers " + size_text(head.total) + ", the file has " +
                         size_text(file_.size));
    }
    if (head.first == 0 && part_.size() > 0) part_.start_over();  // it ignores ranges
    total_ = head.total >= 0 ? head.total : file_.size;
    part_.require_room_for(total_ - part_.size());
  }

  void take(std::span<const std::byte> bytes) override {
    if (part_.size() == 0 && is_web_page(bytes)) {
      throw AddressError("a web page came instead of the file");
    }
    if (file_.size > 0 && part_.size() + std::ssize(bytes) > file_.size) {
      part_.start_over();
      throw AddressError("more came than the " + size_text(file_.size) + " of the file");
    }
    part_.append(bytes);
    listener_.progress({Phase::kDownload, part_.size(), total_});
  }

 private:
  const RemoteFile& file_;
  PartFile& part_;
  const Listener& listener_;
  int64_t total_ = 0;
};

class Download {
 public:
  Download(const RemoteFile& file, const DownloadOptions& options, const Listener& listener)
      : file_(file),
        options_(options),
        listener_(listener),
        path_(options.folder / file.name),
        part_path_(path_.string() + ".part") {}

  Downloaded run() {
    make_folder();
    if (fs::exists(path_)) return existing();
    PartFile part(part_path_, [this] {
      listener_.notice("another process is fetching " + file_.name + "; waiting for it");
    });
    if (fs::exists(path_)) return existing();  // the other process has brought it
    for (const std::string& address : file_.addresses) {
      if (from_address(address, part)) {
        part.publish(path_);
        record_checksum(path_, result_.sha256);
        return result_;
      }
      if (address != file_.addresses.back()) {
        listener_.notice(address + ": " + problems_.back().second + "; trying another address");
      }
    }
    throw std::runtime_error(failure_text(part.size()));
  }

 private:
  enum class Next { kDone, kTryAgain, kOtherAddress };

  void make_folder() const {
    std::error_code error;
    fs::create_directories(options_.folder, error);
    if (error) {
      throw std::runtime_error("cannot make the folder '" + options_.folder.string() +
                               "': " + error.message() + std::string(way_out(error.value())));
    }
  }

  /// A file of the final name: fetched before, or brought by hand.
  Downloaded existing() {
    const Checksum known = known_checksum(path_, file_.sha256);
    const std::string sha256 = measured_checksum(path_, listener_);
    if (!known.sha256.empty() && known.sha256 != sha256) throw std::runtime_error(changed(sha256));
    record_checksum(path_, sha256);
    return {path_, static_cast<int64_t>(fs::file_size(path_)), sha256, known.trust, ""};
  }

  std::string changed(const std::string& sha256) const {
    const Checksum known = known_checksum(path_, file_.sha256);
    if (known.trust == Trust::kPublished) {
      return "'" + path_.string() + "' is not the published file: its sha256 is " + sha256 +
             ", wanted is " + known.sha256 + "; delete it and run this again";
    }
    return file_.name + " has changed: its sha256 is " + sha256 + ", that of the first fetch was " +
           known.sha256 + "; if the new one is right, delete '" + record_of(path_).string() +
           "' and run this again, else delete '" +
           (fs::exists(path_) ? path_ : part_path_).string() + "'";
  }

  /// All the tries of one address. True: the file is there and verified.
  bool from_address(const std::string& address, PartFile& part) {
    foreign_ = part.size() > 0;
    for (int fruitless = 0;;) {
      const int64_t before = part.size();
      const Next next = attempt(address, part);
      if (next == Next::kDone) return true;
      const bool last = next == Next::kOtherAddress;
      fruitless = part.size() - before >= kWorthwhile ? 1 : fruitless + 1;
      if (last || fruitless >= options_.tries) return false;
      const auto pause = options_.pause * (1 << std::min(fruitless - 1, 6));
      listener_.notice(address + ": " + problems_.back().second + "; trying again");
      std::this_thread::sleep_for(pause);
    }
  }

  Next attempt(const std::string& address, PartFile& part) {
    if (file_.size > 0 && part.size() > file_.size) part.start_over();
    if (file_.size > 0 && part.size() == file_.size) return finish(address, part);
    PartSink sink(file_, part, listener_);
    HttpResult result;
    try {
      result = http_get({.address = address,
                         .from = part.size(),
                         .connect_limit = options_.connect_limit,
                         .stall_limit = options_.stall_limit},
                        sink);
    } catch (const AddressError& error) {
      return problem(address, error.what(), Next::kOtherAddress);
    }
    switch (result.end) {
      case HttpEnd::kWhole:
        return finish(address, part);
      case HttpEnd::kNothingLeft:
        if (part.size() == 0) return problem(address, result.what, Next::kOtherAddress);
        if (result.total == part.size() || (result.total < 0 && !file_.sha256.empty())) {
          return finish(address, part);
        }
        part.start_over();
        return problem(address, "what came before is longer than the file", Next::kTryAgain);
      case HttpEnd::kBroken:
        return problem(address, result.what, Next::kTryAgain);
      case HttpEnd::kRefused:
        break;
    }
    return problem(address, result.what, Next::kOtherAddress);
  }

  /// The server says that this is all: is it the file?
  Next finish(const std::string& address, PartFile& part) {
    if (part.size() == 0) return problem(address, "no byte came", Next::kOtherAddress);
    if (file_.size > 0 && part.size() < file_.size) {
      return problem(address,
                     "broke off after " + size_text(part.size()) + " of " + size_text(file_.size),
                     Next::kTryAgain);
    }
    const Checksum known = known_checksum(path_, file_.sha256);
    const std::string sha256 = measured_checksum(part.path(), listener_);
    if (known.sha256.empty() || known.sha256 == sha256) {
      result_ = {path_, part.size(), sha256, known.trust, address};
      return Next::kDone;
    }
    // Kept: the user may know that the file has a new version.
    if (known.trust == Trust::kRecorded) throw std::runtime_error(changed(sha256));
    part.start_over();
    // The fault may lie in what was there before, which another address or version gave.
    const bool again = std::exchange(foreign_, false);
    return problem(address, "its sha256 is " + sha256 + ", wanted is " + known.sha256,
                   again ? Next::kTryAgain : Next::kOtherAddress);
  }

  Next problem(const std::string& address, const std::string& what, Next next) {
    if (problems_.empty() || problems_.back().first != address) problems_.emplace_back(address, "");
    problems_.back().second = what;
    return next;
  }

  std::string failure_text(int64_t kept) const {
    std::string text = "no address gave " + file_.name + ":";
    for (const auto& [address, what] : problems_) {
      text.append("\n  ").append(address).append(": ").append(what);
    }
    if (kept > 0) {
      text += "\nWhat came so far (" + byte_text(kept) + ") is kept in '" + part_path_.string() +
              "'; the same command goes on from there.";
    }
    text += "\nWithout a network: bring the file from another machine";
    if (file_.size > 0) text += " (" + size_text(file_.size) + ")";
    text += " to '" + path_.string() + "'";
    text += file_.sha256.empty() ? " (no checksum of it is published)"
                                 : "\n  (sha256 " + file_.sha256 + ")";
    return text + " and run the same command again.";
  }

  const RemoteFile& file_;
  const DownloadOptions& options_;
  const Listener& listener_;
  const fs::path path_, part_path_;
  bool foreign_ = false;  // the part file holds bytes from before the present address
  std::vector<std::pair<std::string, std::string>> problems_;  // the last one of each address
  Downloaded result_;
};

}  // namespace

Downloaded download(const RemoteFile& file, const DownloadOptions& options,
                    const Listener& listener) {
  return Download(file, options, listener).run();
}

}  // namespace fmmformer::tasks::fetch
