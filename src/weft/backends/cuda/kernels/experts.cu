/* Sorts the columns of a product by the experts that they chose, and cuts those of an expert in
   tiles: `to` gets an int4 for each tile (its expert, its first column, the column behind its last
   one; expert -1: no tile), then the columns in their order, as numbers slot + slots * token. The
   order of an expert's columns may differ from run to run; no result depends on it. */

enum { THREADS = 512 };

static __device__ __forceinline__ int chosen(const uchar* pi, const tensor_t& ids, int i) {
  return *(const int*)(pi + ids.at + i % ids.ne[0] * ids.nb[0] + i / ids.ne[0] * ids.nb[1]);
}

/* Makes of counts where the columns of each expert begin, and writes the tiles; for one warp. */
static __device__ __forceinline__ void place(int* counts, int4* tiles, int n_experts, int n_tiles,
                                             int tile) {
  const int lane = (int)threadIdx.x;
  int before = 0, tiles_before = 0;
  for (int first = 0; first < n_experts; first += 32) {
    const int expert = first + lane, count = expert < n_experts ? counts[expert] : 0;
    const int n = (count + tile - 1) / tile;
    int end = count, tiles_end = n;
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
      const int a = __shfl_up_sync(0xffffffffu, end, by);
      const int b = __shfl_up_sync(0xffffffffu, tiles_end, by);
      if (lane < by) continue;
      end += a;
      tiles_end += b;
    }
    const int begin = before + end - count;
    for (int t = 0; t < n; t++)
      tiles[tiles_before + tiles_end - n + t] =
          make_int4(expert, begin + t * tile, min(begin + (t + 1) * tile, begin + count), 0);
    if (expert < n_experts) counts[expert] = begin;
    before += __shfl_sync(0xffffffffu, end, 31);
    tiles_before += __shfl_sync(0xffffffffu, tiles_end, 31);
  }
  for (int t = tiles_before + lane; t < n_tiles; t += 32) tiles[t] = make_int4(-1, 0, 0, 0);
}

/* One group of THREADS; `counts` has a number for each expert. */
extern "C" __global__ void __launch_bounds__(THREADS)
    by_expert(const uchar* pi, tensor_t ids, uchar* to, int n_experts, int n_tiles, int tile,
              int* fault, int step, shared_t<int> counts_of) {
  int* counts = counts_of;
  const int l = (int)threadIdx.x, n = ids.ne[0] * ids.ne[1];
  int4* tiles = (int4*)to;
  int* order = (int*)(tiles + n_tiles);
  for (int e = l; e < n_experts; e += THREADS) counts[e] = 0;
  __syncthreads();
  for (int i = l; i < n; i += THREADS) {
    const int expert = chosen(pi, ids, i);
    if (expert >= 0 && expert < n_experts)
      atomicAdd(&counts[expert], 1);
    else
      note_index(fault, step, expert, n_experts);
  }
  __syncthreads();
  if (l < 32) place(counts, tiles, n_experts, n_tiles, tile);
  __syncthreads();
  for (int i = l; i < n; i += THREADS) {
    const int expert = chosen(pi, ids, i);
    if (expert >= 0 && expert < n_experts) order[atomicAdd(&counts[expert], 1)] = i;
  }
}
