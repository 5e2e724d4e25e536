// A persistent team of threads. One hand-off starts a whole step on every member; inside, the work is a sequence of phases
// whose tasks are claimed one by one. Each member has an equal part of them, tasks that follow one another, so that what it reads
// follows too and can be fetched ahead; when it is through, it claims what others have left. A phase ends when its tasks are
// done, not when every member has come: a member that is asleep or descheduled delays nobody by more than the task it holds,
// and skips the phases it missed.
//
// Members belong to ranks (ranks.h), mostly to one. Tasks of a phase may belong to ranks too: then only members of a task's rank claim
// it, so that what it reads and writes stays beside the processors that do.
//
// Waiting spins for some microseconds, then sleeps in the kernel. It does not yield in between: on a busy machine a thread that
// sleeps is run soon after it is woken, one that burned its time share is not.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
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

// Some threads of a team, and the CPUs they stay on; none: they go where the system likes.
struct RankPlace {
  int threads = 1;
  std::vector<int> cpus;
};

class Team {
 public:
  // One member's way through a run. Every member makes the same calls in the same order.
  class Member {
   public:
    int index() const { return index_; }
    int rank() const { return rank_; }

    // Calls fn(task) for tasks 0 .. tasks-1 that nobody else has claimed, in ascending order of each part. wait() must follow.
    template <class F>
    void work(int tasks, F&& fn) {
      take(0, team_.threads(), tasks, tasks, fn);
    }
    // The same for tasks 0 .. count(rank)-1 of the member's own rank; the phase has those of every rank.
    template <class Count, class F>
    void work_of_rank(const Count& count, F&& fn) {
      int total = 0;
      for (size_t rank = 0; rank < team_.ranks().size(); ++rank) total += count(static_cast<int>(rank));
      take(team_.first_of(rank_), team_.ranks()[rank_], count(rank_), total, fn);
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
    Member(Team& team, int index, uint32_t phase) : team_(team), index_(index), rank_(team.rank_of(index)), phase_(phase) {}

    // Of `tasks` that `members` members from `first` on share, in a phase of `total`: the own part, which is reported at once, then
    // those of the others.
    template <class F>
    void take(int first, int members, int tasks, int total, F&& fn) {
      if (total <= 0) return;
      for (int i = 0, part = index_ - first; i < members && !team_.over(phase_); ++i, part = part + 1 < members ? part + 1 : 0) {
        const int from = part_start(tasks, part, members), count = part_start(tasks, part + 1, members) - from;
        int finished = 0;
        for (int t = team_.claim(first + part, phase_, count); t >= 0; t = team_.claim(first + part, phase_, count), ++finished) {
          fn(from + t);
        }
        if (finished > 0) team_.finish(finished, total);
      }
      ++phase_;
    }

    // Rounded up: a single task is the first member's.
    static int part_start(int tasks, int part, int members) { return static_cast<int>((int64_t{tasks} * part + members - 1) / members); }

    Team& team_;
    const int index_, rank_;
    uint32_t phase_;
  };

  explicit Team(int threads);
  // Members in the order of their ranks. Workers stay on their rank's CPUs; so does a caller, while it is member 0.
  explicit Team(std::vector<RankPlace> ranks);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int threads() const { return threads_; }
  const std::vector<int>& ranks() const { return ranks_; }  // threads of each

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

  // Calls fn(rank) once for each rank, on one of its threads: memory that it touches first lies beside them. With one rank the caller
  // just does it. Throws what fn threw.
  template <class F>
  void on_each_rank(F&& fn) {
    if (ranks_.size() == 1) return fn(0);
    std::vector<std::exception_ptr> failed(ranks_.size());
    run([&](Member& member) {
      member.work_of_rank([](int) { return 1; },
                          [&](int) {
                            try {
                              fn(member.rank());
                            } catch (...) {
                              failed[member.rank()] = std::current_exception();
                            }
                          });
      member.wait();
    });
    for (const std::exception_ptr& failure : failed) {
      if (failure) std::rethrow_exception(failure);
    }
  }

 private:
  using Call = void (*)(void*, Member&);
  template <class F>
  static void call_of(void* context, Member& member) {
    (*static_cast<std::remove_reference_t<F>*>(context))(member);
  }
  void run_raw(Call call, void* context, bool later);
  void open(Call call, void* context);
  void join();
  int rank_of(int member) const;
  int first_of(int rank) const;                      // member
  int claim(int member, uint32_t phase, int tasks);  // of the member's part; -1: nothing left for this phase
  void finish(int finished, int tasks);
  bool over(uint32_t phase) const { return phase_.load() != phase; }
  void wait_for(uint32_t phase);
  bool enter();
  void leave();
  void close();
  void start();
  void serve(int index);
  static void* entry(void* argument);

  struct alignas(64) Ticket {
    std::atomic<uint64_t> next{0};  // the last phase in which something was claimed << 32 | the next task of it
  };

  const std::vector<RankPlace> places_;
  std::vector<int> ranks_;
  int threads_ = 0;
  pid_t owner_ = 0;  // workers do not survive fork(): the child starts its own
  std::mutex turn_;
  bool pending_ = false;  // a run was begun and not joined
  std::vector<pthread_t> workers_;
  // Of the present run; constant from open() to join().
  Call call_ = nullptr;
  void* context_ = nullptr;
  uint32_t first_phase_ = 0;
  bool stop_ = false;
  std::unique_ptr<Ticket[]> tickets_;            // by member, of its part
  alignas(64) std::atomic<int> done_{0};         // finished tasks of the phase
  alignas(64) Signal phase_;                     // the current phase
  alignas(64) std::atomic<int> gate_{0};         // kOpen while workers may enter, plus the number inside
  alignas(64) Signal start_;                     // advances with every run
  Signal idle_;                                  // advances when the last worker leaves a closed run
};

}  // namespace tailrace
