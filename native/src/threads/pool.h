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

struct PoolOptions {
  int n_threads = 1;
  // 0 (sleep at once) to 100: how long threads look for work before they sleep.
  int poll = 50;
  Priority priority = Priority::kNormal;
  // Processors of each thread; fewer entries, or empty ones: wherever the process may run.
  std::vector<Cpus> cpus;
};

// The caller is thread 0. One job runs at a time; a second caller waits for the first. After a fork
// the child starts threads of its own.
//
// A job ends when the caller has left it, and all who had come by then: a thread that the system
// does not run in time is not waited for. So a job shares out its work by counters, and must be
// able to do all of it on thread 0.
class ThreadPool {
 public:
  // A job, called with the thread's number: by thread 0 once, by others any number of times.
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
  // To be used by a job: returns when `value` is no longer `old`. Spins a little, then sleeps; who
  // changes the value calls its notify_all().
  void wait(std::atomic<uint32_t>& value, uint32_t old) const;

  // Makes the scratch of every thread at least so big; call between jobs. It belongs to the job
  // that runs, begins at a cache line, and shares none with other threads.
  void reserve_scratch(size_t bytes);
  char* scratch(int thread) const { return scratch_[static_cast<size_t>(thread)].get(); }

  // What the system refused to the threads, a sentence each.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  // A line each: threads that take no part in a run are not disturbed by it.
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
  std::unique_ptr<Worker[]> workers_;  // of threads 1..
  std::vector<std::string> warnings_;
  std::vector<std::unique_ptr<char, Free>> scratch_;
  size_t scratch_bytes_ = 0;
  Job job_ = nullptr;
  void* context_ = nullptr;
  int invited_ = 0;  // threads of the job
  // Workers inside the job, and a bit once nobody may come any more.
  alignas(64) std::atomic<uint32_t> inside_;
  alignas(64) std::atomic<uint32_t> starting_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace weft
