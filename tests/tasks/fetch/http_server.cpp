// SPDX-License-Identifier: Apache-2.0
#include "tasks/fetch/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <stdexcept>

namespace fmmformer::tasks::fetch {
namespace {

Request parsed(const std::string& head) {
  Request request;
  const size_t begin = head.find(' ') + 1;
  request.path = head.substr(begin, head.find(' ', begin) - begin);
  if (const size_t range = head.find("Range: bytes="); range != std::string::npos) {
    request.from = std::stoll(head.substr(range + 13));
  }
  return request;
}

std::string read_head(int socket) {
  std::string head;
  for (char byte; head.find("\r\n\r\n") == std::string::npos;) {
    if (recv(socket, &byte, 1, 0) <= 0) break;
    head += byte;
  }
  return head;
}

}  // namespace

bool Connection::send(std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

void Connection::reply(const std::string& status, std::string_view body,
                       const std::string& headers) const {
  send("HTTP/1.1 " + status + "\r\nConnection: close\r\nContent-Length: " +
       std::to_string(body.size()) + "\r\n" + headers + "\r\n");
  send(body);
}

void Connection::serve(const Request& request, std::string_view file) const {
  const std::string total = std::to_string(file.size());
  if (request.from < 0) return reply("200 OK", file);
  const auto from = static_cast<size_t>(request.from);
  if (from >= file.size()) {
    return reply("416 Range Not Satisfiable", "", "Content-Range: bytes */" + total + "\r\n");
  }
  reply("206 Partial Content", file.substr(from),
        "Content-Range: bytes " + std::to_string(from) + "-" + std::to_string(file.size() - 1) +
            "/" + total + "\r\n");
}

void Connection::hang() const {
  for (char byte; recv(socket_, &byte, 1, 0) > 0;) {
  }
}

HttpServer::HttpServer(Handler handler) : handler_(std::move(handler)) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);  // port 0: any that is free
  socklen_t size = sizeof address;
  auto* const plain = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener_, plain, size) != 0 || listen(listener_, 16) != 0 ||
      getsockname(listener_, plain, &size) != 0) {
    throw std::runtime_error("no port for the test's server");
  }
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { accept_clients(); });
}

HttpServer::~HttpServer() {
  shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  close(listener_);
  for (const int socket : sockets_) shutdown(socket, SHUT_RDWR);
  for (std::thread& client : clients_) client.join();
  for (const int socket : sockets_) close(socket);
}

std::string HttpServer::address(const std::string& path) const {
  return "http://127.0.0.1:" + std::to_string(port_) + path;
}

std::vector<Request> HttpServer::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

void HttpServer::accept_clients() {
  for (;;) {
    const int socket = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) return;
    sockets_.push_back(socket);
    clients_.emplace_back([this, socket] { talk_to(socket); });
  }
}

void HttpServer::talk_to(int socket) {
  const std::string head = read_head(socket);
  if (head.empty()) return;
  const Request request = parsed(head);
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(request);
  }
  handler_(request, Connection(socket));
  shutdown(socket, SHUT_RDWR);
}

}  // namespace fmmformer::tasks::fetch
