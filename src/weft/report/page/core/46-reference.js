/* The plan of the reference's graph allocator (weft/allocate/blocks.py, graph_allocator.py), which is
   taken where it is smaller, and the check of it (validate.py). */

report.reference = (() => {
  const MAX_CHUNKS = 16;
  const NO_LIMIT = 2 ** 63;

  const padded = (size, alignment) => Math.ceil(size / alignment) * alignment;

  /** Free blocks of one memory: best fit. */
  class Blocks {
    constructor(alignment, maxSize) {
      this.alignment = alignment;
      this.limit = maxSize === null ? NO_LIMIT : maxSize;
      this.chunks = [];
    }

    alloc(bytes) {
      const size = padded(bytes, this.alignment);
      let [number, block] = this.hole(size);
      if (block < 0) [number, block] = this.end(size);
      if (block < 0) [number, block] = [this.open(size), 0];
      const chunk = this.chunks[number];
      const offset = chunk.offsets[block];
      if (chunk.sizes[block] === size) {
        chunk.offsets.splice(block, 1);
        chunk.sizes.splice(block, 1);
      } else {
        chunk.offsets[block] = offset + size;
        chunk.sizes[block] -= size;
      }
      chunk.max = Math.max(chunk.max, offset + size);
      return [number, offset];
    }

    hole(size) {
      let place = [-1, -1];
      this.chunks.forEach((chunk, number) => {
        let best = -1;
        for (let i = 0; i < chunk.sizes.length - 1; i += 1) {
          if (chunk.sizes[i] >= size && (best < 0 || chunk.sizes[i] <= best)) {
            best = chunk.sizes[i];
            place = [number, i];
          }
        }
      });
      return place;
    }

    end(size) {
      let place = [-1, -1];
      let best = null;
      this.chunks.forEach((chunk, number) => {
        const last = chunk.sizes.length - 1;
        if (last < 0 || chunk.sizes[last] < size) return;
        const spare = chunk.max - chunk.offsets[last] - size;
        if (best === null || (best < 0 && spare > best) || (0 <= spare && spare < best)) {
          place = [number, last];
          best = spare;
        }
      });
      return place;
    }

    open(size) {
      let capacity = Math.max(size, this.limit);
      if (this.chunks.length >= MAX_CHUNKS - 1) capacity = Math.max(size, NO_LIMIT);
      this.chunks.push({ offsets: [0], sizes: [capacity], max: 0 });
      return this.chunks.length - 1;
    }

    free(number, offset, bytes) {
      const size = padded(bytes, this.alignment);
      const { offsets, sizes } = this.chunks[number];
      const end = offset + size;
      for (let i = 0; i < offsets.length; i += 1) {
        if (offsets[i] + sizes[i] === offset) {
          sizes[i] += size;
          if (i + 1 < offsets.length && offsets[i] + sizes[i] === offsets[i + 1]) {
            sizes[i] += sizes[i + 1];
            offsets.splice(i + 1, 1);
            sizes.splice(i + 1, 1);
          }
          return;
        }
        if (offsets[i] === end) {
          offsets[i] = offset;
          sizes[i] += size;
          if (i > 0 && offsets[i - 1] + sizes[i - 1] === offset) {
            sizes[i - 1] += sizes[i];
            offsets.splice(i, 1);
            sizes.splice(i, 1);
          }
          return;
        }
      }
      let at = 0;
      while (at < offsets.length && offsets[at] < offset) at += 1;
      offsets.splice(at, 0, offset);
      sizes.splice(at, 0, size);
    }
  }

  /** The places that the recorded events give: {places, arenas} as `report.allocate` returns them. */
  function plan(structure, sizes) {
    const blocks = structure.arenas.map((a) => new Blocks(a.alignment, a.max_size));
    const places = new Array(sizes.length);
    for (const [kind, tensor, other] of structure.events) {
      if (kind === "a") {
        const arena = structure.arena_of[other];
        const [chunk, offset] = blocks[arena].alloc(sizes[tensor]);
        places[tensor] = { arena, chunk, offset };
      } else if (kind === "t") {
        const place = places[other];
        places[tensor] = { ...place };
        const own = blocks[place.arena];
        const have = padded(sizes[other], own.alignment);
        const need = padded(sizes[tensor], own.alignment);
        if (have > need) own.free(place.chunk, place.offset + need, have - need);
      } else {
        const place = places[tensor];
        blocks[place.arena].free(place.chunk, place.offset, sizes[tensor]);
      }
    }
    return { places, chunks: blocks.map((own) => own.chunks.map((chunk) => chunk.max)) };
  }

  /** Whether no two values that are needed at the same time share bytes. */
  function isValid(structure, sizes, places) {
    if (!structure.usable) return false;
    const live = new Map();
    for (const [now, tensor] of structure.writes) {
      const at = places[tensor];
      if (sizes[tensor] === 0) continue;
      const key = `${at.arena},${at.chunk}`;
      const kept = [];
      for (const other of live.get(key) || []) {
        if (structure.until[other] < now) continue;
        const there = places[other];
        const apart = there.offset >= at.offset + sizes[tensor] || at.offset >= there.offset + sizes[other];
        if (apart) {
          kept.push(other);
          continue;
        }
        const replaces = at.offset === there.offset && structure.until[other] === now
          && structure.over[tensor].includes(other);
        if (!replaces) return false;
      }
      kept.push(tensor);
      live.set(key, kept);
    }
    return true;
  }

  return { plan, isValid, padded };
})();
