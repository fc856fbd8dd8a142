/* The runtime of kernels on a processor: threads of a block as fibres, barriers, exchanges between
   lanes, delayed copies, and the checks of every access.

   Kernels are compiled with -fsanitize=thread but linked against the functions below instead of the
   sanitizer's library, so that each load and store comes by here. Shared memory remembers for every
   byte who wrote and read it last, and after which barrier: two threads at one byte, of which one
   writes, without a barrier of the block or of the warp in between, are a race. An access anywhere
   else must lie in memory that the launch was given, in the thread's stack, or in constants. */

#include "runtime.h"

#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <vector>

#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace {

constexpr size_t STACK = 256 << 10;
constexpr int MOST = 1024; /* threads of a block */

/* ---- changing fibres --------------------------------------------------------------------------
 */

#ifdef __x86_64__
typedef void* context_t;

extern "C" void weft_shim_switch(context_t* from, context_t to);
asm(R"(
  .text
  .p2align 4
  .type weft_shim_switch, @function
weft_shim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size weft_shim_switch, .-weft_shim_switch
)");

void prepare(context_t* context, unsigned char* stack, void (*entry)()) {
  void** top = (void**)(stack + STACK - 64);
  *--top = 0; /* entry never returns; its stack is aligned as after a call */
  *--top = (void*)entry;
  for (int i = 0; i < 6; i++) *--top = 0;
  *context = top;
}

void change(context_t* from, context_t* to) { weft_shim_switch(from, *to); }
#else
typedef ucontext_t context_t;

void prepare(context_t* context, unsigned char* stack, void (*entry)()) {
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = STACK;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
}

void change(context_t* from, context_t* to) { swapcontext(from, to); }
#endif

/* ---- a launch ---------------------------------------------------------------------------------
 */

enum State { READY, AT_BARRIER, AT_EXCHANGE, DONE };

struct Copy {
  void* to;
  const void* from;
  int n;
};

struct Fibre {
  context_t context;
  unsigned char* stack;
};

struct Thread {
  Fibre* fibre;
  State state;
  unsigned mask;
  shim_place place;
  size_t handed; /* bytes */
  unsigned char hands[64];
  std::vector<Copy> copies;
  std::vector<size_t> groups; /* copies of each committed group, oldest first */
};

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

struct Launch {
  const char* name;
  void (*entry)(void**);
  void** args;
  int checks;
  char error[512];
  bool failed;
};

Launch now;
Thread threads[MOST];
int n_threads, current;
unsigned char snapshot[MOST][64];
unsigned snapshot_masks[MOST];
std::vector<Fibre*> idle;
context_t scheduler;

std::vector<Range> ranges;
Range last_range;
std::vector<unsigned char> dynamic_shared;
std::vector<Marks> dynamic_marks, static_marks;
Range dynamic_range, static_range;
unsigned epoch, exchanges[MOST / 32];

const char* place_text(char* to, size_t n) {
  const shim_now& p = weft_shim_now;
  snprintf(to, n, "block (%u, %u, %u), thread (%u, %u, %u)", p.block.x, p.block.y, p.block.z,
           p.thread.x, p.thread.y, p.thread.z);
  return to;
}

/* Ends the launch with a message; does not return to the kernel. */
[[noreturn]] void fail(const char* format, ...) {
  if (!now.failed) {
    char what[320], where[128];
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    va_end(list);
    snprintf(now.error, sizeof now.error, "kernel %s, %s: %s", now.name,
             place_text(where, sizeof where), what);
    now.failed = true;
  }
  context_t dropped;
  for (;;) change(&dropped, &scheduler);
}

void yield() { change(&threads[current].fibre->context, &scheduler); }

void body() {
  for (;;) {
    Thread& me = threads[current];
    now.entry(now.args);
    me.copies.clear();
    me.groups.clear();
    me.state = DONE;
    change(&me.fibre->context, &scheduler); /* the fibre may go on as another thread */
  }
}

Fibre* a_fibre() {
  if (!idle.empty()) {
    Fibre* fibre = idle.back();
    idle.pop_back();
    return fibre;
  }
  void* stack = mmap(nullptr, STACK, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED) return nullptr;
  Fibre* fibre = new Fibre;
  fibre->stack = (unsigned char*)stack;
  prepare(&fibre->context, fibre->stack, body);
  return fibre;
}

void resume(int t) {
  Thread& thread = threads[t];
  if (thread.fibre == nullptr) thread.fibre = a_fibre();
  current = t;
  if (thread.fibre == nullptr) {
    snprintf(now.error, sizeof now.error, "kernel %s: no memory for the stack of a thread",
             now.name);
    now.failed = true;
    return;
  }
  weft_shim_now.thread = thread.place;
  change(&scheduler, &thread.fibre->context);
  if (thread.state == DONE) {
    idle.push_back(thread.fibre);
    thread.fibre = nullptr;
  }
}

/* Lets the lanes of a warp go on whose partners have all handed in. */
bool release_warp(int warp) {
  const int first = 32 * warp, n = std::min(32, n_threads - first);
  bool released = false;
  for (int lane = 0; lane < n; lane++) {
    if (threads[first + lane].state != AT_EXCHANGE) continue;
    const unsigned mask = threads[first + lane].mask;
    bool all = true;
    for (int i = 0; i < n; i++) {
      const Thread& other = threads[first + i];
      if (mask >> i & 1 && other.state != DONE &&
          !(other.state == AT_EXCHANGE && other.mask == mask))
        all = false;
    }
    if (!all) continue;
    for (int i = 0; i < n; i++) {
      Thread& other = threads[first + i];
      if (!(mask >> i & 1) || other.state != AT_EXCHANGE) continue;
      memcpy(snapshot[first + i], other.hands, sizeof other.hands);
      snapshot_masks[first + i] = mask;
      other.state = READY;
    }
    exchanges[warp]++;
    released = true;
  }
  return released;
}

bool release_block() {
  int waiting = 0;
  for (int t = 0; t < n_threads; t++) {
    if (threads[t].state == AT_BARRIER)
      waiting++;
    else if (threads[t].state != DONE)
      return false;
  }
  if (!waiting) return false;
  for (int t = 0; t < n_threads; t++)
    if (threads[t].state == AT_BARRIER) threads[t].state = READY;
  epoch++;
  return true;
}

void run_block() {
  epoch++; /* what an earlier block did at shared memory is no conflict */
  if (!dynamic_shared.empty()) memset(dynamic_shared.data(), 0xff, dynamic_shared.size());
  for (int t = 0; t < n_threads; t++) threads[t].state = READY;
  for (;;) {
    for (int t = 0; t < n_threads; t++) {
      if (threads[t].state != READY) continue;
      resume(t);
      if (now.failed) return;
    }
    bool released = false, over = true;
    for (int warp = 0; 32 * warp < n_threads; warp++) released |= release_warp(warp);
    released = release_block() || released;
    for (int t = 0; t < n_threads; t++) over &= threads[t].state == DONE;
    if (over) return;
    if (!released) {
      int barrier = 0, exchange = 0;
      for (int t = 0; t < n_threads; t++) {
        barrier += threads[t].state == AT_BARRIER;
        exchange += threads[t].state == AT_EXCHANGE;
      }
      snprintf(
          now.error, sizeof now.error,
          "kernel %s, block (%u, %u, %u): %d threads wait at a barrier and %d for lanes of their "
          "warp, and nobody is left to come",
          now.name, weft_shim_now.block.x, weft_shim_now.block.y, weft_shim_now.block.z, barrier,
          exchange);
      now.failed = true;
      return;
    }
  }
}

/* Gives back the fibres of a launch that failed in the middle. */
void drop() {
  for (int t = 0; t < n_threads; t++) {
    Thread& thread = threads[t];
    if (thread.fibre) {
      prepare(&thread.fibre->context, thread.fibre->stack, body);
      idle.push_back(thread.fibre);
    }
    thread.fibre = nullptr;
    thread.copies.clear();
    thread.groups.clear();
  }
}

/* ---- checks -----------------------------------------------------------------------------------
 */

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
