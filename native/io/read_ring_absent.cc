// Replaces the ring in a build without liburing.
#include "io/read_ring.h"

namespace streamer {

struct ReadRing::State {};

ReadRing::~ReadRing() = default;

ReadRing* ReadRing::of_this_thread() { return nullptr; }

void ReadRing::read(std::span<RingRead>) {}  // no thread has a ring

}  // namespace streamer
