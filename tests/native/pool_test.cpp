// The thread pool: every thread of a run meets every other, whatever their number, and none is left
// behind.
#include "threads/pool.h"

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

// Each round every thread adds one to its own number; after the barrier all see the same sum.
struct Rounds {
  ThreadPool* pool;
  int threads;
  int rounds;
  std::vector<int64_t> counts;  // not atomic: the barrier has to order them
  std::vector<char> wrong;
};

void count(void* context, int thread) {
  auto& r = *static_cast<Rounds*>(context);
  for (int round = 1; round <= r.rounds; ++round) {
    ++r.counts[static_cast<size_t>(thread)];
    r.pool->meet();
    int64_t sum = 0;
    for (int64_t c : r.counts) sum += c;
    if (sum != int64_t{round} * r.threads) r.wrong[static_cast<size_t>(thread)] = 1;
    r.pool->meet();
  }
}

void run_rounds(ThreadPool& pool, int threads, int rounds) {
  Rounds r = {&pool, threads, rounds, std::vector<int64_t>(static_cast<size_t>(threads)),
              std::vector<char>(static_cast<size_t>(threads))};
  pool.run(count, &r, threads);
  for (size_t i = 0; i < r.counts.size(); ++i) {
    CHECK(r.counts[i] == rounds);
    CHECK(r.wrong[i] == 0);
  }
}

void every_thread_meets_every_other() {
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
  CHECK(pool.warnings().empty());
  int at[2] = {-1, -1};
  pool.run(
      [](void* context, int thread) { static_cast<int*>(context)[thread] = weft::current_cpu(); },
      at, 2);
  CHECK(at[0] == cpus.front() && at[1] == cpus.back());
  // the caller is where it was
  CHECK(weft::usable_cpus() == cpus);
}

void a_refused_priority_is_said() {
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
  if (kThreadSanitizer) return;  // it follows no threads of a child
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
  RUN(every_thread_meets_every_other);
  RUN(thread_counts_change_from_run_to_run);
  RUN(two_callers_take_turns);
  RUN(pools_of_more_threads_than_cores_share_them);
  RUN(scratch_is_apart_and_aligned);
  RUN(threads_run_where_they_are_put);
  RUN(a_refused_priority_is_said);
  RUN(machine_is_described);
  RUN(a_fork_starts_anew);
  return 0;
}
