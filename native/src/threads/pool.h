// Persistent threads that all run the same job, with a barrier inside the job.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace weft {

// Spins a little, then sleeps until every thread of the team has arrived.
class Barrier {
 public:
  void reset(int n) { n_ = n; }
  void wait();

 private:
  int n_ = 1;
  std::atomic<int> arrived_{0};
  std::atomic<uint32_t> round_{0};
};

// The caller is thread 0. One job runs at a time; a second caller waits for the first.
class ThreadPool {
 public:
  // A job: called once on every thread, with the thread's number.
  using Job = void (*)(void* context, int thread);

  explicit ThreadPool(int n_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }
  // Returns when all threads have left the job.
  void run(Job job, void* context);
  // To be used by a job, by all of its threads.
  Barrier& barrier() { return barrier_; }

 private:
  void work(int thread);

  std::mutex mutex_;
  std::vector<std::thread> workers_;
  Barrier barrier_;
  Job job_ = nullptr;
  void* context_ = nullptr;
  std::atomic<uint32_t> epoch_{0};
  std::atomic<int> running_{0};
  std::atomic<bool> stop_{false};
};

// Processors that this process may use.
int usable_processors();
// Physical cores among them (hyper-threads of one core count once).
int usable_cores();

}  // namespace weft
