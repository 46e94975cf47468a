// SPDX-License-Identifier: Apache-2.0
// One request for a file, or for the rest of one. What to do about how it ended is download.cpp's.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace fmmformer::tasks::fetch {

struct HttpRequest {
  std::string address;  // http or https; redirects are followed, from https to https alone
  int64_t from = 0;     // ask for the bytes from here on; servers may send the whole all the same
  std::chrono::seconds connect_limit{20};
  std::chrono::seconds stall_limit{30};  // give up when so long less than 1 kB a second has come
};

/// What a server says before it sends bytes.
struct ResponseHead {
  int64_t first = 0;   // where in the file they begin
  int64_t total = -1;  // size of the whole file; -1: it does not say
};

/// Takes what comes. What either function throws ends the request and comes out of http_get().
class BodySink {
 public:
  virtual ~BodySink() = default;
  virtual void begin(const ResponseHead& head) = 0;
  virtual void take(std::span<const std::byte> bytes) = 0;
};

enum class HttpEnd {
  kWhole,        // all that was asked for has come
  kNothingLeft,  // the file has no bytes after `from`
  kBroken,       // broke off, hung, or the server is busy: worth another try
  kRefused,      // unreachable, not there or not allowed: another address must do
};

struct HttpResult {
  HttpEnd end = HttpEnd::kWhole;
  std::string what;    // what went wrong, for the end of an error's text
  int64_t total = -1;  // of kNothingLeft: the file's size, where the server says
};

HttpResult http_get(const HttpRequest& request, BodySink& sink);

}  // namespace fmmformer::tasks::fetch
