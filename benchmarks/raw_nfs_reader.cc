// Measures the limit for NFS without a mount: threads read through libnfs into fresh huge pages,
// and do nothing else.
//
//   raw_nfs_reader [--threads 4] [--block 4194304] [--in-flight 8] [--touch BYTES] URL=SIZE...
//
// Guarantees: a run that prints its JSON line has read every byte of every file once. Each thread
// has its own mount, and so its own TCP connection, and keeps `in-flight` READ calls of the
// server's largest size in progress. There is no retry: the first failure ends the process with
// status 2.
#include <nfsc/libnfs.h>
#include <poll.h>

#include <cstring>
#include <memory>
#include <thread>

#include "measured.h"

namespace {

using bench::Die;

constexpr size_t kUsualCallBytes = size_t{1} << 20;  // the largest READ most servers take

struct Arguments {
  size_t threads = 4;
  size_t block = size_t{4} << 20;
  size_t in_flight = 8;
  size_t touch = 0;
  std::vector<std::pair<std::string, size_t>> files;
};

Arguments Parse(int count, char** values) {
  Arguments arguments;
  const bench::Numbers numbers = {{"--threads", &arguments.threads},
                                  {"--block", &arguments.block},
                                  {"--in-flight", &arguments.in_flight},
                                  {"--touch", &arguments.touch}};
  for (int i = 1; i < count; ++i) {
    const std::string text = values[i];
    if (text.starts_with("--")) {
      if (++i == count) Die(text + " needs a value");
      bench::SetNumber(numbers, text, values[i]);
    } else {
      const size_t mark = text.rfind('=');
      arguments.files.emplace_back(text.substr(0, mark), bench::ParseSize(text.substr(mark + 1)));
    }
  }
  if (arguments.files.empty() || arguments.threads * arguments.block * arguments.in_flight == 0) {
    Die("usage: raw_nfs_reader [--threads N] [--block BYTES] [--in-flight N] URL=SIZE...");
  }
  return arguments;
}

// One thread's mount of the export and its open files.
class Mount {
 public:
  explicit Mount(const std::vector<std::pair<std::string, size_t>>& files) {
    static std::atomic<int> mounts{0};
    const std::string name = "raw-" + std::to_string(getpid()) + "-" + std::to_string(mounts++);
    nfs4_set_client_name(context_, name.c_str());  // of one name, both lose their state
    for (const auto& [url, size] : files) {
      nfs_url* parsed = nfs_parse_url_full(context_, url.c_str());
      if (parsed == nullptr) Die(url + ": " + nfs_get_error(context_));
      if (handles_.empty() && nfs_mount(context_, parsed->server, parsed->path) != 0) {
        Die(url + ": " + nfs_get_error(context_));
      }
      nfsfh* handle = nullptr;
      if (nfs_open(context_, parsed->file, 0, &handle) != 0) {
        Die(url + ": " + nfs_get_error(context_));
      }
      handles_.push_back(handle);
      nfs_destroy_url(parsed);
    }
    const size_t most = nfs_get_readmax(context_);  // 0: not queried by NFSv4 of libnfs 4
    call_bytes_ = most == 0 ? kUsualCallBytes : std::min(most, kUsualCallBytes);
  }
  ~Mount() {
    for (nfsfh* handle : handles_) nfs_close(context_, handle);
    nfs_destroy_context(context_);
  }
  Mount(const Mount&) = delete;
  Mount& operator=(const Mount&) = delete;

  void Run(bench::BlockQueue& queue, size_t in_flight) {
    queue_ = &queue;
    while (calls_ < in_flight && StartCall()) {
    }
    while (calls_ > 0) {
      pollfd waiting{nfs_get_fd(context_), static_cast<short>(nfs_which_events(context_)), 0};
      if (poll(&waiting, 1, 1000) < 0 || nfs_service(context_, waiting.revents) != 0) {
        Die(std::string("nfs: ") + nfs_get_error(context_));
      }
    }
  }

 private:
  struct Call {
    Mount* mount;
    char* destination;
    size_t size;
  };

  // Returns false when every byte was requested.
  bool StartCall() {
    if (block_ == nullptr || position_ == block_->size) {
      block_ = queue_->Take();
      position_ = 0;
      if (block_ == nullptr) return false;
    }
    const size_t size = std::min(call_bytes_, block_->size - position_);
    auto call = std::make_unique<Call>(Call{this, block_->destination + position_, size});
    if (nfs_pread_async(context_, handles_[block_->object], block_->offset + position_, size,
                        &Mount::OnRead, call.get()) != 0) {
      Die(std::string("nfs_pread_async: ") + nfs_get_error(context_));
    }
    (void)call.release();  // OnRead owns it now
    position_ += size;
    ++calls_;
    return true;
  }

  static void OnRead(int status, nfs_context*, void* data, void* user) {
    const std::unique_ptr<Call> call(static_cast<Call*>(user));
    if (status < 0) Die("read: " + std::string(static_cast<const char*>(data)));
    if (static_cast<size_t>(status) != call->size) Die("short read");
    std::memcpy(call->destination, data, call->size);
    --call->mount->calls_;
    call->mount->StartCall();
  }

  nfs_context* context_ = nfs_init_context();
  std::vector<nfsfh*> handles_;
  size_t call_bytes_ = 0;
  bench::BlockQueue* queue_ = nullptr;
  const bench::Block* block_ = nullptr;
  size_t position_ = 0;  // in block_
  size_t calls_ = 0;
};

}  // namespace

int main(int count, char** values) {
  const Arguments arguments = Parse(count, values);
  bench::TouchAndFree(arguments.touch);
  bench::Measurement measurement;
  std::vector<bench::HugeBuffer> memory;
  bench::BlockQueue queue;
  for (size_t i = 0; i < arguments.files.size(); ++i) {
    const size_t size = arguments.files[i].second;
    memory.emplace_back(size);
    queue.Add(i, size, arguments.block, memory.back().data());
  }
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < arguments.threads; ++i) {
      threads.emplace_back([&] { Mount(arguments.files).Run(queue, arguments.in_flight); });
    }
  }
  measurement.Stop();

  size_t bytes = 0;
  uint64_t digest = 0;
  for (size_t i = 0; i < memory.size(); ++i) {
    const size_t size = arguments.files[i].second;
    bytes += size;
    digest += (i + 1) * bench::Digest({memory[i].data(), size});
  }
  measurement.Print(bytes, digest);
}
