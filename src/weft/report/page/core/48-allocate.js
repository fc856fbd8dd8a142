/* A place for every tensor of a graph (weft/allocate/plan.py): several planners, of which the smallest
   plan wins. */

report.allocate = (() => {
  const EFFORT = 2500000;
  const STAGES_WORTH = 64;

  /** Places of a structure's tensors with these sizes: {places, arenas}. A place has `arena`, `chunk`
      and `offset`; an arena `chunks`, `bytes`, `lower_bound` and `planner`. */
  function allocate(structure, sizes) {
    const { padded } = report.reference;
    const items = structure.arenas.map((arena) => ({
      starts: arena.items.map((item) => item[1]),
      ends: arena.items.map((item) => item[2]),
      longStarts: arena.items.map((item) => item[3]),
      longEnds: arena.items.map((item) => item[4]),
      sizes: arena.items.map((item) => padded(sizes[item[0]], arena.alignment)),
    }));
    const arenaOf = arenasOf(structure);
    const bounds = lowerBounds(structure, sizes, arenaOf);
    const packings = structure.arenas.map((arena, a) => smallest(items[a], bounds[a], arena.max_size));
    let plan = finished(structure, packings, bounds, arenaOf);
    const total = (p) => p.arenas.reduce((sum, arena) => sum + arena.bytes, 0);
    if (total(plan) > bounds.reduce((a, b) => a + b, 0)) {
      const { places, chunks } = report.reference.plan(structure, sizes);
      const bytes = chunks.flat().reduce((a, b) => a + b, 0);
      if (bytes < total(plan) && report.reference.isValid(structure, sizes, places)) {
        plan = { places, arenas: chunks.map((own, a) => arena(structure, a, own, bounds[a], "ggml")) };
      }
    }
    return overStages(structure, items, packings, bounds, arenaOf, total(plan)) || plan;

    function overStages(s, all, found, low, where, most) {
      if (!s.stages) return null;
      const longer = found.map((packing, a) => {
        if (!s.arenas[a].longer || s.arenas[a].max_size !== null) return packing;
        const { longStarts, longEnds, sizes: bytes } = all[a];
        const p = report.pack.problem(longStarts, longEnds, bytes, null);
        return report.improve(p, packing.size, Math.floor(EFFORT / 4));
      });
      const staged = finished(s, longer, low, where);
      return total(staged) <= most + Math.floor(most / STAGES_WORTH) ? staged : null;
    }
  }

  function smallest({ starts, ends, sizes }, bound, maxSize) {
    if (!sizes.length) return { offsets: [], chunkOf: [], chunks: [], size: 0, how: "size" };
    if (maxSize === null || bound <= maxSize) {
      const packing = report.improve(report.pack.problem(starts, ends, sizes, null), bound, EFFORT);
      if (maxSize === null || packing.size <= maxSize) return packing;
    }
    return report.improve(report.pack.problem(starts, ends, sizes, maxSize), bound, EFFORT);
  }

  /** The arena of each tensor: that of the first tensor in its item. */
  function arenasOf(structure) {
    const arenas = new Array(structure.parents.length);
    structure.arenas.forEach((arena, a) => arena.items.forEach(([first]) => (arenas[first] = a)));
    structure.parents.forEach((parent, tensor) => {
      if (parent >= 0) arenas[tensor] = arenas[parent];
    });
    return arenas;
  }

  /** The most bytes that are in use at any time, by arena. */
  function lowerBounds(structure, sizes, arenaOf) {
    const { padded } = report.reference;
    const changes = structure.arenas.map(() => new Float64Array(structure.times + 3));
    structure.spans.forEach(([start, end], tensor) => {
      const a = arenaOf[tensor];
      const { alignment } = structure.arenas[a];
      const change = changes[a];
      const parent = structure.parents[tensor];
      if (parent >= 0) {
        // the parent's bytes pass to the tensor now, not after it
        const old = padded(sizes[parent], alignment);
        change[start + 2] += old;
        change[start + 1] -= old;
      }
      const size = padded(sizes[tensor], alignment);
      change[start + 1] += size; // times begin at -1
      change[end + 2] -= size;
    });
    return changes.map((change) => {
      let now = 0;
      let peak = 0;
      for (const delta of change) {
        now += delta;
        peak = Math.max(peak, now);
      }
      return peak;
    });
  }

  function finished(structure, packings, bounds, arenaOf) {
    const places = new Array(arenaOf.length);
    packings.forEach((packing, a) => structure.arenas[a].items.forEach(([first], i) => {
      places[first] = { arena: a, chunk: packing.chunkOf[i], offset: packing.offsets[i] };
    }));
    structure.parents.forEach((parent, tensor) => {
      if (parent >= 0) places[tensor] = { ...places[parent] };
    });
    return {
      places,
      arenas: packings.map((packing, a) => arena(structure, a, packing.chunks, bounds[a], packing.how)),
    };
  }

  function arena(structure, a, chunks, bound, planner) {
    return {
      memory: structure.arenas[a].memory,
      chunks,
      bytes: chunks.reduce((x, y) => x + y, 0),
      lower_bound: bound,
      planner,
    };
  }

  return allocate;
})();
