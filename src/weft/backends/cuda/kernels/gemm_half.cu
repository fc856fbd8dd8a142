/* f16 or bf16 weights by many columns of activations in the same type (`narrow`), on tensor cores.
   Built for the type of the activations before (X), for weights in bf16 with TO_BF16, else in f16,
   and for the columns of a tile (TILE: 32, 64 or 128). Rows begin at multiples of 16 bytes and have
   a multiple of eight elements.

   With DECODED, weights are blocks of any format (W), which become bf16 on their way to shared
   memory, or f16 where tensor cores have no bf16.

   Sums are f32, in the order of elements, so that a result does not depend on how many columns
   there are. */

#if defined(DECODED) && __CUDA_ARCH__ >= 800
#define TO_BF16
#endif

enum {
  DEPTH = 32, /* elements of a stage: four pieces of 16 bytes a row */
  STAGES = 3,
};

static __device__ __forceinline__ uint two_of(float low, float high) {
#ifdef TO_BF16
  return pack_bf162(low, high);
#else
  return pack_half2(low, high);
#endif
}

/* A column in the type of the weights. For f16 it is multiplied by a power of two, so that its
   largest element is between 1 and 2 and none is infinite; `factors` has the inverses. A group of
   128 makes a column; `to` has (columns, elements), then comes a factor for each column. */
extern "C" __global__ void __launch_bounds__(128) narrow(const uchar* px, tensor_t x, uchar* to) {
  const long column = blockIdx.x, columns = (long)x.ne[1] * x.ne[2] * x.ne[3];
  const int i1 = (int)(column % x.ne[1]), i2 = (int)(column / x.ne[1] % x.ne[2]);
  const int i3 = (int)(column / x.ne[1] / x.ne[2]), n = x.ne[0];
  const uchar* from = px + x.at + i1 * x.nb[1] + i2 * x.nb[2] + i3 * x.nb[3];
  float factor = 1.0f;
#ifndef TO_BF16
  __shared__ uint of_warps[4];
  uint most = 0; /* sizes as bits; numbers that are not finite do not count */
  for (int i = (int)threadIdx.x; i < n; i += 128) {
    const uint size = __float_as_uint(X::one(from, i)) & 0x7fffffffu;
    if (size < 0x7f800000u) most = max(most, size);
  }
#pragma unroll
  for (int m = 16; m > 0; m /= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, m));
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = most;
  __syncthreads();
  most = max(max(of_warps[0], of_warps[1]), max(of_warps[2], of_warps[3]));
  /* 2^-e of a largest number between 2^e and 2^(e + 1); both it and its inverse are normal */
  const uint exponent = min(max(most >> 23, 1u), 253u);
  factor = __uint_as_float((254u - exponent) << 23);
  if (threadIdx.x == 0) ((float*)(to + 2 * columns * n))[column] = __uint_as_float(exponent << 23);
#else
  if (threadIdx.x == 0) ((float*)(to + 2 * columns * n))[column] = 1.0f;
#endif
  uint* words = (uint*)(to + 2 * column * n);
  for (int i = (int)threadIdx.x; i < n / 2; i += 128)
    words[i] = two_of(X::one(from, 2 * i) * factor, X::one(from, 2 * i + 1) * factor);
}

/* Piece p of row r is at place p ^ (r / 2 % 4), so that eight rows are in all banks. */
struct stage_t {
  words_t w[ROWS][DEPTH / 8], x[TILE][DEPTH / 8];
};

static __device__ __forceinline__ int place(int row, int piece) { return piece ^ (row / 2 % 4); }

struct tile_t {
  const uchar *w, *x;
  long w_nb;           /* bytes of a row of weights; columns have no gaps */
  int columns[COPIED]; /* those that this thread copies */
  int n, n_rows, row;
};

#ifdef DECODED
/* Each thread decodes half a unit of a row. */
static __device__ __forceinline__ void copy_weights(stage_t& stage, const tile_t& tile, int first) {
  const int r = (int)threadIdx.x % ROWS, second = (int)threadIdx.x / ROWS;
  const uchar* row = tile.w + min(tile.row + r, tile.n_rows - 1) * tile.w_nb;
  float16 low, high;
  JOIN(unit_, W)(row, first / DEPTH, &low, &high);
#pragma unroll
  for (int p = 0; p < 2; p++) {
    uint words[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int e = 8 * p + 2 * i;
      words[i] = second ? two_of(high.at(e), high.at(e + 1)) : two_of(low.at(e), low.at(e + 1));
    }
    stage.w[r][place(r, 2 * second + p)] = words_t{words[0], words[1], words[2], words[3]};
  }
}
#else
static __device__ __forceinline__ void copy_weights(stage_t& stage, const tile_t& tile, int first) {
  for (int i = (int)threadIdx.x; i < ROWS * DEPTH / 8; i += THREADS) {
    const int r = i / (DEPTH / 8), p = i % (DEPTH / 8), at = first + 8 * p;
    const uchar* row = tile.w + min(tile.row + r, tile.n_rows - 1) * tile.w_nb;
    cp_async16(&stage.w[r][place(r, p)], row + 2 * min(at, tile.n - 8), at < tile.n);
  }
}
#endif

static __device__ __forceinline__ void copy_columns(stage_t& stage, const tile_t& tile, int first) {
  const int p = (int)threadIdx.x % 4, at = first + 8 * p;
#pragma unroll
  for (int j = 0; j < COPIED; j++) {
    const int c = ((int)threadIdx.x + j * THREADS) / 4;
    if (c >= TILE) break;
    const uchar* column = tile.x + (long)tile.columns[j] * 2 * tile.n;
    cp_async16(&stage.x[c][place(c, p)], column + 2 * min(at, tile.n - 8), at < tile.n);
  }
}

static __device__ __forceinline__ void multiply_tile(float (&sum)[4], const uint (&a)[4],
                                                     const uint (&b)[2]) {
#ifdef TO_BF16
  mma_bf16(sum, a, b);
#else
  mma_f16(sum, a, b);
#endif
}

/* Adds the products of 16 elements; k: the number of these in the stage. */
static __device__ __forceinline__ void multiply_16(sums_t& sums, const stage_t& stage, int k) {
  const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
  const int row = warp % 4 * 32, column = warp / 4 * (TILE / 2);
  uint a[2][4];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int r = row + 16 * i + lane % 16;
    ldmatrix_x4(a[i], &stage.w[r][place(r, 2 * k + lane / 16)]);
  }
#pragma unroll
  for (int pair = 0; pair < N_TILES / 2; pair++) {
    uint b[4];
    const int c = column + 16 * pair + lane / 16 * 8 + lane % 8;
    ldmatrix_x4(b, &stage.x[c][place(c, 2 * k + lane / 8 % 2)]);
#pragma unroll
    for (int j = 0; j < 2; j++) {
      const uint both[2] = {b[2 * j], b[2 * j + 1]};
#pragma unroll
      for (int i = 0; i < 2; i++) multiply_tile(sums[i][2 * pair + j], a[i], both);
    }
  }
}

/* The sums of a tile. */
static __device__ __forceinline__ void multiply(sums_t& sums, const tile_t& tile) {
  __shared__ stage_t stages[STAGES];
  clear(sums);
  for (int s = 0; s < STAGES - 1; s++) {
    if (DEPTH * s < tile.n) {
      copy_columns(stages[s], tile, DEPTH * s);
      copy_weights(stages[s], tile, DEPTH * s);
    }
    cp_async_commit();
  }
  int slot = 0;
#pragma unroll 1
  for (int first = 0; first < tile.n; first += DEPTH) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    const int ahead = first + DEPTH * (STAGES - 1), into = slot == 0 ? STAGES - 1 : slot - 1;
    if (ahead < tile.n) {
      copy_columns(stages[into], tile, ahead);
      copy_weights(stages[into], tile, ahead);
    }
    cp_async_commit();
#pragma unroll
    for (int k = 0; k < DEPTH / 16; k++) multiply_16(sums, stages[slot], k);
    slot = slot == STAGES - 1 ? 0 : slot + 1;
  }
}

/* The tile of this block: rows of a matrix at `weights` by columns. */
template <class Columns>
static __device__ __forceinline__ tile_t tile_of(const uchar* weights, const tensor_t& w,
                                                 const uchar* px, const Columns& columns) {
  tile_t tile;
  tile.n = w.ne[0];
  tile.w = weights;
  tile.w_nb = w.nb[1];
  tile.x = px;
  tile.n_rows = w.ne[1];
  tile.row = (int)blockIdx.x * ROWS;
  copied_columns(tile.columns, columns);
  return tile;
}

/* What `narrow` leaves behind the columns. */
static __device__ __forceinline__ const float* factors_of(const uchar* px, const tensor_t& x) {
  return (const float*)(px + 2 * (long)x.ne[0] * x.ne[1] * x.ne[2] * x.ne[3]);
}

/* Groups of THREADS; grid (rows / ROWS, columns / TILE, ne2 * ne3). */
extern "C" __global__ void __launch_bounds__(THREADS)
    gemm_half(const uchar* pw, tensor_t w, const uchar* px, const uchar*, tensor_t x,
              const uchar* pb, tensor_t bias, uchar* pd, tensor_t d, int has_bias) {
  const int i2 = (int)blockIdx.z % d.ne[2], i3 = (int)blockIdx.z / d.ne[2];
  const matrix_columns columns = {(int)blockIdx.z * x.ne[1], (int)blockIdx.y * TILE, x.ne[1]};
  const uchar* weights =
      pw + w.at + i2 / (d.ne[2] / w.ne[2]) * w.nb[2] + i3 / (d.ne[3] / w.ne[3]) * w.nb[3];
  sums_t sums;
  multiply(sums, tile_of(weights, w, px, columns));
  const float* factors = factors_of(px, x);
  store(
      sums, columns, [&](int column) { return factors[column]; },
      pd + d.at + i2 * d.nb[2] + i3 * d.nb[3], d, pb, bias, has_bias);
}

/* The same of experts; grid (rows / ROWS, tiles). */
extern "C" __global__ void __launch_bounds__(THREADS)
    gemm_half_experts(const uchar* pw, tensor_t w, const uchar* px, const uchar* sorted,
                      int n_tiles, const uchar*, tensor_t x, const uchar*, tensor_t ids, uchar* pd,
                      tensor_t d) {
  const chosen_columns columns = chosen_by(sorted, n_tiles, ids, x);
  if (columns.expert < 0) return;
  sums_t sums;
  multiply(sums, tile_of(pw + w.at + columns.expert * w.nb[2], w, px, columns));
  const float* factors = factors_of(px, x);
  store(sums, columns, [&](int column) { return factors[column]; }, pd + d.at, d, px, x, 0);
}
