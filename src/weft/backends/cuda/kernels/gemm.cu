/* Weights in planes by many columns of activations as bytes (quantize.cu), on tensor cores. Built
   for the format of the weights (W) and the columns of a tile (TILE: 32, 64 or 128).

   Units go through shared memory as they lie in planes, in stages that are copied while others are
   multiplied: word t of a row's codes has just the elements that lane 4 g + t needs, so that they
   become bytes in registers. Products of a unit are whole numbers; they are scaled and added to f32
   sums unit by unit, in order, so that a result does not depend on how many columns there are. */

typedef W format;

enum {
  DEPTH = 2, /* units of a stage */
  EXTRA_WORDS = format::EXTRA / 4,
  SCALES = 1 + format::TWO + format::MIN, /* d0, d1, m0, m1 */
};

/* A product as f32 is its bits behind those of 1.5 * 2^23, less that number. */
enum { AS_FLOAT = 0x4b400000 };

struct stage_t {
  uint4 codes[DEPTH][format::CODES ? format::CODES : 1][format::CODES ? ROWS : 1];
  uint4 x[DEPTH][2][TILE]; /* the halves of units of activations */
  uint2 heads[DEPTH][TILE];
  uint rest[DEPTH * ROWS * (EXTRA_WORDS + SCALES)]; /* extra words, then the scales as floats */
};

/* What a block of every architecture has room for. */
enum { STAGES = 3 * sizeof(stage_t) <= 49152 ? 3 : 2 };

/* Places in `rest`. */
static __device__ __forceinline__ int extra_at(int k, int row) {
  return EXTRA_WORDS * (k * ROWS + row);
}

static __device__ __forceinline__ int scale_at(int which, int k, int row) {
  return (EXTRA_WORDS * DEPTH + which * DEPTH + k) * ROWS + row;
}

struct tile_t {
  planes_of w;
  bytes_of x;
  long rows;           /* the units before the matrix */
  int columns[COPIED]; /* the units before the columns that this thread copies */
  int n, n_rows, row;
};

/* Starts the copies of the units u .. u + DEPTH - 1. */
static __device__ __forceinline__ void copy_stage(stage_t& stage, const tile_t& tile, int u) {
  const uint4* codes = (const uint4*)tile.w.all;
  const uint* extra = (const uint*)(tile.w.all + format::EXTRA_AT * tile.w.n);
  for (int i = (int)threadIdx.x; i < DEPTH * ROWS; i += THREADS) {
    const int r = i / DEPTH, k = i % DEPTH;
    const long unit =
        tile.rows + (long)min(tile.row + r, tile.n_rows - 1) * tile.n + min(u + k, tile.n - 1);
#pragma unroll
    for (int c = 0; c < format::CODES; c++)
      cp_async16(&stage.codes[k][c][r], codes + c * tile.w.n + unit);
    uint* rest = &stage.rest[extra_at(k, r)];
    if (format::EXTRA == 8) cp_async8(rest, extra + 2 * unit);
    if (format::EXTRA == 4) cp_async4(rest, extra + unit);
    if (format::EXTRA == 12) { /* places are aligned to four bytes only */
      cp_async4(rest, extra + 2 * unit);
      cp_async4(rest + 1, extra + 2 * unit + 1);
      cp_async4(rest + 2, extra + 2 * tile.w.n + unit);
    }
  }
  const uint4* x = (const uint4*)tile.x.all;
  const uint2* heads = (const uint2*)(tile.x.all + 32 * tile.x.n);
  const int k = (int)threadIdx.x / 2 % DEPTH, half = (int)threadIdx.x % 2;
#pragma unroll
  for (int j = 0; j < COPIED; j++) {
    const int c = ((int)threadIdx.x + j * THREADS) / 4;
    if (c >= TILE) break;
    const int unit = tile.columns[j] + min(u + k, tile.n - 1);
    cp_async16(&stage.x[k][half][c], x + 2 * (long)unit + half);
    if (half == 0) cp_async8(&stage.heads[k][c], heads + unit);
  }
}

/* The scales of a stage: each thread has a row of one of the two units. */
struct loaded_scales {
  format::head_t head;
  long unit;
  bool valid;
};

static __device__ __forceinline__ loaded_scales load_scales(const tile_t& tile, int u) {
  const int r = (int)threadIdx.x % ROWS, k = (int)threadIdx.x / ROWS;
  loaded_scales loaded;
  loaded.unit =
      tile.rows + (long)min(tile.row + r, tile.n_rows - 1) * tile.n + min(u + k, tile.n - 1);
  loaded.head = format::head(tile.w, loaded.unit);
  loaded.valid = u + k < tile.n; /* units behind the end count nothing */
  return loaded;
}

static __device__ __forceinline__ void store_scales(stage_t& stage, const loaded_scales& loaded) {
  const int r = (int)threadIdx.x % ROWS, k = (int)threadIdx.x / ROWS;
  const scales_t s = format::scales(loaded.head, loaded.unit);
  const float all[4] = {s.d0, format::TWO ? s.d1 : s.m0, format::TWO ? s.m0 : s.m1, s.m1};
#pragma unroll
  for (int i = 0; i < SCALES; i++)
    stage.rest[scale_at(i, k, r)] = loaded.valid ? __float_as_uint(all[i]) : 0;
}

static __device__ __forceinline__ float scaled(float sum, float d, int product) {
  return fmaf(d, __int_as_float(product) - 12582912.0f, sum);
}

static __device__ __forceinline__ void multiply_unit(sums_t& sums, const stage_t& stage, int k) {
  const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int row = warp % 4 * 32, column = warp / 4 * (TILE / 2);
  uint w0[4] = {0, 0, 0, 0}, w1[4] = {0, 0, 0, 0}; /* word t of rows g, g + 8, g + 16, g + 24 */
  if constexpr (format::CODES > 0) ldmatrix_x4(w0, &stage.codes[k][0][row + lane]);
  if constexpr (format::CODES == 2) ldmatrix_x4(w1, &stage.codes[k][1][row + lane]);
  uint a[2][4];
  float d[2][2], d1[2][2], m[2][2], m1[2][2];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int r = row + g + 8 * i;
    uint extra = 0, bits = 0;
    if (format::EXTRA) extra = stage.rest[extra_at(k, r) + format::extra_word(t)];
    if (format::EXTRA == 12) bits = stage.rest[extra_at(k, r) + 2];
    format::codes(w0[i], w1[i], extra, bits, t, a[i / 2][i % 2], a[i / 2][2 + i % 2]);
    d[i / 2][i % 2] = __uint_as_float(stage.rest[scale_at(0, k, r)]);
    d1[i / 2][i % 2] = __uint_as_float(stage.rest[scale_at(format::TWO, k, r)]);
    m[i / 2][i % 2] =
        __uint_as_float(stage.rest[scale_at(SCALES - (format::MIN == 2 ? 2 : 1), k, r)]);
    m1[i / 2][i % 2] = __uint_as_float(stage.rest[scale_at(SCALES - 1, k, r)]);
  }
#pragma unroll
  for (int pair = 0; pair < N_TILES / 2; pair++) {
    uint b[4];
    ldmatrix_x4(b, &stage.x[k][lane / 8 % 2][column + 16 * pair + lane / 16 * 8 + lane % 8]);
#pragma unroll
    for (int j = 0; j < 2; j++) {
      const uint4 heads = *(const uint4*)&stage.heads[k][column + 16 * pair + 8 * j + 2 * t];
      const unit_t x[2] = {unit_of(make_uint2(heads.x, heads.y)),
                           unit_of(make_uint2(heads.z, heads.w))};
#pragma unroll
      for (int i = 0; i < 2; i++) {
        float (&sum)[4] = sums[i][2 * pair + j];
        if constexpr (format::TWO) {
          int p[4], q[4];
#pragma unroll
          for (int e = 0; e < 4; e++) {
            p[e] = AS_FLOAT - format::OFFSET * x[e % 2].s0;
            q[e] = AS_FLOAT - format::OFFSET * x[e % 2].s1;
          }
          const uint first[2] = {a[i][0], a[i][1]}, second[2] = {a[i][2], a[i][3]};
          mma_s8_16(p, first, b[2 * j]);
          mma_s8_16(q, second, b[2 * j + 1]);
#pragma unroll
          for (int e = 0; e < 4; e++) {
            sum[e] = scaled(sum[e], d[i][e / 2] * x[e % 2].d, p[e]);
            sum[e] = scaled(sum[e], d1[i][e / 2] * x[e % 2].d, q[e]);
          }
        } else {
          int p[4];
#pragma unroll
          for (int e = 0; e < 4; e++)
            p[e] = AS_FLOAT - format::OFFSET * (x[e % 2].s0 + x[e % 2].s1);
          const uint both[2] = {b[2 * j], b[2 * j + 1]};
          mma_s8(p, a[i], both);
#pragma unroll
          for (int e = 0; e < 4; e++) sum[e] = scaled(sum[e], d[i][e / 2] * x[e % 2].d, p[e]);
        }
        if constexpr (format::MIN == 1) {
#pragma unroll
          for (int e = 0; e < 4; e++)
            sum[e] = fmaf(m[i][e / 2], x[e % 2].d * (float)(x[e % 2].s0 + x[e % 2].s1), sum[e]);
        }
        if constexpr (format::MIN == 2) {
#pragma unroll
          for (int e = 0; e < 4; e++) {
            sum[e] = fmaf(m[i][e / 2], x[e % 2].d * (float)x[e % 2].s0, sum[e]);
            sum[e] = fmaf(m1[i][e / 2], x[e % 2].d * (float)x[e % 2].s1, sum[e]);
          }
        }
      }
    }
  }
}

/* The sums of a tile. */
static __device__ __forceinline__ void multiply(sums_t& sums, const tile_t& tile) {
  __shared__ stage_t stages[STAGES];
  clear(sums);
  for (int s = 0; s < STAGES - 1; s++) {
    if (DEPTH * s < tile.n) {
      copy_stage(stages[s], tile, DEPTH * s);
      store_scales(stages[s], load_scales(tile, DEPTH * s));
    }
    cp_async_commit();
  }
  int slot = 0;
#pragma unroll 1
  for (int u = 0; u < tile.n; u += DEPTH) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    const int ahead = u + DEPTH * (STAGES - 1), into = slot == 0 ? STAGES - 1 : slot - 1;
    loaded_scales loaded = {};
    if (ahead < tile.n) {
      copy_stage(stages[into], tile, ahead);
      loaded = load_scales(tile, ahead); /* under way while this stage is multiplied */
    }
    cp_async_commit();
#pragma unroll 1 /* two units at once need more registers than there are */
    for (int k = 0; k < DEPTH; k++) multiply_unit(sums, stages[slot], k);
    if (ahead < tile.n) store_scales(stages[into], loaded);
    slot = slot == STAGES - 1 ? 0 : slot + 1;
  }
}

/* The tile of this block: rows of matrix `matrix` of weights by columns. */
template <class Columns>
static __device__ __forceinline__ tile_t tile_of(const uchar* pw, const tensor_t& w, long matrix,
                                                 const uchar* px, const tensor_t& x,
                                                 const Columns& columns) {
  tile_t tile;
  tile.n = w.ne[0] / 32;
  tile.w.all = pw + w.at;
  tile.w.n = (long)tile.n * w.ne[1] * w.ne[2] * w.ne[3];
  tile.x.all = px;
  tile.x.n = (long)tile.n * x.ne[1] * x.ne[2] * x.ne[3];
  tile.n_rows = w.ne[1];
  tile.rows = matrix * w.ne[1] * tile.n;
  tile.row = (int)blockIdx.x * ROWS;
  copied_columns(tile.columns, columns);
#pragma unroll
  for (int j = 0; j < COPIED; j++) tile.columns[j] *= tile.n;
  return tile;
}

static __device__ __forceinline__ float unscaled(int) { return 1.0f; }

/* Groups of THREADS; grid (rows / ROWS, columns / TILE, ne2 * ne3). */
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gemm(const uchar* pw, tensor_t w, const uchar* px, const uchar*, tensor_t x, const uchar* pb,
         tensor_t bias, uchar* pd, tensor_t d, int has_bias) {
  const int i2 = (int)blockIdx.z % d.ne[2], i3 = (int)blockIdx.z / d.ne[2];
  const long matrix = (long)(i3 / (d.ne[3] / w.ne[3])) * w.ne[2] + i2 / (d.ne[2] / w.ne[2]);
  const matrix_columns columns = {(int)blockIdx.z * x.ne[1], (int)blockIdx.y * TILE, x.ne[1]};
  sums_t sums;
  multiply(sums, tile_of(pw, w, matrix, px, x, columns));
  uchar* to = pd + d.at + i2 * d.nb[2] + i3 * d.nb[3];
  store(sums, columns, unscaled, to, d, pb, bias, has_bias);
}

/* The same of experts; grid (rows / ROWS, tiles). */
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gemm_experts(const uchar* pw, tensor_t w, const uchar* px, const uchar* sorted, int n_tiles,
                 const uchar*, tensor_t x, const uchar*, tensor_t ids, uchar* pd, tensor_t d) {
  const chosen_columns columns = chosen_by(sorted, n_tiles, ids, x);
  if (columns.expert < 0) return;
  sums_t sums;
  multiply(sums, tile_of(pw, w, columns.expert, px, x, columns));
  /* read again, so that they take no registers meanwhile */
  store(sums, chosen_by(sorted, n_tiles, ids, x), unscaled, pd + d.at, d, px, x, 0);
}
