/* Memory at the sliders' position: the bytes of every buffer and a place for every tensor.

   A layout is {position, exact, rows, regimes}. `rows` are those of `weft explain --json`. A regime has
   `label`, `times`, `arenas` (memory, chunks, bytes, lower_bound, planner) and `tensors`, a list of
   {name, bytes, arena, chunk, offset, start, end}; `byName` finds them. Where weft planned these sizes,
   `exact` is true; elsewhere there are no places: arenas have the bytes of their lower bounds, by
   formulas, and no tensors. */

/** The variant that covers a position, or null. */
report.variant = (sliders, position) => {
  const ub = Math.min(position.ub, position.ctx);
  const within = (classes, n) => classes.findIndex(([low, high]) => low <= n && n <= high);
  const i = within(sliders.classes.ub, ub);
  const j = within(sliders.classes.seqs, position.seqs);
  const small = sliders.window > 0 && sliders.window * position.seqs + ub < position.ctx;
  const number = sliders.at[`${i},${j},${position.k},${position.v},${Number(small)}`];
  return number === undefined ? null : sliders.variants[number];
};

/** The layout of the plan itself, as Python made it. */
report.plannedLayout = (data) => ({
  position: data.sliders && data.sliders.base ? data.sliders.base : null,
  planned: true,
  exact: true,
  rows: data.memory,
  regimes: data.regimes.map((regime) => {
    const tensors = regime.tensors.filter((t) => t.arena >= 0);
    return {
      label: regime.label, exact: true, times: regime.times, arenas: regime.arenas, tensors,
      byName: new Map(tensors.map((t) => [t.name, t])),
    };
  }),
});

/** The layout at another position; throws where no plan covers it. */
report.layoutAt = (data, position) => {
  const { sliders } = data;
  const variant = report.variant(sliders, position);
  if (variant === null) throw new Error("no plan covers these sizes");
  const sizes = report.sizesAt(sliders, variant, position);
  const regimes = variant.regimes.map((regime, i) => report.packed(sliders, regime, sizes, variant, i));
  const exact = regimes.every((regime) => regime.exact);
  return { position, sizes, planned: false, exact, rows: report.rowsAt(variant, sizes, regimes), regimes };
};

/** The numbers that symbols' bounds follow from. */
report.sizesAt = (sliders, variant, position) => {
  const { ctx, seqs } = position;
  const ub = Math.min(position.ub, ctx);
  const at = sliders.seqs.indexOf(seqs);
  const cells = sliders.window * seqs + ub;
  return {
    ctx, ub, seqs,
    rows: Math.min(sliders.rows[at], ub),
    cells: sliders.window > 0 ? Math.min(cells, ctx) : 0,
  };
};

/** The bounds of a graph's symbols. */
report.ranges = (regime, { ctx, ub, seqs, rows, cells }) => {
  let n = typeof regime.tokens === "number" ? regime.tokens : ub;
  let several = 1;
  let each = 1;
  if (regime.tokens === "together") {
    several = Math.min(seqs, ub);
    each = Math.floor(ub / several);
    n = several * each;
  }
  const most = {
    n_tokens: n, n_kv: ctx, n_outputs: Math.min(n, rows), n_kv_window: cells,
    n_seqs: several, n_seq_tokens: each,
  };
  return Object.fromEntries(regime.symbols.map(([name, least]) => [name, [least, most[name]]]));
};

/** A graph with a place for each of its tensors, where weft planned it with these sizes. */
report.packed = (sliders, regime, sizes, variant, number) => {
  const structure = sliders.structures[regime.structure];
  const ranges = report.ranges(regime, sizes);
  const upper = (f) => report.formula.upper(sliders.formulas[f], ranges);
  const packing = structure.packings[Object.values(ranges).map(([, most]) => most).join(",")];
  const tensors = !packing ? [] : structure.names.map((name, t) => ({
    name,
    bytes: upper(structure.sizes[t]),
    formula: sliders.formulas[structure.sizes[t]],
    start: structure.spans[t][0],
    end: structure.spans[t][1],
    arena: packing.arena[t],
    chunk: packing.chunk[t],
    offset: packing.offset[t],
  }));
  const bound = ({ alignment, peaks }) => Math.max(0, ...peaks.map((peak) => peak
    .reduce((sum, [f, times]) => sum + times * Math.ceil(upper(f) / alignment) * alignment, 0)));
  const arenas = structure.arenas.map((arena, a) => ({
    memory: arena.memory, ...(packing ? packing.arenas[a] : { chunks: [bound(arena)], lower_bound: bound(arena) }),
  }));
  return {
    label: report.regimeLabel(variant, number, sizes.ub),
    exact: Boolean(packing),
    times: structure.times,
    arenas,
    tensors,
    byName: new Map(tensors.map((t) => [t.name, t])),
    ranges,
    scratch: report.scratchAt(regime, ranges),
  };
};

report.regimeLabel = (variant, number, ub) => {
  const regime = variant.regimes[number];
  if (regime.tokens === "together") return "several texts at once";
  const last = typeof regime.tokens === "number" ? regime.tokens : ub;
  const next = variant.regimes[number + 1];
  const first = next && typeof next.tokens === "number" ? next.tokens + 1 : 1;
  return first === last ? `batches of ${report.plural(first, "token")}` : `batches of ${first} to ${last} tokens`;
};

/** The kernels' scratch of a graph. */
report.scratchAt = (regime, ranges) => Math.max(0, ...regime.scratch.map(({ symbols, bytes }) => {
  const key = symbols.map((name) => ranges[name][1]).join(",");
  if (!(key in bytes)) throw new Error("the scratch of these sizes is not known");
  return bytes[key];
}));

/** The rows of memory. */
report.rowsAt = (variant, sizes, regimes) => {
  const blocks = new Map();
  const bounds = new Map();
  for (const { arenas } of regimes) {
    for (const { memory, chunks, lower_bound: bound } of arenas) {
      const known = blocks.get(memory) || [];
      chunks.forEach((size, c) => (known[c] = Math.max(size, known[c] || 0)));
      blocks.set(memory, known);
      bounds.set(memory, Math.max(bound, bounds.get(memory) || 0));
    }
  }
  const exact = regimes.every((regime) => regime.exact);
  const sum = (list) => list.reduce((a, b) => a + b, 0);
  const bytesOf = {
    compute: (memory) => sum(blocks.get(memory)),
    copies: (memory) => variant.copies
      * sum(regimes[0].arenas.filter((a) => a.memory === memory).map((a) => sum(a.chunks))),
    cache: (memory) => {
      const [cell, small, slot] = variant.cache[memory];
      return cell * sizes.ctx + small * sizes.cells + slot * (2 * sizes.seqs + 1);
    },
    scratch: () => Math.max(...regimes.map((regime) => regime.scratch)),
  };
  return variant.rows.map((row) => {
    if (row.bytes !== null) return row;
    const full = { ...row, bytes: bytesOf[row.buffer](row.memory) };
    if (!exact && ["compute", "copies"].includes(row.buffer)) full.about = "at least: no plan was made for these sizes";
    else if (row.buffer === "compute") full.lower_bound = bounds.get(row.memory);
    return full;
  });
};

/** The type of a tensor at the sliders' position: that of cached keys and values changes. */
report.typeAt = (data, state, tensor) => {
  const { planned, position } = state.get("layout") || { planned: true };
  const cached = !planned && data.caches[tensor.name];
  return cached && cached.of !== "states" ? position[cached.of] : tensor.type;
};

/** The bytes of a tensor at the sliders' position, or null for views of a cache that has another type
    there. */
report.bytesAt = (data, state, tensor) => {
  const whole = state.get("layout");
  if (!whole || whole.planned) return tensor.bytes;
  const layout = report.layout(state);
  const at = layout.byName.get(tensor.name);
  if (at) return at.bytes;
  const cached = data.caches[tensor.name];
  if (cached) {
    if (cached.of === "states") return cached.slot * (2 * whole.sizes.seqs + 1);
    const [block, bytes] = data.types[whole.position[cached.of]];
    return (cached.small && whole.sizes.cells || whole.sizes.ctx) * (cached.width / block) * bytes;
  }
  const base = tensor.view >= 0 ? report.regime(data, state).tensors[tensor.view] : tensor;
  const own = data.caches[base.name];
  if (own && report.typeAt(data, state, base) !== base.type) return null;
  if (typeof tensor.formula !== "string") return tensor.bytes;
  const names = tensor.formula.match(/[a-z]\w*(?!\w*\()/g) || [];
  return names.every((name) => name in layout.ranges)
    ? report.formula.upper(tensor.formula, layout.ranges) : null;
};
