// The thread pool: all work is done exactly once for any number of threads.
#include "threads/pool.h"

#include <atomic>
#include <thread>
#include <vector>

#include "check.h"

#if defined(__unix__)
#include <sys/wait.h>
#include <unistd.h>
#endif

#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif

namespace {

using weft::PoolOptions;
using weft::Priority;
using weft::ThreadPool;

// Rounds of pieces that threads claim. A round begins when the one before it is complete.
struct Rounds {
  ThreadPool* pool;
  int threads;
  uint32_t rounds;
  std::vector<int> results = std::vector<int>(64);  // not atomic: rounds must order the writes
  std::vector<std::atomic<int>> next = std::vector<std::atomic<int>>(rounds);
  std::vector<std::atomic<int>> left = std::vector<std::atomic<int>>(rounds);
  std::atomic<uint32_t> completed{0};
  std::atomic<bool> wrong{false};
};

void work(void* context, int thread) {
  auto& r = *static_cast<Rounds*>(context);
  if (thread >= r.threads) r.wrong = true;
  const auto n = static_cast<int>(r.results.size());
  for (uint32_t round; (round = r.completed.load(std::memory_order_acquire)) < r.rounds;) {
    int pieces = 0;
    for (int i; (i = r.next[round].fetch_add(1, std::memory_order_relaxed)) < n; ++pieces) {
      // Other threads wrote it in the round before.
      int& result = r.results[static_cast<size_t>(round % 2 == 0 ? i : n - 1 - i)];
      if (result != static_cast<int>(round)) r.wrong = true;
      ++result;
    }
    const int before = pieces > 0 ? r.left[round].fetch_add(pieces, std::memory_order_acq_rel) : 0;
    if (pieces > 0 && before + pieces == n) {
      r.completed.store(round + 1, std::memory_order_seq_cst);
      r.pool->wake(r.completed);
    } else {
      r.pool->wait(r.completed, round);
    }
  }
}

void run_rounds(ThreadPool& pool, int threads, int rounds) {
  Rounds r = {&pool, threads, static_cast<uint32_t>(rounds)};
  pool.run(work, &r, threads);
  CHECK(!r.wrong);
  for (int result : r.results) CHECK(result == rounds);
}

void all_work_is_done_once() {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    CHECK(pool.size() == threads);
    run_rounds(pool, threads, 200);
  }
}

void thread_counts_change_from_run_to_run() {
  Random random(1);
  for (int poll : {0, 50, 100}) {
    ThreadPool pool(PoolOptions{4, poll, Priority::kNormal, {}});
    for (int i = 0; i < 10000; ++i) run_rounds(pool, 1 + static_cast<int>(random.below(4)), 1);
  }
}

void two_callers_take_turns() {
  ThreadPool pool(3);
  const auto call = [&] {
    for (int i = 0; i < 500; ++i) run_rounds(pool, 1 + i % 3, 2);
  };
  std::thread other(call);
  call();
  other.join();
}

void pools_of_more_threads_than_cores_share_them() {
  const int threads = 2 * weft::usable_processors() + 1;
  ThreadPool a(threads);
  ThreadPool b(threads);
  std::thread other([&] { run_rounds(a, threads, 300); });
  run_rounds(b, threads, 300);
  other.join();
}

void scratch_is_apart_and_aligned() {
  ThreadPool pool(3);
  pool.reserve_scratch(100);
  pool.reserve_scratch(5000);
  pool.reserve_scratch(10);
  for (int i = 0; i < 3; ++i) {
    CHECK(reinterpret_cast<uintptr_t>(pool.scratch(i)) % 64 == 0);
    for (int k = 0; k < 5000; ++k) pool.scratch(i)[k] = static_cast<char>(i);
  }
}

void threads_run_where_they_are_put() {
  const weft::Cpus cpus = weft::usable_cpus();
  PoolOptions options{2, 50, Priority::kNormal, {{cpus.front()}, {cpus.back()}}};
  ThreadPool pool(options);
#if !defined(__linux__)
  CHECK(!pool.warnings().empty());  // it says that it cannot
  return;
#endif
  CHECK(pool.warnings().empty());
  std::atomic<int> at[2] = {-1, -1};
  const auto look = [](void* context, int thread) {
    auto* seen = static_cast<std::atomic<int>*>(context);
    seen[thread] = weft::current_cpu();
    // The caller waits for the other thread.
    while (thread == 0 && seen[1] < 0) std::this_thread::yield();
  };
  pool.run(look, at, 2);
  CHECK(at[0] == cpus.front() && at[1] == cpus.back());
  // The caller may run where it could before.
  CHECK(weft::usable_cpus() == cpus);
}

void a_refused_priority_gives_a_warning() {
  for (int threads : {1, 2}) {
    ThreadPool pool(PoolOptions{threads, 50, Priority::kRealtime, {}});
    run_rounds(pool, threads, 10);
    CHECK(pool.warnings().size() <= 1);
  }
  const weft::Cpus nowhere = {8191};
  ThreadPool pool(PoolOptions{2, 50, Priority::kNormal, {{}, nowhere}});
  CHECK(pool.warnings().size() == 1);
  run_rounds(pool, 2, 10);
}

void machine_is_described() {
  CHECK(weft::usable_processors() >= 1);
  CHECK(weft::usable_cores() >= 1 && weft::usable_cores() <= weft::usable_processors());
  size_t n = 0;
  for (const weft::Cpus& node : weft::numa_nodes()) n += node.size();
  CHECK(n == weft::usable_cpus().size());
}

void a_fork_starts_anew() {
#if defined(__unix__)
  if (kThreadSanitizer) return;  // it does not follow the threads of a child process
  ThreadPool pool(3);
  run_rounds(pool, 3, 10);
  const pid_t child = fork();
  if (child == 0) {
    run_rounds(pool, 3, 10);
    _exit(0);
  }
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  run_rounds(pool, 3, 10);
#endif
}

}  // namespace

int main() {
  RUN(all_work_is_done_once);
  RUN(thread_counts_change_from_run_to_run);
  RUN(two_callers_take_turns);
  RUN(pools_of_more_threads_than_cores_share_them);
  RUN(scratch_is_apart_and_aligned);
  RUN(threads_run_where_they_are_put);
  RUN(a_refused_priority_gives_a_warning);
  RUN(machine_is_described);
  RUN(a_fork_starts_anew);
  return 0;
}
