// Persistent threads that all run the same job, with a barrier inside the job.
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

// Spins a little, then sleeps until every thread of the team has arrived.
class Barrier {
 public:
  // Between jobs only.
  void reset(int n) { n_ = n; }
  void wait(int64_t spin_ns);

 private:
  int n_ = 1;
  // apart, so that those who arrive do not disturb those who look
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> round_{0};
};

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
class ThreadPool {
 public:
  // A job: called once on every thread, with the thread's number.
  using Job = void (*)(void* context, int thread);

  explicit ThreadPool(PoolOptions options);
  explicit ThreadPool(int n_threads)
      : ThreadPool(PoolOptions{n_threads, 50, Priority::kNormal, {}}) {}
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return options_.n_threads; }
  // Runs the job on threads 0..n-1; returns when all have left it. The others are not woken.
  void run(Job job, void* context, int n);
  // To be used by a job, by all of its threads.
  void meet() { barrier_.wait(spin_ns_); }

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
  void wait_for_workers();

  PoolOptions options_;
  int64_t spin_ns_;
  uint32_t forks_;
  std::mutex mutex_;
  std::unique_ptr<Worker[]> workers_;  // of threads 1..
  std::vector<std::string> warnings_;
  std::vector<std::unique_ptr<char, Free>> scratch_;
  size_t scratch_bytes_ = 0;
  Barrier barrier_;
  Job job_ = nullptr;
  void* context_ = nullptr;
  std::atomic<uint32_t> running_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace weft
