/* The random numbers of Python's `random.Random(seed)` (the Mersenne Twister, MT19937), which the
   search of packings draws: the page must take the same steps. */

report.random = (seed) => {
  const N = 624;
  const M = 397;
  const state = new Uint32Array(N);
  let next = N;

  state[0] = 19650218;
  for (let i = 1; i < N; i += 1) {
    state[i] = Math.imul(1812433253, state[i - 1] ^ (state[i - 1] >>> 30)) + i;
  }
  // a seed below 2^32 is a key of one word
  let i = 1;
  for (let k = 0; k < N; k += 1) {
    state[i] = (state[i] ^ Math.imul(state[i - 1] ^ (state[i - 1] >>> 30), 1664525)) + seed;
    i += 1;
    if (i === N) {
      state[0] = state[N - 1];
      i = 1;
    }
  }
  for (let k = 0; k < N - 1; k += 1) {
    state[i] = (state[i] ^ Math.imul(state[i - 1] ^ (state[i - 1] >>> 30), 1566083941)) - i;
    i += 1;
    if (i === N) {
      state[0] = state[N - 1];
      i = 1;
    }
  }
  state[0] = 0x80000000;

  function refill() {
    for (let k = 0; k < N; k += 1) {
      const y = (state[k] & 0x80000000) | (state[(k + 1) % N] & 0x7fffffff);
      state[k] = state[(k + M) % N] ^ (y >>> 1) ^ (y & 1 ? 0x9908b0df : 0);
    }
    next = 0;
  }

  function word() {
    if (next === N) refill();
    let y = state[next];
    next += 1;
    y ^= y >>> 11;
    y ^= (y << 7) & 0x9d2c5680;
    y ^= (y << 15) & 0xefc60000;
    return (y ^ (y >>> 18)) >>> 0;
  }

  /** A number below `n`, drawn as `randrange(n)` does. */
  function below(n) {
    const bits = 32 - Math.clz32(n);
    let drawn;
    do drawn = word() >>> (32 - bits);
    while (drawn >= n);
    return drawn;
  }

  return {
    /** A number from 0 up to 1. */
    random: () => {
      const a = word() >>> 5;
      const b = word() >>> 6;
      return (a * 67108864 + b) / 9007199254740992;
    },
    below,
    choice: (list) => list[below(list.length)],
  };
};
