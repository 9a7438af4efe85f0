#include "session/python_loans.h"

#include <utility>

namespace streamer {
namespace {

// Pause of a block until its server is asked again whether it has room for a request.
constexpr double kRoomPollS = 0.02;

void complete(ReadError& error, const PythonLoans::Loan& loan) {
  error.source = loan.block.source;
  error.begin = loan.block.begin;
  error.end = loan.block.end;
  error.attempts = loan.block.attempts;
  error.elapsed_s = seconds_between(loan.block.first_started, Clock::now());
}

}  // namespace

std::optional<PythonLoans::Loan> PythonLoans::lend() {
  const Admission admission = [this](std::uint32_t source, TimePoint first_started) {
    return retries_.closed_until(*endpoints_[source], first_started, Clock::now());
  };
  while (std::optional<Block> block = scheduler_.lend(Lane::kPython, admission)) {
    const TimePoint now = Clock::now();
    Endpoint& endpoint = endpoint_of(*block);
    if (!retries_.give_up_overdue(*block, endpoint, now)) {
      if (const auto ticket = endpoint.try_start(now)) {
        if (block->attempts++ == 0) block->first_started = now;
        return Loan{std::move(*block), *ticket, now};
      }
      // Another thread took the room first.
      scheduler_.requeue(Lane::kPython, std::move(*block), after(now, kRoomPollS));
    }
    end_loan();
  }
  return std::nullopt;
}

void PythonLoans::note(const Loan& loan, const std::string& failure) {
  if (scheduler_.trace() == nullptr) return;
  scheduler_.trace()->add({.category = "request",
                           .source = loan.block.source,
                           .offset = loan.block.begin,
                           .bytes = failure.empty() ? loan.block.size() : 0,
                           .attempt = loan.block.attempts,
                           .failure = failure},
                          loan.started);
}

void PythonLoans::finish(Loan loan) {
  const TimePoint now = Clock::now();
  note(loan, "");
  endpoint_of(loan.block).finish_well(loan.ticket, seconds_between(loan.started, now), false, now);
  scheduler_.finish(Lane::kPython, std::move(loan.block));
}

void PythonLoans::try_again(Loan loan, ReadError error) {
  note(loan, error.detail);
  complete(error, loan);
  Endpoint& endpoint = endpoint_of(loan.block);
  const bool is_of_outage = endpoint.finish_badly(loan.ticket, error, Clock::now());
  retries_.try_again(std::move(loan.block), std::move(error), endpoint, is_of_outage);
}

void PythonLoans::fail(const Loan& loan, ReadError error) {
  note(loan, error.detail);
  endpoint_of(loan.block).cancel(loan.ticket);
  complete(error, loan);
  scheduler_.fail(std::move(error));
}

}  // namespace streamer
