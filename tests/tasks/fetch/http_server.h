// SPDX-License-Identifier: Apache-2.0
// A web server on this machine for tests: it sends whatever bytes a test tells it to, right or
// wrong.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace fmmformer::tasks::fetch {

struct Request {
  std::string path;   // "/file.gz"
  int64_t from = -1;  // of "Range: bytes=FROM-"; -1: the whole file is asked for
};

/// What a test may do to one client.
class Connection {
 public:
  explicit Connection(int socket) : socket_(socket) {}

  /// Sends raw bytes; the connection ends when the test's function returns. False: nobody listens
  /// any more.
  bool send(std::string_view bytes) const;
  /// Status line, Content-Length, other headers, body.
  void reply(const std::string& status, std::string_view body,
             const std::string& headers = "") const;
  /// The file as a well-behaved server sends it, ranges included.
  void serve(const Request& request, std::string_view file) const;
  /// Sends nothing more until the client has gone.
  void hang() const;

 private:
  int socket_;
};

class HttpServer {
 public:
  using Handler = std::function<void(const Request&, const Connection&)>;

  /// Answers each request, on a thread of its own, by calling `handler`.
  explicit HttpServer(Handler handler);
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer();

  std::string address(const std::string& path = "/file") const;
  std::vector<Request> requests() const;

 private:
  void accept_clients();
  void talk_to(int socket);

  const Handler handler_;
  int listener_ = -1;
  int port_ = 0;
  mutable std::mutex mutex_;
  std::vector<Request> requests_;
  std::vector<int> sockets_;
  std::vector<std::thread> clients_;
  std::thread acceptor_;
};

}  // namespace fmmformer::tasks::fetch
