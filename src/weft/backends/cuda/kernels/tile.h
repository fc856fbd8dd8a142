/* What products on tensor cores have in common. A block of eight warps computes ROWS rows by TILE
   columns; a warp 32 by TILE / 2. The columns of a tile are those of a matrix, or those that chose
   an expert (experts.cu): input() is the number of a column among all activations, output() the
   offset of its results in bytes. Columns behind the end are computed again and not stored. */

enum {
  ROWS = 128,
  THREADS = 256,
  N_TILES = TILE / 16,
  COPIED = TILE < 64 ? 1 : TILE / 64, /* columns of which a thread copies a quarter */
};

struct matrix_columns {
  int before, first, end; /* before: columns of other matrices */
  __device__ __forceinline__ bool has(int c) const { return first + c < end; }
  __device__ __forceinline__ int input(int c) const { return before + min(first + c, end - 1); }
  __device__ __forceinline__ long output(int c, const tensor_t& d) const {
    return (long)(first + c) * d.nb[1];
  }
};

struct chosen_columns {
  const int* order;                /* slot + slots * token, of one expert after another */
  int expert;                      /* -1: the block has no columns */
  int first, end, slots, of_token; /* of_token: columns that a token has, 1 or one for each slot */
  __device__ __forceinline__ bool has(int c) const { return first + c < end; }
  __device__ __forceinline__ int input(int c) const {
    const int chosen = order[min(first + c, end - 1)];
    return chosen / slots * of_token + chosen % slots % of_token;
  }
  __device__ __forceinline__ long output(int c, const tensor_t& d) const {
    const int chosen = order[first + c];
    return chosen % slots * d.nb[1] + chosen / slots * d.nb[2];
  }
};

/* The columns of block y of a product with experts. */
static __device__ __forceinline__ chosen_columns chosen_by(const uchar* sorted, int n_tiles,
                                                           const tensor_t& ids, const tensor_t& x) {
  const int4 tile = ((const int4*)sorted)[blockIdx.y];
  chosen_columns columns = {
      (const int*)(sorted + 16 * (long)n_tiles), tile.x, tile.y, tile.z, ids.ne[0], x.ne[1]};
  return columns;
}

/* The inputs of the columns that a thread copies quarters of. */
template <class Columns>
static __device__ __forceinline__ void copied_columns(int (&inputs)[COPIED],
                                                      const Columns& columns) {
#pragma unroll
  for (int j = 0; j < COPIED; j++)
    inputs[j] = columns.input(min(((int)threadIdx.x + j * THREADS) / 4, TILE - 1));
}

typedef float sums_t[2][N_TILES][4];

static __device__ __forceinline__ void clear(sums_t& sums) {
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int j = 0; j < N_TILES; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) sums[i][j][e] = 0.0f;
}

/* Stores the sums of block x, times factor(input) of their column, plus a bias. */
template <class Columns, class Factor>
static __device__ __forceinline__ void store(const sums_t& sums, const Columns& columns,
                                             Factor factor, uchar* to, const tensor_t& d,
                                             const uchar* pb, const tensor_t& bias, int has_bias) {
  const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < N_TILES; j++) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int c = warp / 4 * (TILE / 2) + 8 * j + lane % 4 * 2 + e;
      if (!columns.has(c)) continue;
      const float times = factor(columns.input(c));
      uchar* column = to + columns.output(c, d);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int row = (int)blockIdx.x * ROWS + warp % 4 * 32 + lane / 4 + 8 * i;
        if (row >= d.ne[0]) continue;
        const float add = has_bias ? *(const float*)(pb + bias.at + row * bias.nb[0]) : 0.0f;
        *(float*)(column + row * d.nb[0]) = fmaf(sums[i / 2][j][2 * (i % 2) + e], times, add);
      }
    }
  }
}
