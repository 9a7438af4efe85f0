// Measures the limit for uploads to S3: sends the parts of one object from memory with libcurl, and
// does nothing else.
//
//   raw_http_writer [--in-flight 8] [--part 16777216] FILE < URLS
//
// URLS has a signed URL for each part, and at the end the URL that completes the upload. The
// content is read from FILE into memory before the clock starts. Guarantees: a run that prints its
// JSON line got status 200 for every request, and no error in the body of the last response. Each
// thread has one connection; all share one queue. There is no checksum and no retry: the first
// failure ends the process with status 2.
#include <curl/curl.h>

#include <fstream>
#include <iostream>
#include <memory>
#include <thread>

#include "measured.h"

namespace {

using bench::Die;

struct Arguments {
  size_t in_flight = 8;
  size_t part = size_t{16} << 20;
  std::string file;
  std::vector<std::string> urls;
};

Arguments Parse(int count, char** values) {
  Arguments arguments;
  const bench::Numbers numbers = {{"--in-flight", &arguments.in_flight},
                                  {"--part", &arguments.part}};
  for (int i = 1; i < count; ++i) {
    const std::string text = values[i];
    if (!text.starts_with("--")) {
      arguments.file = text;
    } else {
      if (++i == count) Die(text + " needs a value");
      bench::SetNumber(numbers, text, values[i]);
    }
  }
  for (std::string line; std::getline(std::cin, line);) arguments.urls.push_back(line);
  if (arguments.file.empty() || arguments.urls.empty() || arguments.in_flight * arguments.part == 0)
    Die("usage: raw_http_writer [--in-flight N] [--part BYTES] FILE < URLS");
  return arguments;
}

size_t SizeOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) Die("cannot read " + path);
  return static_cast<size_t>(file.tellg());
}

size_t OnText(char* bytes, size_t, size_t count, void* user) {
  static_cast<std::string*>(user)->append(bytes, count);
  return count;
}

// One connection, which sends one request at a time.
class Connection {
 public:
  Connection() : easy_(curl_easy_init(), &curl_easy_cleanup), headers_(nullptr) {
    if (!easy_) Die("curl_easy_init failed");
    headers_ = curl_slist_append(headers_, "Expect:");  // otherwise curl waits for a round trip
    headers_ = curl_slist_append(headers_, "Content-Type:");
    curl_easy_setopt(easy_.get(), CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy_.get(), CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    curl_easy_setopt(easy_.get(), CURLOPT_CONNECTTIMEOUT, 10L);
    curl_easy_setopt(easy_.get(), CURLOPT_PROXY, "");  // loopback needs no proxy
    curl_easy_setopt(easy_.get(), CURLOPT_HTTPHEADER, headers_);
    curl_easy_setopt(easy_.get(), CURLOPT_HEADERFUNCTION, &OnText);
    curl_easy_setopt(easy_.get(), CURLOPT_HEADERDATA, &head_);
    curl_easy_setopt(easy_.get(), CURLOPT_WRITEFUNCTION, &OnText);
    curl_easy_setopt(easy_.get(), CURLOPT_WRITEDATA, &body_);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() { curl_slist_free_all(headers_); }

  // Sends a request and returns the head of its response.
  const std::string& Send(const char* method, const std::string& url, const char* data,
                          size_t size) {
    head_.clear();
    body_.clear();
    curl_easy_setopt(easy_.get(), CURLOPT_URL, url.c_str());
    curl_easy_setopt(easy_.get(), CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(size));
    curl_easy_setopt(easy_.get(), CURLOPT_POSTFIELDS, data);
    curl_easy_setopt(easy_.get(), CURLOPT_CUSTOMREQUEST, method);
    const CURLcode code = curl_easy_perform(easy_.get());
    long status = 0;
    curl_easy_getinfo(easy_.get(), CURLINFO_RESPONSE_CODE, &status);
    if (code != CURLE_OK || status != 200 || body_.find("<Error>") != std::string::npos)
      Die(std::string(method) + ": " + curl_easy_strerror(code) + ", status " +
          std::to_string(status) + ", " + body_);
    return head_;
  }

 private:
  std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> easy_;
  curl_slist* headers_;
  std::string head_, body_;
};

std::string EtagIn(const std::string& head) {
  for (const char* name : {"\r\nETag: ", "\r\nEtag: ", "\r\netag: "}) {
    const size_t at = head.find(name);
    if (at == std::string::npos) continue;
    const size_t begin = at + std::strlen(name);
    return head.substr(begin, head.find('\r', begin) - begin);
  }
  Die("an answer has no ETag");
}

void SendParts(const Arguments& arguments, bench::BlockQueue& queue,
               std::vector<std::string>& etags) {
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < arguments.in_flight; ++i) {
    threads.emplace_back([&] {
      Connection connection;
      while (const bench::Block* block = queue.Take()) {
        const size_t number = block->offset / arguments.part;
        etags[number] =
            EtagIn(connection.Send("PUT", arguments.urls[number], block->destination, block->size));
      }
    });
  }
}

std::string Completion(const std::vector<std::string>& etags) {
  std::string text = "<CompleteMultipartUpload>";
  for (size_t i = 0; i < etags.size(); ++i)
    text += "<Part><PartNumber>" + std::to_string(i + 1) + "</PartNumber><ETag>" + etags[i] +
            "</ETag></Part>";
  return text + "</CompleteMultipartUpload>";
}

}  // namespace

int main(int count, char** values) {
  curl_global_init(CURL_GLOBAL_ALL);
  const Arguments arguments = Parse(count, values);
  const size_t size = SizeOf(arguments.file);
  bench::HugeBuffer memory(size);
  std::ifstream(arguments.file, std::ios::binary)
      .read(memory.data(), static_cast<std::streamsize>(size));
  bench::BlockQueue queue;
  queue.Add(0, size, arguments.part, memory.data());
  std::vector<std::string> etags((size + arguments.part - 1) / arguments.part);
  if (etags.size() + 1 != arguments.urls.size()) Die("URLS has another number of parts");

  bench::Measurement measurement;
  SendParts(arguments, queue, etags);
  const std::string body = Completion(etags);
  Connection().Send("POST", arguments.urls.back(), body.data(), body.size());
  measurement.Stop();
  measurement.Print(size, 0);
}
