// SPDX-License-Identifier: Apache-2.0
#include "tasks/data/byte_source.h"

#include <lzma.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <system_error>

namespace fmmformer::tasks {
namespace {

constexpr size_t kPackedBytes = 1 << 16;   // read at once
constexpr size_t kMostAtOnce = 1 << 28;    // of a whole file; zlib counts in 32 bits
constexpr size_t kLineBytes = 1 << 20;     // added to the line buffer at once
constexpr size_t kLongestLine = 64 << 20;  // far above any text here: a file of other contents
constexpr uint64_t kMostMemory = 1 << 30;  // of unpacking .xz; `xz -9` needs 65 MiB

[[noreturn]] void cannot_read(const std::filesystem::path& path, int error) {
  throw DataError("cannot read '" + path.string() + "': " + std::generic_category().message(error) +
                  (error == ENOENT ? "; check the path" : ""));
}

[[noreturn]] void damaged(const std::filesystem::path& path, const std::string& how) {
  throw DataError("'" + path.string() + "' " + how + "; get the file again");
}

[[noreturn]] void cut_off(const std::filesystem::path& path) {
  damaged(path, "is cut off: its packed data ends too early");
}

}  // namespace

class ByteSource::Reader {
 public:
  virtual ~Reader() = default;
  virtual size_t read(std::span<char> room) = 0;
};

namespace {

class PlainReader : public ByteSource::Reader {
 public:
  explicit PlainReader(const std::filesystem::path& path) : path_(path) {
    if (std::filesystem::is_directory(path)) cannot_read(path, EISDIR);
    file_.reset(std::fopen(path.c_str(), "rbe"));
    if (!file_) cannot_read(path, errno);
  }

  size_t read(std::span<char> room) override {
    const size_t count = std::fread(room.data(), 1, room.size(), file_.get());
    if (count < room.size() && std::ferror(file_.get()) != 0) cannot_read(path_, errno);
    return count;
  }

  const std::filesystem::path& path() const { return path_; }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
};

class XzReader : public ByteSource::Reader {
 public:
  explicit XzReader(const std::filesystem::path& path) : packed_(path) {
    if (lzma_stream_decoder(&stream_, kMostMemory, LZMA_CONCATENATED) != LZMA_OK) {
      throw std::bad_alloc();
    }
  }
  XzReader(const XzReader&) = delete;
  XzReader& operator=(const XzReader&) = delete;
  ~XzReader() override { lzma_end(&stream_); }

  size_t read(std::span<char> room) override {
    stream_.next_out = reinterpret_cast<uint8_t*>(room.data());
    stream_.avail_out = room.size();
    while (stream_.avail_out > 0 && !ended_) {
      if (stream_.avail_in == 0 && action_ == LZMA_RUN) refill();
      const lzma_ret result = lzma_code(&stream_, action_);
      ended_ = result == LZMA_STREAM_END;
      if (result == LZMA_BUF_ERROR) cut_off(packed_.path());
      if (result == LZMA_FORMAT_ERROR) damaged(packed_.path(), "is no .xz file");
      if (result != LZMA_OK && !ended_) {
        damaged(packed_.path(),
                result == LZMA_DATA_ERROR
                    ? "is damaged: its bytes are not what was packed"
                    : "is damaged (error " + std::to_string(result) + " of liblzma)");
      }
    }
    return room.size() - stream_.avail_out;
  }

 private:
  void refill() {
    stream_.next_in = reinterpret_cast<const uint8_t*>(buffer_.data());
    stream_.avail_in = packed_.read(buffer_);
    if (stream_.avail_in < buffer_.size()) action_ = LZMA_FINISH;
  }

  PlainReader packed_;
  std::array<char, kPackedBytes> buffer_;
  lzma_stream stream_ = LZMA_STREAM_INIT;
  lzma_action action_ = LZMA_RUN;
  bool ended_ = false;
};

class GzReader : public ByteSource::Reader {
 public:
  explicit GzReader(const std::filesystem::path& path) : packed_(path) {
    constexpr int kGzipOnly = 16;
    if (inflateInit2(&stream_, MAX_WBITS + kGzipOnly) != Z_OK) throw std::bad_alloc();
  }
  GzReader(const GzReader&) = delete;
  GzReader& operator=(const GzReader&) = delete;
  ~GzReader() override { inflateEnd(&stream_); }

  size_t read(std::span<char> room) override {
    stream_.next_out = reinterpret_cast<Bytef*>(room.data());
    stream_.avail_out = static_cast<uInt>(room.size());
    while (stream_.avail_out > 0) {
      if (stream_.avail_in == 0 && !refill()) {
        if (!between_members_) cut_off(packed_.path());
        break;
      }
      const int result = inflate(&stream_, Z_NO_FLUSH);
      if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
        damaged(packed_.path(), std::string("is no .gz file, or damaged (") +
                                    (stream_.msg != nullptr ? stream_.msg : "zlib") + ")");
      }
      between_members_ = result == Z_STREAM_END;  // a .gz may be several, one after another
      if (between_members_) inflateReset(&stream_);
    }
    return room.size() - stream_.avail_out;
  }

 private:
  bool refill() {
    stream_.next_in = reinterpret_cast<Bytef*>(buffer_.data());
    stream_.avail_in = static_cast<uInt>(packed_.read(buffer_));
    return stream_.avail_in > 0;
  }

  PlainReader packed_;
  std::array<char, kPackedBytes> buffer_;
  z_stream stream_ = {};
  bool between_members_ = false;
};

std::unique_ptr<ByteSource::Reader> make_reader(const std::filesystem::path& path) {
  if (path.extension() == ".xz") return std::make_unique<XzReader>(path);
  if (path.extension() == ".gz") return std::make_unique<GzReader>(path);
  return std::make_unique<PlainReader>(path);
}

}  // namespace

ByteSource::ByteSource(std::filesystem::path path)
    : path_(std::move(path)), reader_(make_reader(path_)) {}

ByteSource::~ByteSource() = default;

size_t ByteSource::read(std::span<char> room) { return reader_->read(room); }

std::string read_whole(const std::filesystem::path& path) {
  ByteSource source(path);
  std::string bytes;
  for (;;) {
    const size_t before = bytes.size(), wanted = std::clamp(before, kPackedBytes, kMostAtOnce);
    bytes.resize(before + wanted);
    const size_t came = source.read(std::span(bytes).subspan(before));
    bytes.resize(before + came);
    if (came < wanted) return bytes;
  }
}

bool LineReader::fill() {
  buffer_.erase(0, begin_);
  begin_ = 0;
  const size_t before = buffer_.size();
  if (before > kLongestLine) {
    ++number_;
    fail("the line is longer than " + std::to_string(kLongestLine >> 20) +
         " MiB; this is no text file");
  }
  buffer_.resize(before + kLineBytes);
  const size_t came = source_.read(std::span(buffer_).subspan(before));
  buffer_.resize(before + came);
  return came > 0;
}

std::optional<std::string_view> LineReader::next() {
  size_t searched = begin_;
  size_t end = buffer_.find('\n', searched);
  while (end == std::string::npos && !ended_) {
    searched = buffer_.size() - begin_;
    ended_ = !fill();
    end = buffer_.find('\n', searched);
  }
  if (end == std::string::npos) {
    if (begin_ == buffer_.size()) return std::nullopt;
    ended_inside_a_line_ = true;
    end = buffer_.size();
  }
  std::string_view line(buffer_.data() + begin_, end - begin_);
  begin_ = std::min(end + 1, buffer_.size());
  ++number_;
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

void LineReader::fail(const std::string& what) const {
  throw DataError(source_.path().string() + ":" + std::to_string(number_) + ": " + what);
}

}  // namespace fmmformer::tasks
