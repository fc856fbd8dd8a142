#include "runtime/peaks.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

#include "threads/pool.h"

namespace weft {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kPage = 4096;
constexpr int64_t kHuge = int64_t{1} << 21;
constexpr int64_t kLargestBuffer = int64_t{1} << 30;

// Threads that start work(thread) together; the time of a call is from their common start to the
// end of the last one.
class Team {
 public:
  explicit Team(int n) : n_(n), ends_(static_cast<size_t>(n)) {
    for (int i = 1; i < n; ++i) threads_.emplace_back([this, i] { serve(i); });
  }
  ~Team() {
    stop_ = true;
    round_.fetch_add(1);
    round_.notify_all();
    for (std::thread& t : threads_) t.join();
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return n_; }

  double seconds(const std::function<void(int)>& work) {
    work_ = &work;
    ready_ = 0;
    left_ = n_ - 1;
    round_.fetch_add(1);
    round_.notify_all();
    meet();
    const Clock::time_point start = Clock::now();
    work(0);
    ends_[0] = Clock::now();
    while (left_.load() > 0) std::this_thread::yield();
    return std::chrono::duration<double>(*std::max_element(ends_.begin(), ends_.end()) - start)
        .count();
  }

 private:
  void meet() {
    ready_.fetch_add(1);
    while (ready_.load() < n_) {
      if (n_ > processors_) std::this_thread::yield();
    }
  }
  void serve(int thread) {
    for (uint32_t seen = 0;;) {
      round_.wait(seen);
      seen = round_.load();
      if (stop_) return;
      meet();
      (*work_)(thread);
      ends_[static_cast<size_t>(thread)] = Clock::now();
      left_.fetch_sub(1);
    }
  }

  const int n_;
  const int processors_ = usable_processors();
  std::vector<Clock::time_point> ends_;
  std::vector<std::thread> threads_;
  const std::function<void(int)>* work_ = nullptr;
  std::atomic<uint32_t> round_{0};
  std::atomic<int> ready_{0};
  std::atomic<int> left_{0};
  std::atomic<bool> stop_{false};
};

// Repeats `round` until `budget` seconds have passed and returns the best rate.
template <class Round>
double best_rate(double budget, Round round) {
  const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                   std::chrono::duration<double>(budget));
  double best = 0;
  do best = std::max(best, round());
  while (Clock::now() < end);
  return best;
}

// Operations per second of all threads together; 0 where there is no loop.
double arithmetic_rate(Team& team, double budget, double (*loop)(int64_t)) {
  if (loop == nullptr) return 0;
  // A measurement takes about 2 ms, short enough to fit between two interruptions.
  int64_t rounds = 1 << 12;
  const auto once = [&] {
    double operations = 0;
    const double seconds = team.seconds([&](int thread) {
      const double own = loop(rounds);
      if (thread == 0) operations = own;
    });
    return std::pair(operations * team.size(), seconds);
  };
  once();  // wide units and clocks need a moment to reach their full speed
  const double seconds = std::max(once().second, 1e-7);
  rounds = std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(rounds) * 2e-3 / seconds));
  return best_rate(budget, [&] {
    const auto [operations, took] = once();
    return operations / took;
  });
}

// The size in bytes of the largest cache in Linux's description (on some virtual machines sysconf
// reports the cache of a whole socket); 0 where there is no description.
int64_t last_cache() {
  int64_t bytes = 0;
#if defined(__linux__)
  for (int level = 2; level <= 4; ++level) {
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(level) +
                       "/size");
    int64_t size = 0;
    char unit = 'K';
    if (file >> size >> unit) bytes = std::max(bytes, size << (unit == 'M' ? 20 : 10));
  }
#endif
  return bytes;
}

int64_t buffer_bytes(int64_t wanted) {
  int64_t bytes = std::max(wanted, 4 * last_cache());
#if defined(_SC_AVPHYS_PAGES)
  // At most an eighth of the free memory.
  const int64_t free = int64_t{sysconf(_SC_AVPHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  if (free > 0) bytes = std::min(bytes, std::max(free / 8, kHuge));
#endif
  return std::min(bytes, kLargestBuffer) / kHuge * kHuge;
}

double read_rate(Team& team, double budget, const PeakLoops& loops, int64_t bytes) {
  constexpr auto kAligned = static_cast<std::align_val_t>(kHuge);
  const auto give_back = [](char* p) { ::operator delete(p, kAligned); };
  const std::unique_ptr<char, decltype(give_back)> data(
      static_cast<char*>(::operator new(static_cast<size_t>(bytes), kAligned, std::nothrow)),
      give_back);
  if (data == nullptr) return 0;
#if defined(MADV_HUGEPAGE)
  madvise(data.get(), static_cast<size_t>(bytes), MADV_HUGEPAGE);
#endif
  const int64_t share = bytes / team.size() / kPage * kPage;
  // Each thread writes to its own part first, so that the system places those pages near it.
  team.seconds(
      [&](int t) { std::memset(data.get() + t * share, t + 1, static_cast<size_t>(share)); });
  std::atomic<uint64_t> kept{0};
  return best_rate(budget, [&] {
    const double seconds =
        team.seconds([&](int t) { kept.fetch_xor(loops.read(data.get() + t * share, share)); });
    return static_cast<double>(share * team.size()) / seconds;
  });
}

}  // namespace

Peaks measure_peaks(const Target& target, int n_threads, double seconds, int64_t buffer) {
  const PeakLoops& loops = target.peaks();
  Team team(std::max(1, n_threads));
  Peaks peaks;
  peaks.buffer = buffer_bytes(buffer);
  const double part = seconds / 5;
  peaks.int8 = arithmetic_rate(team, part, loops.int8);
  peaks.f32 = arithmetic_rate(team, part, loops.f32);
  peaks.bf16 = arithmetic_rate(team, part, loops.bf16);
  peaks.read = read_rate(team, 2 * part, loops, peaks.buffer);
  return peaks;
}

}  // namespace weft
