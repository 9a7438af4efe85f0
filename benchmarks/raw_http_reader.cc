// Measures the limit for HTTP: ranged GETs through libcurl's multi interface into fresh huge pages,
// and nothing else.
//
//   raw_http_reader [--reactors 2] [--in-flight 8] [--block 8388608] [--receive-buffer 16384]
//                   [--socket-buffer 0] [--cacert FILE] [--header LINE]... [--touch BYTES]
//                   URL[=SIZE]...
//
// Guarantees: a run that prints its JSON line got status 206 and exactly the requested bytes in
// every response. Each reactor is one thread with its own CURLM and connections; all share one
// queue. A URL without =SIZE needs one HEAD, outside the measured section. There is no retry: the
// first failure ends the process with status 2.
#include <curl/curl.h>
#include <sys/socket.h>

#include <memory>
#include <thread>

#include "measured.h"

namespace {

using bench::Die;

struct Object {
  std::string url;
  size_t size;
};

struct Arguments {
  size_t reactors = 2;
  size_t in_flight = 8;
  size_t block = size_t{8} << 20;
  size_t receive_buffer = size_t{16}
                          << 10;  // larger ones leave the first-level cache and were slower
  size_t socket_buffer = 0;       // SO_RCVBUF; 0 leaves it to the kernel's autotuning
  size_t touch = 0;
  std::string ca_file;
  curl_slist* headers = nullptr;  // of every request; kept until the process ends
  std::vector<std::string> urls;
};

Arguments Parse(int count, char** values) {
  Arguments arguments;
  const bench::Numbers numbers = {{"--reactors", &arguments.reactors},
                                  {"--in-flight", &arguments.in_flight},
                                  {"--block", &arguments.block},
                                  {"--receive-buffer", &arguments.receive_buffer},
                                  {"--socket-buffer", &arguments.socket_buffer},
                                  {"--touch", &arguments.touch}};
  for (int i = 1; i < count; ++i) {
    const std::string text = values[i];
    if (!text.starts_with("--")) {
      arguments.urls.push_back(text);
      continue;
    }
    if (++i == count) Die(text + " needs a value");
    if (text == "--cacert") {
      arguments.ca_file = values[i];
    } else if (text == "--header") {
      arguments.headers = curl_slist_append(arguments.headers, values[i]);
    } else {
      bench::SetNumber(numbers, text, values[i]);
    }
  }
  if (arguments.urls.empty() || arguments.reactors * arguments.in_flight * arguments.block == 0) {
    Die("usage: raw_http_reader [--reactors N] [--in-flight N] [--block BYTES] URL[=SIZE]...");
  }
  return arguments;
}

using Easy = std::unique_ptr<CURL, decltype(&curl_easy_cleanup)>;

int SetSocketBuffer(void* user, curl_socket_t descriptor, curlsocktype) {
  const auto bytes = static_cast<int>(*static_cast<const size_t*>(user));
  return setsockopt(descriptor, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes) == 0
             ? CURL_SOCKOPT_OK
             : CURL_SOCKOPT_ERROR;
}

Easy NewEasy(const Arguments& arguments) {
  Easy easy(curl_easy_init(), &curl_easy_cleanup);
  if (!easy) Die("curl_easy_init failed");
  curl_easy_setopt(easy.get(), CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy.get(), CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl_easy_setopt(easy.get(), CURLOPT_BUFFERSIZE, static_cast<long>(arguments.receive_buffer));
  curl_easy_setopt(easy.get(), CURLOPT_CONNECTTIMEOUT, 10L);
  curl_easy_setopt(easy.get(), CURLOPT_PROXY,
                   "");  // loopback needs no proxy, whatever the environment says
  if (arguments.socket_buffer > 0) {
    curl_easy_setopt(easy.get(), CURLOPT_SOCKOPTFUNCTION, &SetSocketBuffer);
    curl_easy_setopt(easy.get(), CURLOPT_SOCKOPTDATA, &arguments.socket_buffer);
  }
  if (arguments.headers != nullptr) {
    curl_easy_setopt(easy.get(), CURLOPT_HTTPHEADER, arguments.headers);
  }
  if (!arguments.ca_file.empty())
    curl_easy_setopt(easy.get(), CURLOPT_CAINFO, arguments.ca_file.c_str());
  return easy;
}

size_t SizeByHead(const std::string& url, const Arguments& arguments) {
  const Easy easy = NewEasy(arguments);
  curl_easy_setopt(easy.get(), CURLOPT_URL, url.c_str());
  curl_easy_setopt(easy.get(), CURLOPT_NOBODY, 1L);
  const CURLcode code = curl_easy_perform(easy.get());
  long status = 0;
  curl_off_t size = -1;
  curl_easy_getinfo(easy.get(), CURLINFO_RESPONSE_CODE, &status);
  curl_easy_getinfo(easy.get(), CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &size);
  if (code != CURLE_OK || status != 200 || size < 0) {
    Die("HEAD " + url + ": " + curl_easy_strerror(code) + ", status " + std::to_string(status));
  }
  return static_cast<size_t>(size);
}

Object ParseObject(const std::string& text, const Arguments& arguments) {
  const size_t mark = text.rfind('=');
  if (mark == std::string::npos) return {text, SizeByHead(text, arguments)};
  return {text.substr(0, mark), bench::ParseSize(text.substr(mark + 1))};
}

// Sends one GET at a time on one handle; libcurl keeps the connection for the next GET.
struct Transfer {
  Easy easy;
  const bench::Block* block = nullptr;
  size_t received = 0;
};

size_t OnBody(char* bytes, size_t, size_t count, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  if (transfer.received + count > transfer.block->size)
    return 0;  // libcurl then reports a write error
  std::memcpy(transfer.block->destination + transfer.received, bytes, count);
  transfer.received += count;
  return count;
}

// One thread keeps `in_flight` GETs in progress until the shared queue is empty. main owns and
// joins the thread.
class Reactor {
 public:
  Reactor(const std::vector<Object>& objects, bench::BlockQueue& queue, const Arguments& arguments)
      : objects_(objects), queue_(queue), multi_(curl_multi_init(), &curl_multi_cleanup) {
    curl_multi_setopt(multi_.get(), CURLMOPT_MAXCONNECTS, static_cast<long>(arguments.in_flight));
    for (size_t i = 0; i < arguments.in_flight; ++i) {
      transfers_.push_back(std::make_unique<Transfer>(NewEasy(arguments)));
      CURL* easy = transfers_.back()->easy.get();
      curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &OnBody);
      curl_easy_setopt(easy, CURLOPT_WRITEDATA, transfers_.back().get());
      curl_easy_setopt(easy, CURLOPT_PRIVATE, transfers_.back().get());
    }
  }

  void Run() {
    for (auto& transfer : transfers_) Start(*transfer);
    while (active_ > 0) {
      int running = 0;
      if (curl_multi_perform(multi_.get(), &running) != CURLM_OK) Die("curl_multi_perform failed");
      Finish();
      if (active_ > 0) curl_multi_poll(multi_.get(), nullptr, 0, 1000, nullptr);
    }
  }

 private:
  void Start(Transfer& transfer) {
    transfer.block = queue_.Take();
    transfer.received = 0;
    if (transfer.block == nullptr) return;
    const bench::Block& block = *transfer.block;
    const std::string range =
        std::to_string(block.offset) + "-" + std::to_string(block.offset + block.size - 1);
    curl_easy_setopt(transfer.easy.get(), CURLOPT_URL, objects_[block.object].url.c_str());
    curl_easy_setopt(transfer.easy.get(), CURLOPT_RANGE, range.c_str());
    curl_multi_add_handle(multi_.get(), transfer.easy.get());
    ++active_;
  }

  void Finish() {
    int left = 0;
    while (const CURLMsg* message = curl_multi_info_read(multi_.get(), &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      const CURLcode code = message->data.result;
      Transfer* transfer = nullptr;
      curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &transfer);
      Check(*transfer, code);
      curl_multi_remove_handle(multi_.get(), transfer->easy.get());
      --active_;
      Start(*transfer);
    }
  }

  void Check(const Transfer& transfer, CURLcode code) const {
    long status = 0;
    curl_easy_getinfo(transfer.easy.get(), CURLINFO_RESPONSE_CODE, &status);
    if (code == CURLE_OK && status == 206 && transfer.received == transfer.block->size) return;
    Die(objects_[transfer.block->object].url + " at " + std::to_string(transfer.block->offset) +
        ": " + curl_easy_strerror(code) + ", status " + std::to_string(status) + ", " +
        std::to_string(transfer.received) + " of " + std::to_string(transfer.block->size) +
        " bytes");
  }

  const std::vector<Object>& objects_;
  bench::BlockQueue& queue_;
  std::vector<std::unique_ptr<Transfer>>
      transfers_;  // destroyed before the multi handle from which they are removed
  std::unique_ptr<CURLM, decltype(&curl_multi_cleanup)> multi_;
  size_t active_ = 0;
};

void ReadAll(const std::vector<Object>& objects, bench::BlockQueue& queue,
             const Arguments& arguments) {
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < arguments.reactors; ++i) {
    threads.emplace_back([&] { Reactor(objects, queue, arguments).Run(); });
  }
}

}  // namespace

int main(int count, char** values) {
  curl_global_init(CURL_GLOBAL_ALL);
  const Arguments arguments = Parse(count, values);
  std::vector<Object> objects;
  for (const std::string& text : arguments.urls) objects.push_back(ParseObject(text, arguments));
  bench::TouchAndFree(arguments.touch);
  bench::Measurement measurement;

  std::vector<bench::HugeBuffer> memory;
  bench::BlockQueue queue;
  for (size_t i = 0; i < objects.size(); ++i) {
    memory.emplace_back(objects[i].size);
    queue.Add(i, objects[i].size, arguments.block, memory.back().data());
  }
  ReadAll(objects, queue, arguments);
  measurement.Stop();

  size_t bytes = 0;
  uint64_t digest = 0;
  for (size_t i = 0; i < objects.size(); ++i) {
    bytes += objects[i].size;
    digest += (i + 1) * bench::Digest({memory[i].data(), objects[i].size});
  }
  measurement.Print(bytes, digest);
}
