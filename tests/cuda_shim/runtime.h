/* What kernels compiled for this processor ask of the shim's runtime (runtime.cpp). */
#pragma once

#include <stddef.h>
#include <stdint.h>

extern "C" {

struct shim_place {
  unsigned x, y, z;
};

/* Where the running thread is; set by the runtime whenever it changes threads. */
struct shim_now {
  shim_place thread, block, threads, blocks;
  unsigned char* shared; /* the block's dynamic shared memory */
};

extern shim_now weft_shim_now;

/* Waits for all threads of the block that have not returned. */
void weft_shim_barrier();

/* Hands in up to 64 bytes and waits for the lanes of `mask`; then `weft_shim_lane` has theirs. */
void weft_shim_exchange(unsigned mask, const void* data, size_t n);
const void* weft_shim_lane(int lane);

/* Copies that arrive at a wait, as cp.async makes them; without a source, zeros. */
void weft_shim_copy(void* to, const void* from, int n);
void weft_shim_commit();
void weft_shim_wait(int newest);

/* Checks an access that is not a plain load or store. */
void weft_shim_access(const void* at, size_t n, int writes, int atomic);
}
