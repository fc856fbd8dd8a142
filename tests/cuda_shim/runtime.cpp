/* The runtime of kernels on a processor: barriers, exchanges between lanes, delayed copies, and the
   checks of every access. Threads of a block are fibres (fibres.h).

   Kernels are compiled with -fsanitize=thread but linked against the functions below instead of the
   sanitizer's library, so that each load and store comes by here. Shared memory remembers for every
   byte who wrote and read it last, and after which barrier: two threads at one byte, of which one
   writes, without a barrier of the block or of the warp in between, are a race. An access anywhere
   else must lie in memory that the launch was given, in the thread's stack, or in constants. */

#include "runtime.h"

#include <link.h>

#include "fibres.h"

namespace {

/* ---- checks -----------------------------------------------------------------------------------
 */

struct Range {
  uintptr_t begin, end;
  int writable;
};

/* Who was at a byte of shared memory last. */
struct Mark {
  unsigned epoch;    /* barriers of the block before */
  unsigned exchange; /* exchanges of the warp before */
  short thread;      /* -1: several of the warp */
  short warp;        /* -1: several */
};
struct Marks {
  Mark wrote, read;
};

std::vector<Range> ranges;
Range last_range;
std::vector<Marks> dynamic_marks, static_marks;
Range dynamic_range, static_range;

void conflict(const void* at, const char* mine, const char* theirs, const Mark& other) {
  char who[40] = "several threads";
  if (other.thread >= 0) snprintf(who, sizeof who, "thread %d", other.thread);
  const Range& range = (uintptr_t)at - dynamic_range.begin < dynamic_range.end - dynamic_range.begin
                           ? dynamic_range
                           : static_range;
  fail("it %s byte %zu of %s shared memory, which %s %s without a barrier in between", mine,
       (size_t)((uintptr_t)at - range.begin), &range == &dynamic_range ? "dynamic" : "static", who,
       theirs);
}

bool ordered(const Mark& before, int thread, int warp) {
  if (before.epoch != epoch || before.thread == thread) return true;
  return before.warp == warp && before.exchange != exchanges[warp];
}

void check_shared(Marks* marks, uintptr_t offset, size_t n, int writes, const void* at) {
  const short thread = (short)current, warp = (short)(current / 32);
  const Mark mine = {epoch, exchanges[warp], thread, warp};
  for (size_t i = 0; i < n; i++) {
    Marks& byte = marks[offset + i];
    if (!ordered(byte.wrote, thread, warp))
      conflict((const char*)at + i, writes ? "writes" : "reads", "wrote", byte.wrote);
    if (writes) {
      if (!ordered(byte.read, thread, warp))
        conflict((const char*)at + i, "writes", "read", byte.read);
      byte.wrote = mine;
      continue;
    }
    Mark& read = byte.read;
    if (read.epoch != epoch || read.thread == thread)
      read = mine;
    else if (read.warp != warp)
      read.warp = read.thread = -1;
    else if (read.exchange == mine.exchange)
      read.thread = -1;
    else
      read = mine;
  }
}

bool inside(const Range& range, uintptr_t at, size_t n) {
  return at >= range.begin && at + n <= range.end;
}

void check(const void* pointer, size_t n, int writes, bool atomic = false) {
  const uintptr_t at = (uintptr_t)pointer;
  if (!now.checks || now.failed) return;
  const uintptr_t stack = (uintptr_t)threads[current].fibre->stack;
  if (at - stack < STACK) return;
  if (inside(dynamic_range, at, n)) {
    if (!atomic) check_shared(dynamic_marks.data(), at - dynamic_range.begin, n, writes, pointer);
    return;
  }
  if (inside(static_range, at, n)) {
    if (!atomic) check_shared(static_marks.data(), at - static_range.begin, n, writes, pointer);
    return;
  }
  if (inside(last_range, at, n) && (!writes || last_range.writable)) return;
  for (const Range& range : ranges) {
    if (inside(range, at, n) && (!writes || range.writable)) {
      last_range = range;
      return;
    }
  }
  fail("it %s %zu bytes at %p, which is no memory of the launch%s", writes ? "writes" : "reads", n,
       pointer, inside(dynamic_range, at, 1) ? " (it ends behind shared memory)" : "");
}

/* The parts of the library that a function is in, and its section of shared arrays. */
struct Seeking {
  uintptr_t function;
  bool found;
};

int seek(dl_phdr_info* info, size_t, void* data) {
  Seeking& seeking = *(Seeking*)data;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const auto& part = info->dlpi_phdr[i];
    const uintptr_t begin = info->dlpi_addr + part.p_vaddr;
    if (part.p_type != PT_LOAD || seeking.function - begin >= part.p_memsz) continue;
    for (int k = 0; k < info->dlpi_phnum; k++) {
      const auto& other = info->dlpi_phdr[k];
      if (other.p_type != PT_LOAD) continue;
      const uintptr_t from = info->dlpi_addr + other.p_vaddr;
      ranges.push_back({from, from + other.p_memsz, 0});
    }
    seeking.found = true;
    return 1;
  }
  return 0;
}

}  // namespace

/* ---- what kernels call ------------------------------------------------------------------------
 */

extern "C" {

shim_now weft_shim_now;

void weft_shim_barrier() {
  threads[current].state = AT_BARRIER;
  yield();
}

void weft_shim_exchange(unsigned mask, const void* data, size_t n) {
  Thread& me = threads[current];
  if (!(mask >> (current % 32) & 1)) fail("it is not in the mask %08x of its own exchange", mask);
  if (n) memcpy(me.hands, data, n);
  me.mask = mask;
  me.state = AT_EXCHANGE;
  yield();
}

const void* weft_shim_lane(int lane) {
  const int t = current / 32 * 32 + lane;
  if (lane < 0 || lane > 31 || t >= n_threads || !(threads[current].mask >> lane & 1) ||
      snapshot_masks[t] != threads[current].mask)
    fail("it reads lane %d, which is not in the exchange", lane);
  return snapshot[t];
}

void weft_shim_copy(void* to, const void* from, int n) {
  if ((uintptr_t)to % (size_t)n || (uintptr_t)from % (size_t)n)
    fail("a copy of %d bytes from %p to %p is not aligned", n, from, to);
  threads[current].copies.push_back({to, from, n});
}

void weft_shim_commit() {
  Thread& me = threads[current];
  size_t in_groups = 0;
  for (size_t n : me.groups) in_groups += n;
  me.groups.push_back(me.copies.size() - in_groups);
}

void weft_shim_wait(int newest) {
  Thread& me = threads[current];
  while ((int)me.groups.size() > newest) {
    const size_t n = me.groups.front();
    for (size_t i = 0; i < n; i++) {
      const Copy copy = me.copies[i];
      check(copy.to, (size_t)copy.n, 1);
      if (copy.from) {
        check(copy.from, (size_t)copy.n, 0);
        memcpy(copy.to, copy.from, (size_t)copy.n);
      } else {
        memset(copy.to, 0, (size_t)copy.n);
      }
    }
    me.copies.erase(me.copies.begin(), me.copies.begin() + (long)n);
    me.groups.erase(me.groups.begin());
  }
}

void weft_shim_access(const void* at, size_t n, int writes, int atomic) {
  check(at, n, writes, atomic != 0);
}

/* Names that the compiler calls; the library of the sanitizer is not there. */
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
#define SHIM_ACCESS(n)                                         \
  void __tsan_read##n(void* at) { check(at, n, 0); }           \
  void __tsan_write##n(void* at) { check(at, n, 1); }          \
  void __tsan_unaligned_read##n(void* at) { check(at, n, 0); } \
  void __tsan_unaligned_write##n(void* at) { check(at, n, 1); }
SHIM_ACCESS(1)
SHIM_ACCESS(2)
SHIM_ACCESS(4)
SHIM_ACCESS(8)
SHIM_ACCESS(16)
void __tsan_read_range(void* at, size_t n) { check(at, n, 0); }
void __tsan_write_range(void* at, size_t n) { check(at, n, 1); }

/* ---- what Python calls ------------------------------------------------------------------------
 */

/* Runs a kernel over a grid. `known` has n_known triples (address, bytes, writable) that it may
   access; `shared_begin` and `shared_end` bound the arrays that the library declares as shared.
   Returns an empty text, or what went wrong. */
const char* weft_shim_launch(const char* name, void (*entry)(void**), const unsigned* grid,
                             const unsigned* block, size_t shared, void** args, int checks,
                             const uint64_t* known, int n_known, unsigned char* shared_begin,
                             unsigned char* shared_end) {
  now = {name, entry, args, checks, "", false};
  n_threads = (int)(block[0] * block[1] * block[2]);
  if (n_threads < 1 || n_threads > MOST) {
    snprintf(now.error, sizeof now.error, "kernel %s: blocks of %d threads", name, n_threads);
    return now.error;
  }
  if (grid[1] > 65535 || grid[2] > 65535) {
    snprintf(now.error, sizeof now.error, "kernel %s: a grid of %u x %u x %u blocks", name, grid[0],
             grid[1], grid[2]);
    return now.error;
  }
  dynamic_shared.resize(shared + 16);
  unsigned char* aligned = dynamic_shared.data() + (-(uintptr_t)dynamic_shared.data() & 15);
  dynamic_range = {(uintptr_t)aligned, (uintptr_t)aligned + shared, 1};
  static_range = {(uintptr_t)shared_begin, (uintptr_t)shared_end, 1};
  last_range = {0, 0, 0};
  if (checks) {
    dynamic_marks.assign(shared, Marks{});
    static_marks.assign((size_t)(shared_end - shared_begin), Marks{});
    epoch = 0;
    std::fill(exchanges, exchanges + MOST / 32, 0u);
    ranges.clear();
    for (int i = 0; i < n_known; i++)
      ranges.push_back({known[3 * i], known[3 * i] + known[3 * i + 1], (int)known[3 * i + 2]});
    ranges.push_back({(uintptr_t)&weft_shim_now, (uintptr_t)(&weft_shim_now + 1), 0});
    ranges.push_back({(uintptr_t)snapshot, (uintptr_t)snapshot + sizeof snapshot, 0});
    Seeking seeking = {(uintptr_t)entry, false};
    dl_iterate_phdr(seek, &seeking);
  }
  weft_shim_now.shared = aligned;
  weft_shim_now.threads = {block[0], block[1], block[2]};
  weft_shim_now.blocks = {grid[0], grid[1], grid[2]};
  int t = 0;
  for (unsigned z = 0; z < block[2]; z++)
    for (unsigned y = 0; y < block[1]; y++)
      for (unsigned x = 0; x < block[0]; x++) threads[t++].place = {x, y, z};
  for (unsigned z = 0; z < grid[2] && !now.failed; z++) {
    for (unsigned y = 0; y < grid[1] && !now.failed; y++) {
      for (unsigned x = 0; x < grid[0] && !now.failed; x++) {
        weft_shim_now.block = {x, y, z};
        run_block();
      }
    }
  }
  if (now.failed) drop();
  now.checks = 0;
  return now.error;
}
}
