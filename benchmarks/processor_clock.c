/* Preloaded into an engine, answers its clocks with the time that its process used of processors,
   so that other work on the machine counts for little. `bench_peer.py` compiles it. */
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec* time) {
  const int asks_for_now = clock == CLOCK_REALTIME || clock == CLOCK_MONOTONIC;
  return (int)syscall(SYS_clock_gettime, asks_for_now ? CLOCK_PROCESS_CPUTIME_ID : clock, time);
}
