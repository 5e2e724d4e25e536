#include "team.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <stdexcept>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tailrace {

namespace {

constexpr int kStepSpin = 60;   // microseconds: the gap between two steps
constexpr int kPhaseSpin = 30;  // longer than any task's tail on a quiet machine
constexpr int kOpen = 1 << 16;
constexpr int kMostThreads = 1024;
constexpr int kMostRanks = 64;

using Clock = std::chrono::steady_clock;

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

void futex(std::atomic<uint32_t>* word, int operation, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, 0);
}

struct Start {
  Team* team;
  int index;
};

// Moves the calling thread to some CPUs. It may stay elsewhere, which costs speed only: they may be offline, or not ours any more.
void stay_on(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu : cpus) {
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
  }
  if (CPU_COUNT(&set) > 0) sched_setaffinity(0, sizeof set, &set);
}

// The calling thread stays on some CPUs for a while.
class Visit {
 public:
  explicit Visit(const std::vector<int>& cpus) : moved_(!cpus.empty() && sched_getaffinity(0, sizeof before_, &before_) == 0) {
    if (moved_) stay_on(cpus);
  }
  ~Visit() {
    if (moved_) sched_setaffinity(0, sizeof before_, &before_);
  }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

 private:
  cpu_set_t before_;
  const bool moved_;
};

std::vector<int> threads_of(const std::vector<RankPlace>& places) {
  std::vector<int> threads;
  for (const RankPlace& place : places) threads.push_back(place.threads);
  return threads;
}

}  // namespace

void Signal::advance() {
  word_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) futex(&word_, FUTEX_WAKE, 1 << 30);
}

void Signal::wait_past(uint32_t value, int spin_microseconds) {
  if (beyond(value)) return;
  for (const auto end = Clock::now() + std::chrono::microseconds(spin_microseconds); Clock::now() < end;) {
    for (int i = 0; i < 64; ++i, relax()) {
      if (beyond(value)) return;
    }
  }
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  for (uint32_t now = word_.load(std::memory_order_seq_cst); static_cast<int32_t>(now - value) <= 0;
       now = word_.load(std::memory_order_seq_cst)) {
    futex(&word_, FUTEX_WAIT, now);
  }
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

Team::Team(int threads) : Team(std::vector<RankPlace>{{threads, {}}}) {}

Team::Team(std::vector<RankPlace> ranks) : places_(std::move(ranks)), ranks_(threads_of(places_)) {
  if (places_.empty() || places_.size() > kMostRanks) throw std::invalid_argument("ranks must be between 1 and 64");
  for (int threads : ranks_) {
    if (threads < 1 || threads > kMostThreads) throw std::invalid_argument("threads must be between 1 and 1024");
    threads_ += threads;
  }
  if (threads_ > kMostThreads) throw std::invalid_argument("threads must be between 1 and 1024");
  tickets_ = std::make_unique<Ticket[]>(threads_);
  start();
}

Team::~Team() {
  if (owner_ != getpid()) return;
  stop_ = true;
  start_.advance();
  for (pthread_t worker : workers_) pthread_join(worker, nullptr);
}

void Team::start() {
  owner_ = getpid();
  pending_ = false;  // a forked child has none of its parent's runs
  workers_.clear();
  gate_.store(0);
  for (int index = 1; index < threads_; ++index) {
    pthread_t worker;
    auto* argument = new Start{this, index};
    if (pthread_create(&worker, nullptr, &Team::entry, argument) != 0) {
      delete argument;
      stop_ = true;
      start_.advance();
      for (pthread_t started : workers_) pthread_join(started, nullptr);
      throw std::runtime_error("could not start the thread team: lower the number of threads");
    }
    workers_.push_back(worker);
  }
}

void* Team::entry(void* argument) {
  const Start start = *static_cast<Start*>(argument);
  delete static_cast<Start*>(argument);
  start.team->serve(start.index);
  return nullptr;
}

int Team::rank_of(int member) const {
  int rank = 0;
  for (int end = ranks_[0]; member >= end; end += ranks_[++rank]) {
  }
  return rank;
}

int Team::first_of(int rank) const {
  int first = 0;
  for (int r = 0; r < rank; ++r) first += ranks_[r];
  return first;
}

void Team::serve(int index) {
  stay_on(places_[rank_of(index)].cpus);
  for (;;) {
    const uint32_t seen = start_.load();
    if (stop_) return;
    if (enter()) {
      Member member(*this, index, first_phase_);
      call_(context_, member);
      leave();
    }
    start_.wait_past(seen, kStepSpin);
  }
}

void Team::run_raw(Call call, void* context, bool later) {
  std::lock_guard<std::mutex> turn(turn_);
  if (owner_ != getpid()) start();
  if (pending_) join();
  open(call, context);
  if (!later) join();
}

void Team::settle() {
  std::lock_guard<std::mutex> turn(turn_);
  if (pending_ && owner_ == getpid()) join();
}

void Team::open(Call call, void* context) {
  first_phase_ = phase_.load();
  done_.store(0, std::memory_order_relaxed);
  call_ = call;
  context_ = context;
  pending_ = true;
  if (threads_ == 1) return;
  gate_.store(kOpen, std::memory_order_release);
  start_.advance();
}

void Team::join() {
  const Visit visit(places_[0].cpus);
  Member member(*this, 0, first_phase_);
  call_(context_, member);
  if (threads_ > 1) close();
  pending_ = false;
}

// A worker that wakes after the run was closed must not touch it: the caller's memory may be gone.
bool Team::enter() {
  int gate = gate_.load(std::memory_order_relaxed);
  while (gate & kOpen) {
    if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire, std::memory_order_relaxed)) return true;
  }
  return false;
}

void Team::leave() {
  if (gate_.fetch_sub(1, std::memory_order_acq_rel) == 1) idle_.advance();
}

void Team::close() {
  gate_.fetch_and(~kOpen, std::memory_order_acq_rel);
  for (uint32_t seen = idle_.load(); gate_.load(std::memory_order_acquire) != 0; seen = idle_.load()) {
    idle_.wait_past(seen, kPhaseSpin);
  }
}

// Nobody resets tickets between phases. One of an earlier phase means that nothing of this one is claimed: a phase ends only when all
// of every part is, and tickets never go back.
int Team::claim(int member, uint32_t phase, int tasks) {
  if (tasks <= 0) return -1;
  std::atomic<uint64_t>& next = tickets_[member].next;
  uint64_t ticket = next.load(std::memory_order_relaxed);
  for (;;) {
    const int32_t behind = static_cast<int32_t>(phase - static_cast<uint32_t>(ticket >> 32));
    const int task = behind > 0 ? 0 : static_cast<int>(ticket & 0x7FFFFFFF);
    if (behind < 0 || task >= tasks) return -1;
    const uint64_t claimed = uint64_t{phase} << 32 | static_cast<uint32_t>(task + 1);
    if (next.compare_exchange_weak(ticket, claimed, std::memory_order_relaxed)) return task;
  }
}

// The member that reports the last task opens the next phase.
void Team::finish(int finished, int tasks) {
  if (done_.fetch_add(finished, std::memory_order_acq_rel) + finished < tasks) return;
  done_.store(0, std::memory_order_relaxed);
  phase_.advance();
}

void Team::wait_for(uint32_t phase) { phase_.wait_past(phase - 1, kPhaseSpin); }

}  // namespace tailrace
