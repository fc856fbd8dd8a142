#include "threads/pool.h"

#if defined(__linux__)
#include <sched.h>

#include <fstream>
#include <set>
#include <string>
#endif

namespace weft {

namespace {

// About 20 us of spinning: longer than the tail of a balanced stage, shorter than a sleep costs.
constexpr int kSpins = 4000;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void wait_for_change(std::atomic<uint32_t>& value, uint32_t old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    relax();
  }
  while (value.load(std::memory_order_acquire) == old) {
    value.wait(old, std::memory_order_acquire);
  }
}

}  // namespace

void Barrier::wait() {
  if (n_ == 1) return;
  const uint32_t round = round_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == n_) {
    arrived_.store(0, std::memory_order_relaxed);
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    return;
  }
  wait_for_change(round_, round);
}

ThreadPool::ThreadPool(int n_threads) {
  const int n = n_threads < 1 ? 1 : n_threads;
  barrier_.reset(n);
  workers_.reserve(static_cast<size_t>(n) - 1);
  for (int i = 1; i < n; ++i) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_release);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& t : workers_) t.join();
}

void ThreadPool::run(Job job, void* context) {
  const std::lock_guard<std::mutex> lock(mutex_);
  job_ = job;
  context_ = context;
  running_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  if (!workers_.empty()) {
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
  }
  job(context, 0);
  for (int i = 0;; ++i) {
    const int left = running_.load(std::memory_order_acquire);
    if (left == 0) return;
    if (i < kSpins) {
      relax();
    } else {
      running_.wait(left, std::memory_order_acquire);
    }
  }
}

void ThreadPool::work(int thread) {
  uint32_t seen = 0;
  for (;;) {
    wait_for_change(epoch_, seen);
    // one step at a time: the pool starts no new job before every worker has left the last one
    ++seen;
    if (stop_.load(std::memory_order_acquire)) return;
    job_(context_, thread);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_all();
  }
}

int usable_processors() {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  const unsigned n = std::thread::hardware_concurrency();
  return n == 0 ? 1 : static_cast<int>(n);
}

int usable_cores() {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    std::set<std::string> cores;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &set)) continue;
      // processors of one core list the same siblings
      std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                         "/topology/thread_siblings_list");
      std::string siblings;
      if (!std::getline(file, siblings)) return usable_processors();
      cores.insert(siblings);
    }
    if (!cores.empty()) return static_cast<int>(cores.size());
  }
#endif
  return usable_processors();
}

}  // namespace weft
