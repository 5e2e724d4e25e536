// A persistent team of threads. One hand-off starts a whole step on every member; inside, phases are separated by
// barriers and tasks of a phase are claimed from one counter, so a member that is slow or descheduled delays nobody
// by more than the task it holds.
//
// Waiting spins for some microseconds, then yields, then sleeps in the kernel: a team that shares its cores with other
// busy threads must not burn the time those need to let it go on.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

namespace tailrace {

// A 32-bit word that threads wait on until it changes.
class Signal {
 public:
  uint32_t load() const { return word_.load(std::memory_order_acquire); }
  void advance();                // changes the word and wakes sleepers
  void wait_while(uint32_t old, int spins);  // returns when the word differs from `old`

 private:
  std::atomic<uint32_t> word_{0};
  std::atomic<int> sleepers_{0};
};

class Team {
 public:
  explicit Team(int threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int threads() const { return threads_; }

  // Runs fn(member) on every member; the caller is member 0. One run at a time, others wait their turn.
  template <class F>
  void run(F&& fn) {
    auto call = [](void* context, int member) { (*static_cast<std::remove_reference_t<F>*>(context))(member); };
    run_raw(call, &fn);
  }

  // Inside run(): calls fn(task) for tasks 0 .. tasks-1 that no other member has claimed. Every member calls it with the
  // same number and then barrier(), after which all are done and the next each() may start.
  template <class F>
  void each(int tasks, F&& fn) {
    if (threads_ == 1) {
      for (int t = 0; t < tasks; ++t) fn(t);
      return;
    }
    for (int t = claim(); t < tasks; t = claim()) fn(t);
  }

  // Inside run(): returns when every member has come.
  void barrier();

 private:
  using Call = void (*)(void*, int);
  void run_raw(Call call, void* context);
  int claim() { return ticket_.fetch_add(1, std::memory_order_relaxed); }
  void start();
  void work(int member, uint32_t seen);
  static void* entry(void* argument);

  const int threads_;
  pid_t owner_ = 0;  // workers do not survive fork(): the child starts its own
  std::mutex turn_;
  std::vector<pthread_t> workers_;
  Call call_ = nullptr;
  void* context_ = nullptr;
  bool stop_ = false;
  alignas(64) std::atomic<int> ticket_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) Signal phase_;
  alignas(64) Signal start_;
};

}  // namespace tailrace
