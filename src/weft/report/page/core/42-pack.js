/* Packing: items with a lifetime and a size into as few bytes as possible (weft/allocate/pack.py).

   An item goes to the lowest offset that no item living at the same time covers. */

report.pack = (() => {
  const NO_LIMIT = 2 ** 63;
  const PAIRS = 200000;
  const PAIRS_PER_ITEM = 50;

  /** Orders of items; each compares two of them. */
  const orders = {
    size: (p, i, j) => p.sizes[j] - p.sizes[i] || length(p, j) - length(p, i) || p.starts[i] - p.starts[j],
    area: (p, i, j) => area(p, j) - area(p, i) || p.starts[i] - p.starts[j],
    length: (p, i, j) => length(p, j) - length(p, i) || p.sizes[j] - p.sizes[i],
    start: (p, i, j) => p.starts[i] - p.starts[j] || p.sizes[j] - p.sizes[i] || p.ends[j] - p.ends[i],
  };

  const length = (p, i) => p.ends[i] - p.starts[i];
  const area = (p, i) => p.sizes[i] * (p.ends[i] - p.starts[i] + 1);

  const order = (p, name) => p.sizes.map((_, i) => i).sort((i, j) => orders[name](p, i, j));

  /** The items of an arena, and for each those that live at the same time (null: very many pairs). */
  function problem(starts, ends, sizes, limit) {
    const p = { starts, ends, sizes, limit, pairs: 0, neighbours: null };
    const most = PAIRS + PAIRS_PER_ITEM * ends.length;
    const neighbours = ends.map(() => []);
    let live = [];
    for (const i of order(p, "start")) {
      live = live.filter((j) => ends[j] >= starts[i]);
      p.pairs += live.length;
      if (p.pairs > most) return p;
      for (const j of live) {
        neighbours[i].push(j);
        neighbours[j].push(i);
      }
      live.push(i);
    }
    p.neighbours = neighbours;
    return p;
  }

  /** Packs items in an order; with `start`, the first ones keep their places in it. */
  function pack(p, sequence, start = null, first = 0) {
    if (p.neighbours === null) return packDense(p, sequence);
    const n = sequence.length;
    const plan = {
      offsets: start ? [...start.offsets] : new Array(n).fill(-1),
      chunkOf: start ? [...start.chunkOf] : new Array(n).fill(0),
      chunks: [],
      limits: [],
    };
    if (start) for (let k = first; k < n; k += 1) plan.offsets[sequence[k]] = -1;
    if (p.limit === null) packOneChunk(p, sequence, first, plan);
    else packChunks(p, sequence, first, plan);
    return finished(plan);
  }

  function finished(plan) {
    plan.size = plan.chunks.reduce((a, b) => a + b, 0);
    return plan;
  }

  const byOffset = (a, b) => a[0] - b[0] || a[1] - b[1];

  function packOneChunk(p, sequence, first, plan) {
    const { offsets } = plan;
    for (let k = first; k < sequence.length; k += 1) {
      const i = sequence[k];
      const size = p.sizes[i];
      const occupied = [];
      for (const j of p.neighbours[i]) if (offsets[j] >= 0) occupied.push([offsets[j], p.sizes[j]]);
      occupied.sort(byOffset);
      let free = 0;
      for (const [low, bytes] of occupied) {
        if (low - free >= size) break;
        if (low + bytes > free) free = low + bytes;
      }
      offsets[i] = free;
    }
    if (offsets.length) {
      let top = 0;
      for (let i = 0; i < offsets.length; i += 1) top = Math.max(top, offsets[i] + p.sizes[i]);
      plan.chunks.push(top);
    }
  }

  function openChunks(n, plan, limit) {
    while (plan.chunks.length < n) {
      plan.chunks.push(0);
      plan.limits.push(limit);
    }
  }

  function packChunks(p, sequence, first, plan) {
    const { offsets, chunkOf, chunks, limits } = plan;
    const limit = p.limit || 0;
    for (let k = 0; k < first; k += 1) {
      const i = sequence[k];
      const c = chunkOf[i];
      openChunks(c + 1, plan, limit);
      const top = offsets[i] + p.sizes[i];
      chunks[c] = Math.max(chunks[c], top);
      limits[c] = Math.max(limits[c], top);
    }
    for (let k = first; k < sequence.length; k += 1) {
      const i = sequence[k];
      const size = p.sizes[i];
      const occupied = chunks.map(() => []);
      for (const j of p.neighbours[i]) {
        if (offsets[j] >= 0) occupied[chunkOf[j]].push([offsets[j], offsets[j] + p.sizes[j]]);
      }
      let best = -1;
      let least = 0;
      for (let c = 0; c < occupied.length; c += 1) {
        let free = 0;
        for (const [low, high] of occupied[c].sort(byOffset)) {
          if (low - free >= size) break;
          free = Math.max(free, high);
        }
        const growth = Math.max(0, free + size - chunks[c]);
        if (free + size <= limits[c] && (best < 0 || growth < least)) {
          best = c;
          least = growth;
          offsets[i] = free;
          if (growth === 0) break;
        }
      }
      if (best < 0) {
        best = chunks.length;
        offsets[i] = 0;
        openChunks(best + 1, plan, Math.max(limit, size));
      }
      chunkOf[i] = best;
      chunks[best] = Math.max(chunks[best], offsets[i] + size);
    }
  }

  /** For very many items that live at the same time: the first chunk that has room. */
  function packDense(p, sequence) {
    const n = sequence.length;
    const plan = { offsets: new Array(n).fill(0), chunkOf: new Array(n).fill(0), chunks: [], limits: [] };
    const placed = []; // items by offset
    for (const i of sequence) {
      const size = p.sizes[i];
      let chunk = -1;
      let offset = 0;
      for (let c = 0; c < plan.limits.length && chunk < 0; c += 1) {
        let free = 0;
        for (const j of placed) {
          if (p.starts[j] > p.ends[i] || p.ends[j] < p.starts[i] || plan.chunkOf[j] !== c) continue;
          if (plan.offsets[j] - free >= size) break;
          free = Math.max(free, plan.offsets[j] + p.sizes[j]);
        }
        if (free + size <= plan.limits[c]) [chunk, offset] = [c, free];
      }
      if (chunk < 0) {
        chunk = plan.chunks.length;
        plan.chunks.push(0);
        plan.limits.push(p.limit === null ? NO_LIMIT : Math.max(p.limit, size));
      }
      plan.offsets[i] = offset;
      plan.chunkOf[i] = chunk;
      plan.chunks[chunk] = Math.max(plan.chunks[chunk], offset + size);
      let at = 0;
      while (at < placed.length && plan.offsets[placed[at]] < offset) at += 1;
      placed.splice(at, 0, i);
    }
    return finished(plan);
  }

  return { problem, order, pack, orders: Object.keys(orders) };
})();
