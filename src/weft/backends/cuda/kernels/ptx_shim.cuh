/* The functions of ptx.cuh on a processor, by their definitions. Lanes exchange words through
   memory of their warp; copies to shared memory are done when they are waited for, and not before,
   so that a kernel that forgets to wait reads what was there. */

#pragma once

#include <cmath>
#include <cstring>

DEVICE uint4 load_once_16(const void* p) { return *(const uint4*)p; }

DEVICE unsigned choose_bytes(unsigned a, unsigned b, unsigned which) {
  const unsigned long long both = a | (unsigned long long)b << 32;
  unsigned result = 0;
  for (int i = 0; i < 4; i++)
    result |= (unsigned)(both >> (8 * (which >> (4 * i) & 7)) & 255) << (8 * i);
  return result;
}

DEVICE int dot4(unsigned a, unsigned b, int c) {
  for (int i = 0; i < 4; i++) c += (signed char)(a >> (8 * i)) * (signed char)(b >> (8 * i));
  return c;
}

DEVICE float float_of_bits(unsigned bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

DEVICE unsigned bits_of_float(float x) {
  unsigned bits;
  memcpy(&bits, &x, 4);
  return bits;
}

DEVICE int nearest(float x) {
  if (x != x) return 0;
  if (x >= 2147483648.0f) return 2147483647;
  return x <= -2147483648.0f ? -2147483647 - 1 : (int)std::nearbyint(x);
}

DEVICE float exp2_fast(float x) { return std::exp2(x); }

DEVICE float half_to_float(unsigned bits) {
  const unsigned sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, mantissa = bits & 1023;
  if (exponent == 31) return float_of_bits(sign | 0x7f800000u | mantissa << 13);
  if (exponent) return float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
  const float small = (float)mantissa * (1.0f / 16777216.0f);
  return sign ? -small : small;
}

DEVICE unsigned short float_to_half(float x) {
  const unsigned bits = bits_of_float(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) return (unsigned short)(sign | 0x7fffu);
  if (size >= 0x477ff000u) return (unsigned short)(sign | 0x7c00u);
  if (size < 0x38800000u) /* subnormal: a whole number of 2^-24 */
    return (unsigned short)(sign | (unsigned)std::nearbyint(float_of_bits(size) * 16777216.0f));
  return (unsigned short)(sign | ((size + 0xfffu + (size >> 13 & 1)) >> 13) - (112u << 10));
}

DEVICE unsigned two_halves(float low, float high) {
  return float_to_half(low) | (unsigned)float_to_half(high) << 16;
}

DEVICE unsigned shim_bf16(float x) {
  const unsigned bits = bits_of_float(x);
  return x != x ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}

DEVICE unsigned two_bf16(float low, float high) { return shim_bf16(low) | shim_bf16(high) << 16; }

/* ---- the threads of a block ---- */

DEVICE int shim_thread() {
  return (int)(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
}

/* Words that each lane of a warp shows the others. */
static thread_local unsigned shim_shown[1024][8];

DEVICE void shim_show(const unsigned* words, int n) {
  for (int i = 0; i < n; i++) shim_shown[shim_thread()][i] = words[i];
  __syncwarp();
}

DEVICE const unsigned* shim_seen(int lane) { return shim_shown[(shim_thread() & ~31) + lane]; }

/* ---- copies ---- */

struct shim_copy {
  void* to;
  const void* from;
  int bytes;
};

enum { SHIM_COPIES = 1024 };

/* A queue for each thread; `groups` are the ends of those that are closed. */
static thread_local struct {
  shim_copy copies[SHIM_COPIES];
  int n, n_groups, groups[16];
} shim_queues[1024];

template <int BYTES>
DEVICE void copy_async(void* to, const void* from) {
  auto& queue = shim_queues[shim_thread()];
  if (queue.n == SHIM_COPIES || (unsigned long long)to % BYTES || (unsigned long long)from % BYTES)
    __builtin_trap();
  queue.copies[queue.n++] = {to, from, BYTES};
}

DEVICE void copies_commit() {
  auto& queue = shim_queues[shim_thread()];
  if (queue.n_groups == 16) __builtin_trap();
  queue.groups[queue.n_groups++] = queue.n;
}

template <int LEFT>
DEVICE void copies_wait() {
  auto& queue = shim_queues[shim_thread()];
  const int done = queue.n_groups - LEFT;
  if (done <= 0) return;
  const int n = queue.groups[done - 1];
  for (int i = 0; i < n; i++)
    memcpy(queue.copies[i].to, queue.copies[i].from, queue.copies[i].bytes);
  memmove(queue.copies, queue.copies + n, (queue.n - n) * sizeof(shim_copy));
  queue.n -= n;
  for (int i = done; i < queue.n_groups; i++) queue.groups[i - done] = queue.groups[i] - n;
  queue.n_groups = LEFT;
}

/* ---- tensor cores ---- */

DEVICE void load_matrices_as(unsigned to[4], const void* row, bool turned) {
  const unsigned long long address = (unsigned long long)row;
  const unsigned shown[2] = {(unsigned)address, (unsigned)(address >> 32)};
  if (address % 16) __builtin_trap();
  shim_show(shown, 2);
  const int lane = shim_thread() % 32, g = lane / 4, t = lane % 4;
  for (int m = 0; m < 4; m++) {
    const void* rows[8];
    for (int r = 0; r < 8; r++) {
      const unsigned* s = shim_seen(8 * m + r);
      rows[r] = (const void*)(s[0] | (unsigned long long)s[1] << 32);
    }
    if (turned)
      to[m] = ((const unsigned short*)rows[2 * t])[g] |
              (unsigned)((const unsigned short*)rows[2 * t + 1])[g] << 16;
    else
      to[m] = ((const unsigned*)rows[g])[t];
  }
  __syncwarp();
}

DEVICE void load_matrices(unsigned to[4], const void* row) { load_matrices_as(to, row, false); }
DEVICE void load_matrices_turned(unsigned to[4], const void* row) {
  load_matrices_as(to, row, true);
}

/* Words of a (n_a of them) and b of all lanes; `multiply(a, b, sum)` adds the products of a word. A
   16 x K matrix a has K / 4 words a row: its registers are rows g and g + 8, then the next four
   words of both. */
template <typename Sum, typename Multiply>
DEVICE void shim_mma(Sum d[4], const unsigned* a, int n_a, const unsigned* b, Multiply multiply) {
  unsigned words[6];
  for (int i = 0; i < n_a; i++) words[i] = a[i];
  for (int i = 0; i < n_a / 2; i++) words[n_a + i] = b[i];
  shim_show(words, n_a + n_a / 2);
  const int lane = shim_thread() % 32, g = lane / 4, t = lane % 4;
  for (int i = 0; i < 4; i++)
    for (int part = 0; part < n_a / 2; part++)
      for (int k = 0; k < 4; k++)
        d[i] = multiply(shim_seen(4 * g + k)[2 * part + i / 2],
                        shim_seen(4 * (2 * t + i % 2) + k)[n_a + part], d[i]);
  __syncwarp();
}

DEVICE int shim_bytes(unsigned a, unsigned b, int sum) { return dot4(a, b, sum); }
DEVICE float shim_halves(unsigned a, unsigned b, float sum) {
  sum += half_to_float(a & 0xffffu) * half_to_float(b & 0xffffu);
  return sum + half_to_float(a >> 16) * half_to_float(b >> 16);
}
DEVICE float shim_bf16s(unsigned a, unsigned b, float sum) {
  sum += float_of_bits(a << 16) * float_of_bits(b << 16);
  return sum + float_of_bits(a & 0xffff0000u) * float_of_bits(b & 0xffff0000u);
}

DEVICE void mma_bytes_16(int d[4], const unsigned a[2], unsigned b) {
  shim_mma(d, a, 2, &b, shim_bytes);
}
DEVICE void mma_bytes_32(int d[4], const unsigned a[4], const unsigned b[2]) {
  shim_mma(d, a, 4, b, shim_bytes);
}
DEVICE void mma_f16(float d[4], const unsigned a[4], const unsigned b[2]) {
  shim_mma(d, a, 4, b, shim_halves);
}
DEVICE void mma_bf16(float d[4], const unsigned a[4], const unsigned b[2]) {
  shim_mma(d, a, 4, b, shim_bf16s);
}
