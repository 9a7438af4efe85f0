// Session, for core/engine/session.py only.
#include "session/session.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "http/kept_connections.h"
#include "python/foreign_text.h"
#include "python/gil.h"
#include "python/interruptible.h"
#include "python/registers.h"
#include "session/python_block.h"

namespace py = pybind11;

namespace streamer {
namespace {

// Splits a flat array('q') into rows.
template <std::size_t Columns>
std::vector<std::array<std::uint64_t, Columns>> rows_of(const py::buffer& table) {
  const py::buffer_info info = table.request();
  if (info.itemsize != 8 || info.ndim != 1 || info.size % static_cast<py::ssize_t>(Columns) != 0)
    throw std::invalid_argument("a plan is a flat array of 64-bit numbers, whole rows only");
  std::vector<std::array<std::uint64_t, Columns>> rows(static_cast<std::size_t>(info.size) /
                                                       Columns);
  if (!rows.empty()) std::memcpy(rows.data(), info.ptr, rows.size() * sizeof(rows[0]));
  return rows;
}

std::byte* address_of(std::uint64_t number) {
  return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(number));
}

Plan plan_of(const py::buffer& items, const py::buffer& spans,
             const std::optional<py::buffer>& runs) {
  Plan plan;
  for (const auto& [source, begin, end, target, device] : rows_of<5>(items)) {
    plan.items.push_back({static_cast<std::uint32_t>(source), begin, end, address_of(target),
                          static_cast<std::int32_t>(device)});
  }
  for (const auto& [source, begin, end, first_item, item_count] : rows_of<5>(spans)) {
    plan.spans.push_back({static_cast<std::uint32_t>(source), begin, end,
                          static_cast<std::uint32_t>(first_item),
                          static_cast<std::uint32_t>(item_count)});
  }
  if (!runs) return plan;
  for (const auto& [item, run, stride] : rows_of<3>(*runs)) {
    plan.items.at(item).run = run;
    plan.items.at(item).stride = stride;
  }
  return plan;
}

std::vector<CachedItem> cached_items_of(const py::buffer& table) {
  std::vector<CachedItem> cached;
  for (const auto& [item, origin, crc] : rows_of<3>(table))
    cached.push_back({static_cast<std::uint32_t>(item), static_cast<std::uint32_t>(origin), crc});
  return cached;
}

// Waits in short slices, so that Ctrl-C is noticed within a tenth of a second.
Delivery wait_interruptibly(Session& session, double timeout_s, std::uint64_t enough_bytes) {
  constexpr double kSliceS = 0.1;
  for (double left_s = timeout_s;; left_s -= kSliceS) {
    Delivery delivery;
    {
      const GilReleased unlocked;
      delivery = session.wait(std::min(kSliceS, left_s), enough_bytes);
    }
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    const bool has_news = !delivery.items.empty() || !delivery.to_refresh.empty() ||
                          !delivery.to_allocate.empty() || delivery.error || delivery.is_finished;
    if (has_news || left_s <= kSliceS) return delivery;
  }
}

py::list take(Session& session, const std::vector<std::uint32_t>& items) {
  std::vector<Memory> memories;
  {
    const GilReleased unlocked;  // readers may hold the scheduler's lock
    memories = session.take(items);
  }
  py::list result(memories.size());
  for (std::size_t i = 0; i < memories.size(); ++i) {
    const bool is_empty = memories[i].size() == 0;
    result[i] = is_empty ? py::object(py::none()) : py::cast(std::move(memories[i]));
  }
  return result;
}

py::list digest_pieces(Session& session, std::uint32_t item) {
  py::list result;
  for (const auto& [begin, bytes, value] : session.digest_pieces(item))
    result.append(py::make_tuple(begin, bytes, value));
  return result;
}

std::string sha256_of(Session& session, std::uint32_t item) {
  return hexadecimal(session.hash(item));
}

// Converts a stream in the form that torch passes: the handle as a number, 0 for the legacy default
// stream.
CudaStreamHandle stream_of(std::uintptr_t number) {
  return reinterpret_cast<CudaStreamHandle>(number);
}

void start(Session& session, const py::buffer& items, const py::buffer& spans,
           const std::map<std::int32_t, std::uintptr_t>& streams, std::optional<DigestPlan> digests,
           const std::optional<py::buffer>& cached, std::optional<SealPlan> seals,
           const std::optional<py::buffer>& runs, std::vector<std::uint32_t> peers,
           std::vector<std::uint32_t> held_back) {
  Plan plan = plan_of(items, spans, runs);
  plan.peers = std::move(peers);
  plan.held_back = std::move(held_back);
  if (cached) plan.cached = cached_items_of(*cached);
  if (digests) plan.digests = std::move(*digests);
  if (seals) plan.seals = std::move(*seals);
  Session::ConsumerStreams handles;
  for (const auto& [device, number] : streams) handles[device] = stream_of(number);
  const GilReleased unlocked;  // opening a device is slow
  session.start(std::move(plan), handles);
}

void release(Session& session, const py::buffer& table) {
  std::vector<ReleasedItem> items;
  for (const auto& [item, source, crc] : rows_of<3>(table)) {
    items.push_back({static_cast<std::uint32_t>(item), static_cast<std::uint32_t>(source), crc});
  }
  const GilReleased unlocked;  // readers may hold the scheduler's lock
  session.release(items);
}

void provide(Session& session, std::int32_t device, std::uintptr_t stream,
             const std::vector<std::uint32_t>& items, const std::vector<std::uint64_t>& addresses) {
  std::vector<std::byte*> targets;
  for (const std::uint64_t address : addresses) targets.push_back(address_of(address));
  const GilReleased unlocked;
  session.provide(device, stream_of(stream), items, targets);
}

py::dict stats_of(Session& session) {
  const SessionStats stats = session.stats();
  py::dict result;
  result["blocks"] = stats.scheduler.blocks;
  result["retries"] = stats.scheduler.retries;
  result["rereads"] = stats.scheduler.rereads;
  result["cached_bytes"] = stats.scheduler.cached_bytes;
  result["cache_failures"] = stats.scheduler.cache_failures;
  result["bytes_landed"] = stats.scheduler.bytes_landed;
  result["gpudirect_bytes"] = stats.scheduler.gpudirect_bytes;
  result["gpudirect_refusal"] = stats.gpudirect_refusal;
  result["bytes_delivered"] = stats.scheduler.bytes_delivered;
  result["items_delivered"] = stats.scheduler.items_delivered;
  result["peak_held_bytes"] = stats.scheduler.peak_held_bytes;
  result["http_requests"] = stats.http_requests;
  result["credential_refreshes"] = stats.credential_refreshes;
  result["hedges"] = stats.hedges;
  result["outages"] = stats.outages.outages;
  result["probes"] = stats.outages.probes;
  result["waited_us"] = static_cast<std::uint64_t>(stats.outages.waited_s * 1e6);
  result["peak_pinned_bytes"] = stats.peak_pinned_bytes;
  const std::array<const char*, kBounds> bounds{"file_us",   "http_us",  "python_us",  "nfs_us",
                                                "memory_us", "slots_us", "consumer_us"};
  for (std::size_t i = 0; i < kBounds; ++i) {
    result[bounds[i]] = static_cast<std::uint64_t>(stats.scheduler.bound_s[i] * 1e6);
  }
  return result;
}

py::tuple take_trace(Session& session) {
  const auto [events, dropped] = session.take_trace();
  py::list rows;
  for (const TraceEvent& event : events) {
    rows.append(py::make_tuple(event.category, event.thread_name.data(), event.may_overlap,
                               event.began_us, event.ended_us, event.source, event.offset,
                               event.bytes, event.attempt, event.http_status,
                               event.reuses_connection, event.phases_us, text_of(event.failure)));
  }
  return py::make_tuple(rows, dropped);
}

void compare_answers(Session& session, std::uint32_t source, std::string request_header,
                     std::string answer_header, const std::string& algorithm,
                     bool is_least_significant_first, std::uint64_t max_bytes) {
  const std::optional<Crc> code = crc_of_name(algorithm);
  if (!code || max_bytes == 0) throw std::invalid_argument("unknown checksum of responses");
  using Order = AnswerChecksum::Order;
  session.compare_answers(source, {std::move(request_header), std::move(answer_header), *code,
                                   is_least_significant_first ? Order::kLeastSignificantFirst
                                                              : Order::kMostSignificantFirst,
                                   max_bytes});
}

void add_nfs(Session& session, const std::string& url, std::uint64_t size_bytes,
             const std::string& version) {
  call_interruptibly([&](const std::function<bool()>& is_interrupted) {
    session.add_nfs(url, size_bytes, version, is_interrupted);
    return true;
  });
}

// py::register_exception() would release the GIL, and abort a process that ends; see gil.h.
void register_forked_error(py::module_& module) {
  static PyObject* forked_error = nullptr;  // never freed, as the module
  forked_error =
      py::exception<ForkedError>(module, "ForkedError", PyExc_RuntimeError).release().ptr();
  py::register_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const ForkedError& forked) {
      py::set_error(forked_error, forked.what());
    }
  });
}

}  // namespace

void register_session(py::module_& module) {
  register_forked_error(module);

  using released = py::call_guard<GilReleased>;
  py::class_<Session, std::shared_ptr<Session>>(module, "Session",
                                                "One load; see session/session.h.")
      // Holds the GIL, like os.fork(): no child may be forked while libcurl initializes.
      .def(py::init<SessionOptions>(), py::arg("options"))
      .def(
          "add_file",
          [](Session& session, std::string path, std::uint64_t size_bytes, std::string version,
             std::string folder, bool is_direct, bool is_partly_cached, bool is_shared,
             bool uses_ring, bool is_being_written) {
            session.add_file(std::move(path), size_bytes, std::move(version),
                             {std::move(folder), is_direct, is_partly_cached, is_shared, uses_ring,
                              nullptr, is_being_written});
          },
          py::arg("path"), py::arg("size_bytes"), py::arg("version"), py::arg("folder"),
          py::arg("is_direct"), py::arg("is_partly_cached"), py::arg("is_shared"),
          py::arg("uses_ring"), py::arg("is_being_written") = false)
      .def("add_http", &Session::add_http, py::arg("target"), py::arg("size_bytes"),
           py::arg("version"), py::arg("version_header"), py::arg("can_refresh"))
      .def("compare_answers", &compare_answers, py::arg("source"), py::kw_only(),
           py::arg("request_header"), py::arg("answer_header"), py::arg("algorithm"),
           py::arg("is_least_significant_first"), py::arg("max_bytes"))
      .def("compares_answers", &Session::compares_answers, py::arg("source"))
      .def("add_nfs", &add_nfs, py::arg("url"), py::arg("size_bytes"), py::arg("version"))
      .def("add_python", &Session::add_python)
      .def("write_to_cache", &Session::write_to_cache, py::arg("source"), py::arg("entry"),
           py::arg("may_wait"))
      .def("digest_pieces", &digest_pieces, py::arg("item"))
      .def("sha256", &sha256_of, py::arg("item"))
      .def("start", &start, py::arg("items"), py::arg("spans"), py::arg("streams"),
           py::arg("digests") = py::none(), py::arg("cached") = py::none(),
           py::arg("seals") = py::none(), py::arg("runs") = py::none(),
           py::arg("peers") = std::vector<std::uint32_t>{},
           py::arg("held_back") = std::vector<std::uint32_t>{})
      .def("release", &release, py::arg("items"))
      .def("provide", &provide, py::arg("device"), py::arg("stream"), py::arg("items"),
           py::arg("addresses"))
      .def("next_to_allocate", &Session::next_to_allocate)
      .def("has_abandoned_copies", &Session::has_abandoned_copies)
      .def("is_forked", &Session::is_forked)
      .def("wait", &wait_interruptibly, py::arg("timeout_s"), py::arg("enough_bytes") = 0)
      .def("take", &take, py::arg("items"))
      .def("set_memory_limit", &Session::set_memory_limit, py::arg("limit_bytes"), released())
      .def("renew", &Session::renew, py::arg("source"), py::arg("target"))
      .def(
          "version",
          [](Session& session, std::uint32_t source) { return text_of(session.version(source)); },
          py::arg("source"))
      .def("take_python_block",
           [](const std::shared_ptr<Session>& session) -> std::unique_ptr<PythonBlock> {
             const GilReleased unlocked;
             return PythonBlock::take(session);
           })
      .def("stats", &stats_of)
      .def("peer_bytes", &Session::peer_bytes)
      .def("received_bytes", &Session::received_bytes)
      .def("lost_peers", &Session::lost_peers)
      .def("win_back", &Session::win_back, py::arg("source"))
      .def("take_trace", &take_trace)
      .def("outages", &Session::outages)
      .def("close", &Session::close, released());

  module.def(
      "release_connections", [] { return KeptConnections::of_process().release(); }, released(),
      "Close the connections that no load uses. Return the number of reactors that kept them.");
}

}  // namespace streamer
