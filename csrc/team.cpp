#include "team.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <stdexcept>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tailrace {

namespace {

constexpr int kPauses = 64;         // spins between two yields
constexpr int kStepSpins = 1200;    // about 60 us: the gap between two steps
constexpr int kPhaseSpins = 6000;   // inside a step sleep only when a member was descheduled for long

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
  int member;
  uint32_t seen;
};

}  // namespace

void Signal::advance() {
  word_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) futex(&word_, FUTEX_WAKE, 1 << 30);
}

void Signal::wait_while(uint32_t old, int spins) {
  for (int i = 0; i < spins; ++i) {
    if (load() != old) return;
    if (i % kPauses == kPauses - 1) {
      sched_yield();
    } else {
      relax();
    }
  }
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while (word_.load(std::memory_order_seq_cst) == old) futex(&word_, FUTEX_WAIT, old);
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

Team::Team(int threads) : threads_(threads) {
  if (threads < 1 || threads > 1024) throw std::invalid_argument("threads must be between 1 and 1024");
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
  workers_.clear();
  arrived_.store(0);
  ticket_.store(0);
  const uint32_t seen = start_.load();
  for (int member = 1; member < threads_; ++member) {
    pthread_t worker;
    auto* argument = new Start{this, member, seen};
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
  start.team->work(start.member, start.seen);
  return nullptr;
}

void Team::work(int member, uint32_t seen) {
  for (;; ++seen) {
    start_.wait_while(seen, kStepSpins);
    if (stop_) return;
    call_(context_, member);
    barrier();
  }
}

void Team::run_raw(Call call, void* context) {
  std::lock_guard<std::mutex> turn(turn_);
  ticket_.store(0, std::memory_order_relaxed);
  if (threads_ > 1) {
    if (owner_ != getpid()) start();
    call_ = call;
    context_ = context;
    start_.advance();
  }
  call(context, 0);
  barrier();
}

void Team::barrier() {
  if (threads_ == 1) return;
  const uint32_t phase = phase_.load();
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < threads_) {
    phase_.wait_while(phase, kPhaseSpins);
    return;
  }
  arrived_.store(0, std::memory_order_relaxed);
  ticket_.store(0, std::memory_order_relaxed);
  phase_.advance();
}

}  // namespace tailrace
