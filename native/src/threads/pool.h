// Persistent threads that help the caller with a job.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "threads/topology.h"

namespace weft {

// How often this process has been forked since the first call. A child has none of the threads of
// its parent.
uint32_t forks();

struct PoolOptions {
  int n_threads = 1;
  // How long an idle thread spins before it sleeps, from 0 (it sleeps at once) to 100 (200 us).
  int poll = 50;
  Priority priority = Priority::kNormal;
  // The processors that each thread is bound to. A thread without an entry, or with an empty one,
  // runs wherever the process may run.
  std::vector<Cpus> cpus;
};

// The caller is thread 0. One job runs at a time; a second caller waits for the first. After a fork
// the child process starts its own threads.
//
// A job ends when the caller and every worker that has entered it have left it. A worker that the
// system does not schedule in time never enters, and nobody waits for it. A job therefore shares
// out its work by counters, and thread 0 must be able to do all of it.
class ThreadPool {
 public:
  // A job receives the number of the thread that calls it. Thread 0 calls it once; each other
  // thread may call it any number of times, or never.
  using Job = void (*)(void* context, int thread);

  explicit ThreadPool(PoolOptions options);
  explicit ThreadPool(int n_threads)
      : ThreadPool(PoolOptions{n_threads, 50, Priority::kNormal, {}}) {}
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return options_.n_threads; }
  // Runs the job on threads 0..n-1; the others are not woken.
  void run(Job job, void* context, int n);
  // Lets a job wait until `value` is no longer `old`: spins for a while, then sleeps. Whoever
  // changes the value, in sequentially consistent order, must call wake() after that.
  void wait(std::atomic<uint32_t>& value, uint32_t old);
  // Wakes the threads that sleep in wait(). Where none does, it does not call the system, which
  // would take longer than a small step.
  void wake(std::atomic<uint32_t>& value) const;

  // Makes the scratch memory of every thread at least `bytes` bytes; call it between jobs. Scratch
  // memory belongs to the job that is running. It begins at a cache line, and no two threads share
  // a line.
  void reserve_scratch(size_t bytes);
  char* scratch(int thread) const { return scratch_[static_cast<size_t>(thread)].get(); }

  // A sentence for each thing that the system refused when it placed the threads.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  // A cache line each, so that waking one worker does not disturb those that stay asleep.
  struct alignas(64) Worker {
    std::atomic<uint32_t> epoch{0};
    std::thread thread;
    std::string warning;
  };
  struct Free {
    void operator()(char* p) const;
  };

  void start();
  void work(int thread);
  const Cpus& cpus_of(int thread) const;
  bool enter(int thread);
  void leave();

  PoolOptions options_;
  int64_t spin_ns_;
  uint32_t forks_;
  std::mutex mutex_;
  std::unique_ptr<Worker[]> workers_;  // worker i is thread i + 1
  std::vector<std::string> warnings_;
  std::vector<std::unique_ptr<char, Free>> scratch_;
  size_t scratch_bytes_ = 0;
  Job job_ = nullptr;
  void* context_ = nullptr;
  int invited_ = 0;  // threads 0..invited_-1 take part in the current job
  // The number of workers inside the job; its highest bit (kClosed) is set once no more may enter.
  alignas(64) std::atomic<uint32_t> inside_;
  alignas(64) std::atomic<int> sleepers_{0};  // threads that sleep in wait(), or are about to
  alignas(64) std::atomic<uint32_t> starting_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace weft
