/* Sorts the columns of a product by the experts that they chose, and cuts those of an expert into
   tiles. `to` gets four numbers for each tile: its expert (-1: there is no such tile), its first
   column, the one behind its last, and none; then the columns in order, as slot + slots * token. An
   expert's columns keep their order. */

static inline int chosen(bytes_t pi, const tensor_t* ids, int slot, int token) {
  return *(const __global int*)(pi + at4(ids, slot, token, 0, 0));
}

/* One group, whose items have experts l, l + items, ...; `counts` has a number for each expert. */
__kernel void by_expert(bytes_t pi, tensor_t ids, __global int* to, int n_experts, int n_tiles,
                        int tile, __global int* fault, int step, LOCAL(int) counts) {
  const int l = get_local_id(0), items = get_local_size(0), slots = ids.ne[0];
  for (int i = l; i < slots * ids.ne[1]; i += items)
    checked_index(pi + at4(&ids, i % slots, i / slots, 0, 0), I32, n_experts, fault, step);
  for (int e = l; e < n_experts; e += items) {
    int count = 0;
    for (int token = 0; token < ids.ne[1]; token++)
      for (int slot = 0; slot < slots; slot++) count += chosen(pi, &ids, slot, token) == e;
    counts[e] = count;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int e = l; e < n_experts; e += items) {
    int at = 0, t = 0;
    for (int i = 0; i < e; i++) {
      at += counts[i];
      t += (counts[i] + tile - 1) / tile;
    }
    const int end = at + counts[e];
    for (int first = at; first < end; first += tile) {
      to[4 * t] = e;
      to[4 * t + 1] = first;
      to[4 * t + 2] = min(first + tile, end);
      t++;
    }
    if (e == n_experts - 1)
      for (; t < n_tiles; t++) to[4 * t] = -1;
    for (int token = 0; token < ids.ne[1]; token++) {
      for (int slot = 0; slot < slots; slot++) {
        if (chosen(pi, &ids, slot, token) != e) continue;
        to[4 * n_tiles + at] = slot + slots * token;
        at++;
      }
    }
  }
}
