/* Threads of a block as fibres, which change at barriers and at exchanges between lanes. */
#pragma once

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

#include "runtime.h"

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

std::vector<unsigned char> dynamic_shared;
unsigned epoch, exchanges[MOST / 32]; /* barriers of the block, and of its warps, so far */

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

}  // namespace
