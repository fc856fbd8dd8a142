/* Local search for an order of items that packs into fewer bytes (weft/allocate/search.py): the same
   steps, with the same random numbers. */

report.improve = (() => {
  const SLACK = 0.1;
  const SLACK_CHUNKS = 0.004;
  const ENOUGH = 1 / 2000;
  const ITEM_STEPS = 12;
  const DENSE_STEPS = 300;

  /** The best packing, with `how` it was found; stops near `bound` bytes or after `budget` steps. */
  function improve(problem, bound, budget) {
    const { pack, order, orders } = report.pack;
    const goal = bound + Math.trunc(bound * ENOUGH);
    const n = problem.sizes.length;
    const once = problem.neighbours === null ? n * DENSE_STEPS : 2 * problem.pairs + n * ITEM_STEPS;
    const starts = [];
    for (const name of orders) {
      const sequence = order(problem, name);
      const packing = pack(problem, sequence);
      if (packing.size <= bound) return { ...packing, how: name };
      starts.push({ name, sequence, packing });
      budget -= once;
      if (budget <= 0) break;
    }
    starts.sort((a, b) => a.packing.size - b.packing.size);
    let best = { ...starts[0].packing, how: starts[0].name };
    if (best.size <= goal || problem.neighbours === null) return best;
    for (const [i, share] of [0.5, 0.25, 0.25].entries()) {
      if (i >= starts.length) break;
      const { name, sequence, packing } = starts[i];
      const improved = walk(problem, bound, goal, sequence, packing, Math.trunc(budget * share));
      if (improved.size < best.size) best = { ...improved, how: `${name}, improved` };
      if (best.size <= goal) break;
    }
    return best;
  }

  function walk(problem, bound, goal, sequence, packing, budget) {
    const random = report.random(0);
    const slack = problem.limit === null ? SLACK : SLACK_CHUNKS;
    const n = sequence.length;
    const stepsPerItem = Math.floor((2 * problem.pairs) / n) + ITEM_STEPS;
    let best = packing;
    let cost = costOf(problem, bound, packing);
    while (budget > 0 && best.size > goal) {
      const [candidate, first] = step(problem, bound, random, sequence, packing);
      budget -= (n - first + 1) * stepsPerItem;
      const packed = report.pack.pack(problem, candidate, packing, first);
      const newCost = costOf(problem, bound, packed);
      if (newCost <= cost * (1 + slack * random.random())) {
        [sequence, packing, cost] = [candidate, packed, newCost];
        if (packed.size < best.size) best = packed;
      }
    }
    return best;
  }

  function costOf(problem, bound, packing) {
    if (problem.limit !== null) return packing.size;
    let sum = 0;
    for (let i = 0; i < problem.sizes.length; i += 1) {
      const top = packing.offsets[i] + problem.sizes[i];
      if (top > bound) sum += top - bound;
    }
    return sum;
  }

  /** A changed order, and the first position that changed. */
  function step(problem, bound, random, sequence, packing) {
    const { offsets, chunkOf, chunks } = packing;
    const high = [];
    for (let i = 0; i < offsets.length; i += 1) {
      const top = offsets[i] + problem.sizes[i];
      if (problem.limit === null ? top > bound : top === chunks[chunkOf[i]]) high.push(i);
    }
    const item = random.choice(high);
    const here = sequence.indexOf(item);
    const changed = [...sequence];
    const kind = random.random();
    let there;
    if (kind < 0.5) {
      const others = problem.neighbours[item];
      let below = others.filter((j) => offsets[j] < offsets[item]);
      if (!below.length) below = others;
      changed.splice(here, 1);
      there = below.length ? changed.indexOf(random.choice(below)) : 0;
      changed.splice(there, 0, item);
    } else if (kind < 0.85) {
      there = random.below(here + 1);
      changed.splice(here, 1);
      changed.splice(there, 0, item);
    } else {
      there = random.below(sequence.length);
      [changed[here], changed[there]] = [changed[there], changed[here]];
    }
    return [changed, Math.min(here, there)];
  }

  return improve;
})();
