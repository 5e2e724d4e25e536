// A persistent team of threads. One hand-off starts a whole step on every member; inside, the work is a sequence of phases
// whose tasks are claimed one by one. A phase ends when its tasks are done, not when every member has come: a member that is
// asleep or descheduled delays nobody by more than the task it holds, and skips the phases it missed.
//
// Waiting spins for some microseconds, then sleeps in the kernel. It does not yield in between: on a busy machine a thread that
// sleeps is run soon after it is woken, one that burned its time share is not.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <type_traits>
#include <vector>

namespace tailrace {

// A counter that threads wait on until it moves past a value.
class Signal {
 public:
  uint32_t load() const { return word_.load(std::memory_order_acquire); }
  void advance();  // adds one and wakes sleepers
  void wait_past(uint32_t value, int spin_microseconds);  // returns when the counter is beyond `value`

 private:
  bool beyond(uint32_t value) const { return static_cast<int32_t>(load() - value) > 0; }
  std::atomic<uint32_t> word_{0};
  std::atomic<int> sleepers_{0};
};

class Team {
 public:
  // One member's way through a run. Every member makes the same calls in the same order.
  class Member {
   public:
    int index() const { return index_; }

    // Calls fn(task) for tasks 0 .. tasks-1 that nobody else has claimed, in ascending order. wait() must follow.
    template <class F>
    void work(int tasks, F&& fn) {
      if (tasks <= 0) return;
      int finished = 0;
      for (int t = team_.claim(phase_, tasks); t >= 0; t = team_.claim(phase_, tasks), ++finished) fn(t);
      if (finished > 0) team_.finish(finished, tasks);
      ++phase_;
    }
    // Returns when every task of the last work() is done, and what its tasks wrote is visible.
    void wait() { team_.wait_for(phase_); }

    template <class F>
    void each(int tasks, F&& fn) {
      work(tasks, fn);
      wait();
    }

   private:
    friend class Team;
    Member(Team& team, int index, uint32_t phase) : team_(team), index_(index), phase_(phase) {}
    Team& team_;
    const int index_;
    uint32_t phase_;
  };

  explicit Team(int threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int threads() const { return threads_; }

  // Runs fn(Member&) on every member that wakes up in time; the caller is member 0. One run at a time, others wait their turn.
  template <class F>
  void run(F&& fn) {
    run_raw(call_of<F>, &fn, false);
  }

  // The same, but returns at once: the workers begin, and whoever calls settle() joins them as member 0. `fn` must live until
  // then, so its owner settles before it ends. With one thread everything is done in settle().
  template <class F>
  void begin(F& fn) {
    run_raw(call_of<F>, &fn, true);
  }
  // Returns when the run that begin() opened is over; does nothing when there is none. run() and begin() settle first.
  void settle();

 private:
  using Call = void (*)(void*, Member&);
  template <class F>
  static void call_of(void* context, Member& member) {
    (*static_cast<std::remove_reference_t<F>*>(context))(member);
  }
  void run_raw(Call call, void* context, bool later);
  void open(Call call, void* context);
  void join();
  int claim(uint32_t phase, int tasks);  // -1: nothing left for this phase
  void finish(int finished, int tasks);
  void wait_for(uint32_t phase);
  bool enter();
  void leave();
  void close();
  void start();
  void serve(int index);
  static void* entry(void* argument);

  const int threads_;
  pid_t owner_ = 0;  // workers do not survive fork(): the child starts its own
  std::mutex turn_;
  bool pending_ = false;  // a run was begun and not joined
  std::vector<pthread_t> workers_;
  // Of the present run; constant from open() to join().
  Call call_ = nullptr;
  void* context_ = nullptr;
  uint32_t first_phase_ = 0;
  bool stop_ = false;
  alignas(64) std::atomic<uint64_t> ticket_{0};  // phase << 32 | next task
  alignas(64) std::atomic<int> done_{0};         // finished tasks of the phase
  alignas(64) Signal phase_;                     // the current phase
  alignas(64) std::atomic<int> gate_{0};         // kOpen while workers may enter, plus the number inside
  alignas(64) Signal start_;                     // advances with every run
  Signal idle_;                                  // advances when the last worker leaves a closed run
};

}  // namespace tailrace
