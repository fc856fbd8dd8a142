// RNN: a layer of LSTM, GRU or plain recurrent units over all its steps.
//
// A step multiplies the state by the weights of each gate and makes the next state of the sums.
// Weights are in panels of 32 rows (quants/interleave.h): lanes are units. Weights that a plan left
// in rows are packed before the first step.
//
// Threads share every step: each has panels of its own, which stay in its second-level cache, and
// nobody begins a step before all panels of the step before are done. A thread that the system does
// not schedule holds nobody up: whoever comes first takes a part of a step, and a thread waits for
// parts alone that another one has taken.
#include "kernels/elements.h"
#include "kernels/layout.h"
#include "kernels/simd/square.h"
#include "quants/interleave.h"

namespace weft::WEFT_TARGET {

void register_rnn(KernelTable& table);

namespace {

constexpr int kMaxGates = 4;

constexpr int kMaxVectors = 8;

// Products of which a part of a step has at least so many that meeting another thread pays.
constexpr int64_t kPartWork = 1 << 14;

// Counters lie a cache line apart.
constexpr int64_t kLine = 16;

enum Source { kW, kX, kH, kC, kBias, kProj };

const float* floats(const Tensor* t) {
  return t == nullptr ? nullptr : reinterpret_cast<const float*>(t->data);
}

int64_t panels_of(int64_t rows) { return (rows + kPanelRows - 1) / kPanelRows; }

int64_t gates_of(RnnCell cell) {
  return cell == RnnCell::kLstm ? 4 : cell == RnnCell::kGru ? 3 : 1;
}

// The sizes of a layer, and where its packed weights are.
struct Layer {
  RnnCell cell;
  int64_t gates, units, width, n_seqs, n_steps;
  int64_t blocks;       // panels of a gate
  bool packed;          // the plan has packed the weights
  bool projects;        // units make a shorter state
  int64_t proj_panels;  // of that product
  int64_t parts;        // of a step

  explicit Layer(const Call& call) {
    const Tensor& w = *call.src[kW];
    const Tensor& x = *call.src[kX];
    cell = call.as<RnnCell>(RnnSlot::kCell);
    gates = gates_of(cell);
    units = x.ne[0] / gates;
    width = w.ne[0];
    n_seqs = x.ne[1];
    n_steps = x.ne[2];
    blocks = panels_of(units);
    packed = w.layout == Layout::kInterleaved;
    projects = call.src[kProj] != nullptr;
    proj_panels = projects ? panels_of(width) : 0;
    parts = gates * units * width * n_seqs / kPartWork;
    parts = max64(1, min64(min64(parts, call.n_threads), blocks));
  }

  int64_t phases() const { return n_steps * (projects ? 2 : 1); }
  int64_t panel_size() const { return kPanelRows * width; }
  int64_t proj_panel_size() const { return kPanelRows * units; }
  int64_t own_panels() const { return packed ? 0 : gates * blocks; }
  // Floats that threads share: packed weights, a packed projection, the units before it.
  int64_t proj_at() const { return own_panels() * panel_size(); }
  int64_t units_at() const { return proj_at() + proj_panels * proj_panel_size(); }
  int64_t shared() const { return units_at() + (projects ? units * n_seqs : 0); }

  const float* panel(const Call& call, int64_t gate, int64_t block) const {
    if (!packed) {
      return reinterpret_cast<const float*>(call.shared) + (gate * blocks + block) * panel_size();
    }
    const Tensor& w = *call.src[kW];
    return floats(&w) + (gate * w.ne[1] + block * kPanelRows) * width;
  }
};

// ---- packing ------------------------------------------------------------------------------------

// `n` rows of `depth` numbers as a panel, whose other rows are zeros.
void pack_panel(const float* rows, int64_t n, int64_t depth, float* panel) {
  for (int64_t k = 0; k < depth; k += kLanes) {
    const int64_t words = min64(kLanes, depth - k);
    for (int64_t r = 0; r < kPanelRows; r += kLanes) {
      vf v[kLanes] = {};
      for (int64_t i = 0; i < kLanes && r + i < n; ++i) {
        v[i] = load_part(rows + (r + i) * depth + k, words);
      }
      transpose(v);
      for (int64_t j = 0; j < words; ++j) store(panel + (k + j) * kPanelRows + r, v[j]);
    }
  }
}

int64_t prepare_units(const Call& call) {
  const Layer layer(call);
  return layer.own_panels() + layer.proj_panels;
}

void prepare(const Call& call, int64_t begin, int64_t end) {
  const Layer l(call);
  auto* to = reinterpret_cast<float*>(call.shared);
  for (int64_t i = begin; i < end; ++i) {
    if (i < l.own_panels()) {
      const int64_t gate = i / l.blocks, first = i % l.blocks * kPanelRows;
      const float* rows = floats(call.src[kW]) + (gate * call.src[kW]->ne[1] + first) * l.width;
      pack_panel(rows, min64(kPanelRows, l.units - first), l.width, to + i * l.panel_size());
    } else {
      const int64_t panel = i - l.own_panels(), first = panel * kPanelRows;
      pack_panel(floats(call.src[kProj]) + first * l.units, min64(kPanelRows, l.width - first),
                 l.units, to + l.proj_at() + panel * l.proj_panel_size());
    }
  }
}

// ---- products -----------------------------------------------------------------------------------

// Columns (sequences) that are multiplied at a time.
constexpr int kMaxColumns = kRegisters == 32 ? 8 : 6;

constexpr int kPanelVectors = static_cast<int>(kPanelRows) / kLanes;

// Sums that registers hold beside weights and states. With fewer of them, a sum waits for its last
// product.
constexpr int kSums = kRegisters == 32 ? 24 : 12;

// Vectors of units that are multiplied at a time by `columns` columns.
constexpr int vectors_for(int columns) {
  return kSums / columns < kMaxVectors ? kSums / columns : kMaxVectors;
}

// Vectors of units and the columns that they are multiplied by. The weights of a unit are
// kPanelRows apart, and so are its sums of two columns.
struct Sums {
  const float* words[kMaxVectors];
  float* out[kMaxVectors];
  const float* x;
  int64_t x_stride;
  int64_t depth;
};

// A sum adds its products by ascending depth, whatever is multiplied together.
template <int kVectors, int kColumns>
[[gnu::noinline]] void multiply(const Sums& s) {
  const float* words[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) words[v] = s.words[v];
  const float* x = s.x;
  const int64_t stride = s.x_stride;
  vf acc[kColumns][kVectors] = {};
  for (int64_t k = 0; k < s.depth; ++k, ++x) {
    // the fewer of weights and states stay in registers
    if constexpr (kVectors < kColumns) {
      vf w[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) w[v] = load(words[v] + k * kPanelRows);
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) {
        const vf state = in_register(splat(x[c * stride]));
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) acc[c][v] = fma(w[v], state, acc[c][v]);
      }
    } else {
      vf state[kColumns];
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) state[c] = splat(x[c * stride]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        vf w = load(words[v] + k * kPanelRows);
        if (kColumns > 1) w = in_register(w);
#pragma GCC unroll 8
        for (int c = 0; c < kColumns; ++c) acc[c][v] = fma(w, state[c], acc[c][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) store(s.out[v] + c * kPanelRows, acc[c][v]);
  }
}

template <int kVectors, int kColumns>
void multiply(const Sums& s, int64_t vectors) {
  if (vectors == kVectors) return multiply<kVectors, kColumns>(s);
  if constexpr (kVectors > 1) multiply<kVectors - 1, kColumns>(s, vectors);
}

template <int kColumns>
void multiply(const Sums& s, int64_t vectors, int64_t columns) {
  if (columns == kColumns) return multiply<vectors_for(kColumns), kColumns>(s, vectors);
  if constexpr (kColumns > 1) multiply<kColumns - 1>(s, vectors, columns);
}

// Calls f(first, n) for parts of `n` things, of nearly one size and at most `most`.
template <typename F>
void for_even(int64_t n, int64_t most, const F& f) {
  int64_t first = 0;
  for (int64_t parts = (n + most - 1) / most; parts > 0; --parts) {
    const int64_t some = (n - first + parts - 1) / parts;
    f(first, some);
    first += some;
  }
}

// The sums of `n` panels, at most kMaxGates, for all columns. In `out` they are
// [panel][column][32].
void multiply(const float* const* panels, int64_t n, const float* x, int64_t depth, int64_t columns,
              float* out) {
  for_even(columns, kMaxColumns, [&](int64_t column, int64_t some) {
    for_even(n * kPanelVectors, vectors_for(static_cast<int>(some)), [&](int64_t first, int64_t m) {
      Sums s{.words = {}, .out = {}, .x = x + column * depth, .x_stride = depth, .depth = depth};
      for (int64_t i = 0; i < m; ++i) {
        const int64_t panel = (first + i) / kPanelVectors;
        const int64_t lane = (first + i) % kPanelVectors * kLanes;
        s.words[i] = panels[panel] + lane;
        s.out[i] = out + (panel * columns + column) * kPanelRows + lane;
      }
      multiply<kMaxColumns>(s, m, some);
    });
  });
}

// ---- gates --------------------------------------------------------------------------------------

// Some units of a sequence in a step: pointers to the first of each.
struct Units {
  const float* sums;  // of gate 0; of the next gate `sum_stride` further
  const float* x;     // the same, `units` further
  const float* bias;  // the same; may be nullptr
  int64_t sum_stride, units;
  const float* h;       // the state before; of a GRU
  const float* c_from;  // of an LSTM
  float* c;
  float* out;
};

// kLanes units, or the first `n` of them.
template <RnnCell kCell, class Get, class Put>
inline void next_state(const Units& u, int64_t at, const Get& get, const Put& put) {
  const auto sum = [&](int gate) {
    const vf s = load(u.sums + gate * u.sum_stride + at);
    return u.bias == nullptr ? s : s + get(u.bias + gate * u.units + at);
  };
  const auto x = [&](int gate) { return get(u.x + gate * u.units + at); };
  if constexpr (kCell == RnnCell::kLstm) {
    const vf in = sigmoid(x(0) + sum(0)), forget = sigmoid(x(1) + sum(1));
    const vf c = fma(forget, get(u.c_from + at), in * tanh(x(2) + sum(2)));
    put(u.c + at, c);
    put(u.out + at, sigmoid(x(3) + sum(3)) * tanh(c));
  } else if constexpr (kCell == RnnCell::kGru) {
    const vf reset = sigmoid(x(0) + sum(0)), update = sigmoid(x(1) + sum(1));
    const vf fresh = tanh(fma(reset, sum(2), x(2)));
    put(u.out + at, fma(update, get(u.h + at) - fresh, fresh));
  } else if constexpr (kCell == RnnCell::kTanh) {
    put(u.out + at, tanh(x(0) + sum(0)));
  } else {
    const vf z = x(0) + sum(0);
    put(u.out + at, z < 0.0f ? vf{} : z);
  }
}

template <RnnCell kCell>
void next_states(const Units& u, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) next_state<kCell>(u, i, load, store);
  if (i == n) return;
  const int64_t left = n - i;
  next_state<kCell>(
      u, i, [left](const float* p) { return load_part(p, left); },
      [left](float* p, vf v) { store_part(p, v, left); });
}

void next_states(RnnCell cell, const Units& u, int64_t n) {
  if (cell == RnnCell::kLstm) return next_states<RnnCell::kLstm>(u, n);
  if (cell == RnnCell::kGru) return next_states<RnnCell::kGru>(u, n);
  if (cell == RnnCell::kTanh) return next_states<RnnCell::kTanh>(u, n);
  next_states<RnnCell::kRelu>(u, n);
}

// ---- steps --------------------------------------------------------------------------------------

// A step: the state before it, and the state that it makes, [sequence][width].
struct Step {
  int64_t index;  // the number of steps before it
  const float* x;
  const float* h;
  float* out;
  const float* c_from;
  float* c;
};

Step step_at(const Call& call, const Layer& l, int64_t index) {
  const bool reverse = call.i(RnnSlot::kReverse) != 0;
  const int64_t t = reverse ? l.n_steps - 1 - index : index;
  const int64_t size = l.width * l.n_seqs;
  auto* y = reinterpret_cast<float*>(call.dst.data);
  Step step;
  step.index = index;
  step.x = reinterpret_cast<const float*>(call.src[kX]->data + t * call.src[kX]->nb[2]);
  step.out = y + t * size;
  step.h = index == 0 ? floats(call.src[kH]) : y + (reverse ? t + 1 : t - 1) * size;
  step.c = y + l.n_steps * size;
  step.c_from = index == 0 ? floats(call.src[kC]) : step.c;
  return step;
}

// Calls f(first, last) for `group` panels at a time of the part; backwards in every other step, so
// that it begins with the panels that the caches still have.
template <typename F>
void for_panels(const Layer& l, int64_t part, int64_t panels, int64_t group, bool backwards,
                const F& f) {
  const int64_t begin = panels * part / l.parts, end = panels * (part + 1) / l.parts;
  const int64_t groups = (end - begin + group - 1) / group;
  for (int64_t i = 0; i < groups; ++i) {
    const int64_t first = begin + (backwards ? groups - 1 - i : i) * group;
    f(first, min64(end, first + group));
  }
}

// The units of a part of a step.
void run_units(const Call& call, const Layer& l, const Step& step, int64_t part, float* sums) {
  const bool is_lstm = l.cell == RnnCell::kLstm;
  float* out = l.projects ? reinterpret_cast<float*>(call.shared) + l.units_at() : step.out;
  const int64_t group = l.gates == 1 ? kMaxGates : 1;
  for_panels(l, part, l.blocks, group, step.index % 2 == 1, [&](int64_t first, int64_t last) {
    const float* panels[kMaxGates];
    int64_t n = 0;
    for (int64_t block = first; block < last; ++block) {
      for (int64_t gate = 0; gate < l.gates; ++gate) panels[n++] = l.panel(call, gate, block);
    }
    multiply(panels, n, step.h, l.width, l.n_seqs, sums);
    for (int64_t block = first; block < last; ++block) {
      const int64_t unit = block * kPanelRows;
      for (int64_t seq = 0; seq < l.n_seqs; ++seq) {
        const int64_t at = seq * l.units + unit;
        Units u;
        u.sum_stride = l.n_seqs * kPanelRows;
        u.sums = sums + (block - first) * l.gates * u.sum_stride + seq * kPanelRows;
        u.units = l.units;
        u.x = step.x + seq * (call.src[kX]->nb[1] / 4) + unit;
        u.bias = call.src[kBias] == nullptr ? nullptr : floats(call.src[kBias]) + unit;
        u.h = step.h + at;
        u.c_from = is_lstm ? step.c_from + at : nullptr;
        u.c = step.c + at;
        u.out = out + at;
        next_states(l.cell, u, min64(kPanelRows, l.units - unit));
      }
    }
  });
}

// The part of a step's projection: units become the state.
void run_projection(const Call& call, const Layer& l, const Step& step, int64_t part, float* sums) {
  const auto* shared = reinterpret_cast<const float*>(call.shared);
  for_panels(l, part, l.proj_panels, kMaxGates, false, [&](int64_t first, int64_t last) {
    const float* panels[kMaxGates];
    for (int64_t p = first; p < last; ++p) {
      panels[p - first] = shared + l.proj_at() + p * l.proj_panel_size();
    }
    multiply(panels, last - first, shared + l.units_at(), l.units, l.n_seqs, sums);
    for (int64_t p = first; p < last; ++p) {
      const int64_t row = p * kPanelRows, n = min64(kPanelRows, l.width - row);
      for (int64_t seq = 0; seq < l.n_seqs; ++seq) {
        const float* from = sums + ((p - first) * l.n_seqs + seq) * kPanelRows;
        std::memcpy(step.out + seq * l.width + row, from, static_cast<size_t>(n) * 4);
      }
    }
  });
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A phase is a step, or its units and then its projection. Of each phase a thread does its own
// part, then the parts that nobody has taken. Counter 0 counts the parts that are done, counter 1 +
// p how often part p was taken.
void run_steps(const Call& call, const Layer& l, int64_t own, float* sums) {
  int32_t* done = call.tickets;
  for (int64_t phase = 0; phase < l.phases(); ++phase) {
    while (__atomic_load_n(done, __ATOMIC_ACQUIRE) < phase * l.parts) pause();
    for (int64_t i = 0; i < l.parts; ++i) {
      const int64_t part = (own + i) % l.parts;
      int32_t* taken = call.tickets + (1 + part) * kLine;
      auto expected = static_cast<int32_t>(phase);
      if (!__atomic_compare_exchange_n(taken, &expected, expected + 1, false, __ATOMIC_RELAXED,
                                       __ATOMIC_RELAXED)) {
        continue;
      }
      const Step step = step_at(call, l, l.projects ? phase / 2 : phase);
      l.projects&& phase % 2 == 1 ? run_projection(call, l, step, part, sums)
                                  : run_units(call, l, step, part, sums);
      __atomic_fetch_add(done, 1, __ATOMIC_RELEASE);
    }
  }
}

void run(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const Layer layer(call);
  if (layer.n_steps == 0 && call.src[kC] != nullptr) {
    std::memcpy(call.dst.data, call.src[kC]->data,
                static_cast<size_t>(layer.units * layer.n_seqs) * 4);
  }
  for (int64_t item = begin; item < end; ++item) {
    run_steps(call, layer, item, reinterpret_cast<float*>(scratch));
  }
}

int64_t items(const Call& call) { return Layer(call).parts; }

size_t scratch(const Call& call) {
  return static_cast<size_t>(kMaxGates * kPanelRows * call.src[kX]->ne[1]) * sizeof(float);
}

size_t shared(const Call& call) {
  return static_cast<size_t>(Layer(call).shared()) * sizeof(float);
}

int64_t tickets(const Call& call) { return (1 + Layer(call).parts) * kLine; }

// The sources are w [width, units or more, gates], x [gates units, sequences, steps],
// h [width, sequences], c [units, sequences], bias [gates units], proj [units, width].
const char* check(const Call& call) {
  const Tensor& w = *call.src[kW];
  const Tensor& x = *call.src[kX];
  if (!call.is_one<RnnCell>(RnnSlot::kCell)) return "the unit must be LSTM, GRU, TANH or RELU";
  for (int i = 0; i <= kProj; ++i) {
    if (call.src[i] == nullptr) continue;
    const bool fits = i == kX ? is_f32_rows(*call.src[i]) : is_packed_f32(*call.src[i]);
    if (!fits) return "the sources must be f32 without gaps, x in rows";
  }
  if (!is_packed_f32(call.dst)) return "the result must be contiguous f32";
  if (call.src[kX] == nullptr || call.src[kH] == nullptr) return "x and h are needed";
  if (w.layout == Layout::kLookup || w.layout == Layout::kLevels) {
    return "weights are read in rows or panels";
  }
  if (w.layout == Layout::kInterleaved && w.ne[1] % kPanelRows != 0) {
    return "packed weights must be whole panels";
  }
  const Layer l(call);
  if (x.ne[0] != l.gates * l.units || x.ne[3] != 1)
    return "x must be [gates units, sequences, steps]";
  if (w.ne[1] < l.units || w.ne[2] != l.gates || w.ne[3] != 1) {
    return "w must be [width, units or more, gates]";
  }
  if (!has_shape(*call.src[kH], l.width, l.n_seqs)) return "h must be [width, sequences]";
  if (call.src[kBias] != nullptr && !has_shape(*call.src[kBias], x.ne[0])) {
    return "the bias must be [gates units]";
  }
  const bool is_lstm = l.cell == RnnCell::kLstm;
  if ((call.src[kC] != nullptr) != is_lstm || (l.projects && !is_lstm)) {
    return "c is needed for an LSTM, and c and proj are for an LSTM alone";
  }
  if (is_lstm && !has_shape(*call.src[kC], l.units, l.n_seqs))
    return "c must be [units, sequences]";
  if (l.projects ? !has_shape(*call.src[kProj], l.units, l.width) : l.width != l.units) {
    return "proj must be [units, width], and the width is the number of units without it";
  }
  const int64_t states = is_lstm ? l.units * l.n_seqs : 0;
  if (!has_shape(call.dst, l.width * l.n_seqs * l.n_steps + states)) {
    return "the result must hold the states of all steps, then the last c";
  }
  if (l.phases() * l.parts > INT32_MAX) return "there are too many steps";
  return nullptr;
}

}  // namespace

void register_rnn(KernelTable& table) {
  table[Op::kRnn] = {.check = check,
                     .items = items,
                     .run = run,
                     .scratch = scratch,
                     .prepare_units = prepare_units,
                     .prepare = prepare,
                     .shared = shared,
                     .tickets = tickets,
                     .takes_interleaved = true};
}

}  // namespace weft::WEFT_TARGET
