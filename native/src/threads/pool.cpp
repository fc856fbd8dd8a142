#include "threads/pool.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <set>
#include <utility>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace weft {

namespace {

constexpr size_t kCacheLine = 64;
// Nanoseconds of spinning per level of PoolOptions::poll. The default level, 50, spins for 100 us:
// longer than the wait for the last thread of a balanced stage, and than the pause between two
// short runs.
constexpr int64_t kSpinPerLevel = 2000;
constexpr uint32_t kClosed = uint32_t{1} << 31;
constexpr int kLooksPerClock = 16;  // reads of the awaited value between two reads of the clock

// The number of threads, over all pools, that are inside a job. When it exceeds the number of
// processors, threads do not spin: a spinning thread could hold up the one it waits for.
std::atomic<int> g_busy{0};
std::atomic<uint32_t> g_forks{0};

int processors() {
  static const int n = usable_processors();
  return n;
}

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Whether the value is no longer `old` after spinning for a while.
bool spin(const std::atomic<uint32_t>& value, uint32_t old, int64_t spin_ns) {
  if (value.load(std::memory_order_acquire) != old) return true;
  if (spin_ns > 0) {
    const int64_t end = now_ns() + spin_ns;
    while (g_busy.load(std::memory_order_relaxed) <= processors() && now_ns() < end) {
      for (int i = 0; i < kLooksPerClock; ++i) {
        relax();
        if (value.load(std::memory_order_acquire) != old) return true;
      }
    }
  }
  return false;
}

void sleep(const std::atomic<uint32_t>& value, uint32_t old) {
  while (value.load(std::memory_order_seq_cst) == old) {
    value.wait(old, std::memory_order_acquire);
  }
}

// Whether there is a processor for each thread.
bool fits(const PoolOptions& options) {
  std::set<int> cpus;
  for (const Cpus& own : options.cpus) {
    if (own.empty()) return options.n_threads <= processors();
    cpus.insert(own.begin(), own.end());
  }
  const int n = options.cpus.empty() ? processors() : static_cast<int>(cpus.size());
  return options.n_threads <= n;
}

}  // namespace

uint32_t forks() {
#if defined(__unix__) || defined(__APPLE__)
  [[maybe_unused]] static const int once = pthread_atfork(nullptr, nullptr, [] {
    g_forks.fetch_add(1, std::memory_order_relaxed);
    g_busy.store(0, std::memory_order_relaxed);
  });
#endif
  return g_forks.load(std::memory_order_relaxed);
}

ThreadPool::ThreadPool(PoolOptions options)
    : options_(std::move(options)), forks_(forks()), inside_(kClosed) {
  options_.n_threads = std::max(1, options_.n_threads);
  spin_ns_ = fits(options_) ? std::clamp(options_.poll, 0, 100) * kSpinPerLevel : 0;
  scratch_.resize(static_cast<size_t>(size()));
  start();
}

ThreadPool::~ThreadPool() {
  if (forks() != forks_) {
    workers_.release();  // NOLINT: threads of another process cannot be joined
    return;
  }
  stop_.store(true, std::memory_order_release);
  for (int i = 1; i < size(); ++i) {
    Worker& worker = workers_[static_cast<size_t>(i - 1)];
    worker.epoch.fetch_add(1, std::memory_order_release);
    worker.epoch.notify_one();
  }
  for (int i = 1; i < size(); ++i) workers_[static_cast<size_t>(i - 1)].thread.join();
}

const Cpus& ThreadPool::cpus_of(int thread) const {
  static const Cpus anywhere;
  const auto i = static_cast<size_t>(thread);
  return i < options_.cpus.size() ? options_.cpus[i] : anywhere;
}

void ThreadPool::start() {
  const int n_workers = size() - 1;
  workers_ = std::make_unique<Worker[]>(static_cast<size_t>(n_workers));
  starting_.store(static_cast<uint32_t>(n_workers), std::memory_order_relaxed);
  inside_.store(kClosed, std::memory_order_relaxed);
  for (int i = 1; i < size(); ++i) {
    workers_[static_cast<size_t>(i - 1)].thread = std::thread([this, i] { work(i); });
  }
  for (uint32_t n; (n = starting_.load(std::memory_order_acquire)) != 0;) sleep(starting_, n);
  warnings_.clear();
  for (int i = 0; i < n_workers; ++i) {
    const std::string& warning = workers_[static_cast<size_t>(i)].warning;
    const bool known = std::find(warnings_.begin(), warnings_.end(), warning) != warnings_.end();
    if (!warning.empty() && !known) warnings_.push_back(warning);
  }
  if (n_workers == 0) {
    // Without workers, a thread of a moment finds out what the system refuses.
    std::thread([this] {
      const std::string warning = place_thread(cpus_of(0), options_.priority);
      if (!warning.empty()) warnings_.push_back(warning);
    }).join();
  }
}

void ThreadPool::wait(std::atomic<uint32_t>& value, uint32_t old) {
  if (spin(value, old, spin_ns_)) return;
  // A thread is counted before it looks once more: either it sees the new value, or whoever has
  // written that sees the thread.
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  sleep(value, old);
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

void ThreadPool::wake(std::atomic<uint32_t>& value) const {
  if (sleepers_.load(std::memory_order_seq_cst) != 0) value.notify_all();
}

void ThreadPool::run(Job job, void* context, int n) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (forks() != forks_) {
    forks_ = forks();
    workers_.release();  // NOLINT: as above
    start();
  }
  n = std::clamp(n, 1, size());
  job_ = job;
  context_ = context;
  invited_ = n;
  g_busy.fetch_add(n, std::memory_order_relaxed);
  inside_.store(n == 1 ? kClosed : 0, std::memory_order_release);
  for (int i = 1; i < n; ++i) {
    Worker& worker = workers_[static_cast<size_t>(i - 1)];
    worker.epoch.fetch_add(1, std::memory_order_release);
    worker.epoch.notify_one();
  }
  {
    const PlacedHere here(cpus_of(0), options_.priority);
    job(context, 0);
  }
  inside_.fetch_or(kClosed, std::memory_order_acq_rel);
  for (uint32_t n_in; (n_in = inside_.load(std::memory_order_acquire)) != kClosed;) {
    if (!spin(inside_, n_in, spin_ns_)) sleep(inside_, n_in);
  }
  g_busy.fetch_sub(n, std::memory_order_relaxed);
}

void ThreadPool::work(int thread) {
  Worker& me = workers_[static_cast<size_t>(thread - 1)];
  me.warning = place_thread(cpus_of(thread), options_.priority);
  if (starting_.fetch_sub(1, std::memory_order_acq_rel) == 1) starting_.notify_all();
  uint32_t seen = 0;
  for (;;) {
    if (!spin(me.epoch, seen, spin_ns_)) sleep(me.epoch, seen);
    seen = me.epoch.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_acquire)) return;
    if (!enter(thread)) continue;
    job_(context_, thread);
    leave();
  }
}

// Whether the thread has entered the job. If so, the job does not change until the thread leaves
// it. A thread that wakes late may find a later job that does not include it.
bool ThreadPool::enter(int thread) {
  uint32_t n = inside_.load(std::memory_order_relaxed);
  do {
    if ((n & kClosed) != 0) return false;
  } while (!inside_.compare_exchange_weak(n, n + 1, std::memory_order_acq_rel,
                                          std::memory_order_relaxed));
  if (thread < invited_) return true;
  leave();
  return false;
}

void ThreadPool::leave() {
  if (inside_.fetch_sub(1, std::memory_order_acq_rel) == kClosed + 1) inside_.notify_all();
}

void ThreadPool::reserve_scratch(size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (bytes <= scratch_bytes_) return;
  for (auto& block : scratch_) {
    // Not written here: the system places each page near the thread that writes to it first.
    block.reset(static_cast<char*>(::operator new(bytes, std::align_val_t{kCacheLine})));
  }
  scratch_bytes_ = bytes;
}

void ThreadPool::Free::operator()(char* p) const {
  ::operator delete(p, std::align_val_t{kCacheLine});
}

}  // namespace weft
