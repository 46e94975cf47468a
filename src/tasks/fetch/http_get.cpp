// SPDX-License-Identifier: Apache-2.0
#include "tasks/fetch/http_get.h"

#include <curl/curl.h>
#include <strings.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <stdexcept>

namespace fmmformer::tasks::fetch {
namespace {

constexpr long kSlowest = 1000;        // bytes a second
constexpr long kReadBuffer = 1 << 19;  // the most that libcurl takes: fewer, larger writes
constexpr long kMostRedirects = 10;

struct FreeHandle {
  void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
};
using Handle = std::unique_ptr<CURL, FreeHandle>;

struct ContentRange {
  int64_t first = -1;
  int64_t total = -1;
};

/// "bytes 100-199/200", "bytes 100-199/*" or "bytes */200".
ContentRange parsed_range(const std::string& value) {
  ContentRange range;
  long long first = -1, last = -1, total = -1;
  if (std::sscanf(value.c_str(), " bytes %lld-%lld/%lld", &first, &last, &total) >= 2) {
    range = {first, total};
  } else if (std::sscanf(value.c_str(), " bytes */%lld", &total) == 1) {
    range = {-1, total};
  }
  return range;
}

/// One request under way. libcurl is C: what the sink throws must not pass through it, so it waits
/// here.
class Transfer {
 public:
  Transfer(const HttpRequest& request, BodySink& sink)
      : request_(request), sink_(sink), handle_(curl_easy_init()) {
    if (handle_ == nullptr) throw std::runtime_error("libcurl cannot start on this machine");
    set_options();
  }

  HttpResult run() {
    const CURLcode code = curl_easy_perform(handle_.get());
    if (thrown_) std::rethrow_exception(thrown_);
    if (code == CURLE_OK && is_file() && !begun_) begin();  // a file of no bytes
    return result(code);
  }

 private:
  template <typename Value>
  void set(CURLoption option, Value value) {
    const CURLcode code = curl_easy_setopt(handle_.get(), option, value);
    if (code != CURLE_OK) {
      throw std::runtime_error("'" + request_.address + "': " + curl_easy_strerror(code));
    }
  }

  void set_options() {
    // No downgrade on the way: what an https address redirects to must be https.
    const bool secure = strncasecmp(request_.address.c_str(), "https:", 6) == 0;
    agent_ = std::string("fmmformer libcurl/") + curl_version_info(CURLVERSION_NOW)->version;
    range_ = std::to_string(request_.from) + "-";
    set(CURLOPT_URL, request_.address.c_str());
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_REDIR_PROTOCOLS_STR, secure ? "https" : "http,https");
    set(CURLOPT_FOLLOWLOCATION, 1L);
    set(CURLOPT_MAXREDIRS, kMostRedirects);
    set(CURLOPT_FAILONERROR, 1L);  // the page that explains a 404 is not the file
    set(CURLOPT_USERAGENT, agent_.c_str());
    // A plain range: with libcurl's own way of resuming, a server that sends the whole file instead
    // is an error.
    if (request_.from > 0) set(CURLOPT_RANGE, range_.c_str());
    set(CURLOPT_CONNECTTIMEOUT, static_cast<long>(request_.connect_limit.count()));
    set(CURLOPT_LOW_SPEED_LIMIT, kSlowest);
    set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(request_.stall_limit.count()));
    set(CURLOPT_BUFFERSIZE, kReadBuffer);
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_ERRORBUFFER, error_);
    set(CURLOPT_HEADERFUNCTION, &Transfer::on_header);
    set(CURLOPT_HEADERDATA, this);
    set(CURLOPT_WRITEFUNCTION, &Transfer::on_body);
    set(CURLOPT_WRITEDATA, this);
  }

  template <typename Value>
  Value info(CURLINFO what) const {
    Value value = 0;
    curl_easy_getinfo(handle_.get(), what, &value);
    return value;
  }
  long status() const { return info<long>(CURLINFO_RESPONSE_CODE); }
  bool is_file() const { return status() == 200 || status() == 206; }

  static size_t on_header(char* text, size_t, size_t length, void* self) {
    auto* transfer = static_cast<Transfer*>(self);
    const std::string line(text, length);
    static constexpr char kName[] = "content-range:";
    constexpr size_t kLength = sizeof kName - 1;
    if (line.starts_with("HTTP/")) transfer->content_range_ = {};  // of a redirect's target
    if (strncasecmp(line.c_str(), kName, kLength) == 0) {
      transfer->content_range_ = parsed_range(line.substr(kLength));
    }
    return length;
  }

  static size_t on_body(char* bytes, size_t, size_t length, void* self) {
    auto* transfer = static_cast<Transfer*>(self);
    if (!transfer->is_file()) return length;  // of a redirect to nowhere, say
    try {
      if (!transfer->begun_) transfer->begin();
      transfer->sink_.take({reinterpret_cast<const std::byte*>(bytes), length});
      return length;
    } catch (...) {
      transfer->thrown_ = std::current_exception();
      return 0;  // has libcurl give up
    }
  }

  void begin() {
    begun_ = true;
    ResponseHead head;
    if (status() == 206) {
      head = {content_range_.first, content_range_.total};
    } else {
      head.total = info<curl_off_t>(CURLINFO_CONTENT_LENGTH_DOWNLOAD_T);
    }
    sink_.begin(head);
  }

  HttpResult result(CURLcode code) const {
    if (code == CURLE_OK && is_file()) return {};
    if (code == CURLE_OK || code == CURLE_HTTP_RETURNED_ERROR) return refused();
    const std::string text = error_[0] != '\0' ? error_ : curl_easy_strerror(code);
    return {was_underway(code) ? HttpEnd::kBroken : HttpEnd::kRefused, text};
  }

  HttpResult refused() const {
    const std::string text = "the server answers " + std::to_string(status());
    switch (status()) {
      case 416:
        return {HttpEnd::kNothingLeft, text, content_range_.total};
      case 408:
      case 429:
      case 500:
      case 502:
      case 503:
      case 504:
        return {HttpEnd::kBroken, text + " (busy)"};
      case 401:
      case 403:
        return {HttpEnd::kRefused, text + " (not allowed)"};
      case 404:
      case 410:
        return {HttpEnd::kRefused, text + " (not there)"};
      default:
        return {HttpEnd::kRefused, text};
    }
  }

  bool was_underway(CURLcode code) const {
    switch (code) {
      case CURLE_OPERATION_TIMEDOUT:
        return info<curl_off_t>(CURLINFO_CONNECT_TIME_T) > 0;
      case CURLE_PARTIAL_FILE:
      case CURLE_RECV_ERROR:
      case CURLE_SEND_ERROR:
      case CURLE_GOT_NOTHING:
      case CURLE_HTTP2:
      case CURLE_HTTP2_STREAM:
        return true;
      default:
        return false;
    }
  }

  const HttpRequest& request_;
  BodySink& sink_;
  Handle handle_;
  std::string agent_, range_;
  char error_[CURL_ERROR_SIZE] = {};
  ContentRange content_range_;
  bool begun_ = false;
  std::exception_ptr thrown_;
};

}  // namespace

HttpResult http_get(const HttpRequest& request, BodySink& sink) {
  static const CURLcode started = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (started != CURLE_OK) throw std::runtime_error("libcurl cannot start on this machine");
  return Transfer(request, sink).run();
}

}  // namespace fmmformer::tasks::fetch
