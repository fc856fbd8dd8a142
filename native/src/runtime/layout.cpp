#include "runtime/layout.h"

#include <algorithm>

#include "quants/levels.h"
#include "quants/lookup_layout.h"

namespace weft {

namespace {

// Joined stages have at most this many steps, because the search compares all pairs of them.
constexpr int32_t kMostSteps = 32;

// The bytes that a step writes or reads.
struct Interval {
  const char* begin;
  const char* end;
  int32_t step;
  bool write;
};

Interval interval_of(const Tensor& t, int32_t step, bool write) {
  return {t.data, t.data + extent(t), step, write};
}

// The furthest end of the intervals added so far, with its step, and the furthest end of any other
// step.
struct Reach {
  const char* end[2] = {nullptr, nullptr};
  int32_t step[2] = {-1, -1};

  void add(const Interval& i) {
    if (i.step == step[0]) {
      end[0] = std::max(end[0], i.end);
    } else if (step[0] < 0 || i.end > end[0]) {
      end[1] = end[0];
      step[1] = step[0];
      end[0] = i.end;
      step[0] = i.step;
    } else if (step[1] < 0 || i.end > end[1]) {
      end[1] = i.end;
      step[1] = i.step;
    }
  }
  // A step other than that of `i` whose intervals reach into `i`; -1 when there is none.
  int32_t into(const Interval& i) const {
    for (int k = 0; k < 2; ++k) {
      if (step[k] >= 0 && step[k] != i.step && end[k] > i.begin) return step[k];
    }
    return -1;
  }
};

bool same(const Size& a, const Size& b) { return a.value == b.value && a.expr == b.expr; }

// Whether row r of both tensors is at the same address for every r and all values of the symbols.
bool same_rows(const TensorDecl& a, const TensorDecl& b) {
  if (a.buffer != b.buffer || !same(a.offset, b.offset)) return false;
  for (int d = 1; d < 4; ++d) {
    if (!same(a.ne[d], b.ne[d]) || !same(a.nb[d], b.nb[d])) return false;
  }
  return true;
}

bool same_row_count(const TensorDecl& a, const TensorDecl& b) {
  return same(a.ne[1], b.ne[1]) && same(a.ne[2], b.ne[2]) && same(a.ne[3], b.ne[3]);
}

// Whether no two rows of the tensor overlap.
bool has_rows(const Tensor& t) {
  const DTypeInfo& info = dtype_info(t.type);
  int64_t least = t.ne[0] / info.block * info.block_size;
  for (int d = 1; d < 4; ++d) {
    if (t.ne[d] > 1 && t.nb[d] < least) return false;
    least = std::max(least, t.nb[d] * t.ne[d]);
  }
  return true;
}

class Joiner {
 public:
  explicit Joiner(const LayoutInput& input) : input_(input), program_(*input.program) {}

  StepLayout run() {
    const auto n = static_cast<int32_t>(program_.stages.size());
    for (int32_t s = 0; s < n; ++s) {
      if (s > first_ && joins(program_.stages[static_cast<size_t>(s)])) continue;
      if (s > first_) close(s);
      const StageDecl& stage = program_.stages[static_cast<size_t>(s)];
      for (int32_t i = stage.begin; i < stage.end; ++i) open_.push_back({i});
    }
    if (n > 0) close(n);
    return std::move(layout_);
  }

 private:
  const Call& call(int32_t step) const { return *input_.calls[static_cast<size_t>(step)]; }
  const StepDecl& decl(int32_t step) const { return program_.steps[static_cast<size_t>(step)]; }
  const TensorDecl& tensor(int32_t index) const {
    return program_.tensors[static_cast<size_t>(index)];
  }

  void close(int32_t end) {
    JoinedStage stage = {first_, end, static_cast<int32_t>(layout_.chains.size()), 0};
    for (const auto& chain : open_) {
      const auto begin = static_cast<int32_t>(layout_.steps.size());
      layout_.steps.insert(layout_.steps.end(), chain.begin(), chain.end());
      layout_.chains.push_back({begin, static_cast<int32_t>(layout_.steps.size())});
    }
    stage.end = static_cast<int32_t>(layout_.chains.size());
    layout_.stages.push_back(stage);
    open_.clear();
    first_ = end;
  }

  // Adds the steps of a stage to the open chains, and returns true, if each of them continues one
  // chain or clashes with none, and at least one continues a chain.
  bool joins(const StageDecl& stage) {
    int32_t n = stage.end - stage.begin;
    for (const auto& chain : open_) n += static_cast<int32_t>(chain.size());
    if (n > kMostSteps) return false;
    bool continues = false;
    std::vector<int> target;
    for (int32_t i = stage.begin; i < stage.end; ++i) {
      int chain = -1;
      for (size_t c = 0; c < open_.size(); ++c) {
        const bool clashes =
            std::any_of(open_[c].begin(), open_[c].end(), [&](int32_t j) { return clash(j, i); });
        if (!clashes) continue;
        // A step continues one chain at most, and a chain is continued by one step at most.
        if (chain >= 0 || !follows(open_[c], i)) return false;
        if (std::find(target.begin(), target.end(), static_cast<int>(c)) != target.end()) {
          return false;
        }
        chain = static_cast<int>(c);
      }
      continues = continues || chain >= 0;
      target.push_back(chain);
    }
    if (!continues) return false;
    for (int32_t i = stage.begin; i < stage.end; ++i) {
      const int c = target[static_cast<size_t>(i - stage.begin)];
      if (c < 0) {
        open_.push_back({i});
      } else {
        open_[static_cast<size_t>(c)].push_back(i);
      }
    }
    return true;
  }

  // Whether one of the steps writes what the other reads or writes.
  bool clash(int32_t earlier, int32_t later) const {
    const Call& a = call(earlier);
    const Call& b = call(later);
    if (overlap(a.dst, b.dst)) return true;
    for (const Tensor* src : b.src) {
      if (src != nullptr && overlap(a.dst, *src)) return true;
    }
    for (const Tensor* src : a.src) {
      if (src != nullptr && overlap(b.dst, *src)) return true;
    }
    return false;
  }

  // Whether row r of `step` reads and overwrites only row r of what the steps of the chain work on.
  bool follows(const std::vector<int32_t>& chain, int32_t step) const {
    if (!rows_only(step)) return false;
    const TensorDecl& dst = tensor(decl(step).dst);
    for (int32_t j : chain) {
      const TensorDecl& written = tensor(decl(j).dst);
      if (!rows_only(j) || !same_row_count(dst, written)) return false;
      if (overlap(call(j).dst, call(step).dst) && !same_rows(written, dst)) return false;
      for (int s = 0; s < kMaxSrc; ++s) {
        const Tensor* read = call(step).src[s];
        if (read != nullptr && overlap(call(j).dst, *read) &&
            !same_rows(written, tensor(decl(step).src[s]))) {
          return false;
        }
        const Tensor* used = call(j).src[s];
        if (used != nullptr && overlap(call(step).dst, *used) &&
            !same_rows(dst, tensor(decl(j).src[s]))) {
          return false;
        }
      }
    }
    return true;
  }

  bool rows_only(int32_t step) const {
    return input_.by_rows[static_cast<size_t>(step)] && has_rows(call(step).dst);
  }

  const LayoutInput& input_;
  const Program& program_;
  StepLayout layout_;
  std::vector<std::vector<int32_t>> open_;
  int32_t first_ = 0;
};

}  // namespace

int64_t extent(const Tensor& t) {
  const DTypeInfo& info = dtype_info(t.type);
  for (int64_t n : t.ne) {
    if (n == 0) return 0;
  }
  int64_t total = info.block_size;
  const int64_t steps[4] = {t.ne[0] / info.block - 1, t.ne[1] - 1, t.ne[2] - 1, t.ne[3] - 1};
  for (int d = 0; d < 4; ++d) {
    int64_t span = 0;
    if (__builtin_mul_overflow(steps[d], t.nb[d], &span) ||
        __builtin_add_overflow(total, span, &total)) {
      return -1;
    }
  }
  // A tensor of this type ends in its scale.
  if (t.type == DType::kI2_S) total += 32;
  const bool looked_up = t.layout == Layout::kLookup;
  if (!looked_up && t.layout != Layout::kLevels) return total;
  const int64_t block = looked_up ? lookup_block(t.type) : level_block(t.type);
  if (block == 0 || t.ne[0] % block != 0) return total;
  int64_t stored = looked_up ? lookup_row_bytes(t.type, t.ne[0]) : level_row_bytes(t.type, t.ne[0]);
  for (int d = 1; d < 4; ++d) {
    if (__builtin_mul_overflow(stored, t.ne[d], &stored)) return -1;
  }
  return std::max(total, stored);
}

bool overlap(const Tensor& a, const Tensor& b) {
  const char* a_end = a.data + extent(a);
  const char* b_end = b.data + extent(b);
  return a.data < b_end && b.data < a_end;
}

StepLayout make_layout(const LayoutInput& input) { return Joiner(input).run(); }

std::string find_clash(const Program& program, const std::vector<const Call*>& calls) {
  std::vector<Interval> touched;
  for (const StageDecl& stage : program.stages) {
    if (stage.end - stage.begin < 2) continue;
    touched.clear();
    for (int32_t i = stage.begin; i < stage.end; ++i) {
      const Call& call = *calls[static_cast<size_t>(i)];
      touched.push_back(interval_of(call.dst, i, true));
      for (const Tensor* src : call.src) {
        if (src != nullptr) touched.push_back(interval_of(*src, i, false));
      }
    }
    std::sort(touched.begin(), touched.end(),
              [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
    Reach any;
    Reach written;
    for (const Interval& i : touched) {
      if (i.begin == i.end) continue;
      const int32_t other = i.write ? any.into(i) : written.into(i);
      if (other >= 0) {
        return "steps " + std::to_string(std::min(other, i.step)) + " and " +
               std::to_string(std::max(other, i.step)) + " share a stage and memory";
      }
      any.add(i);
      if (i.write) written.add(i);
    }
  }
  return "";
}

}  // namespace weft
