// Tells an event tracer about the steps of a run: when each ran, and, where the tracer wants
// intermediate outputs, the values of the nodes of the exported program. `preprocess` has mapped
// the names of steps to the debug handles of nodes.
#include <executorch/runtime/core/event_tracer_hooks_delegate.h>
#include <executorch/runtime/platform/clock.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <string>

#include "delegate.h"

namespace weft::et {

namespace {

using executorch::aten::ScalarType;
using executorch::runtime::DelegateDebugIntId;
using executorch::runtime::EventTracerDebugLogLevel;
using executorch::runtime::kUnsetDelegateDebugIntId;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Converts times of the steady clock, which spans have, to ticks of the tracer's clock.
class Clock {
 public:
  Clock() : ns_(now_ns()), ticks_(executorch::runtime::pal_current_ticks()) {
    ratio_ = executorch::runtime::pal_ticks_to_ns_multiplier();
  }
  et_timestamp_t ticks(int64_t ns) const {
    const auto ago = static_cast<uint64_t>(std::max<int64_t>(0, ns_ - ns));
    return ticks_ - ago * ratio_.denominator / std::max<uint64_t>(1, ratio_.numerator);
  }

 private:
  int64_t ns_;
  et_timestamp_t ticks_;
  et_tick_ratio_t ratio_;
};

// Makes `view` the view of a value over the `size` elements that a step has computed. Returns false
// where it does not lie within them: a file may have any sizes.
bool view_of(const NodeValue& value, const std::vector<int64_t>& exprs, int64_t size, View& view) {
  view.n = static_cast<int>(value.dims.size());
  int64_t in_order = 1;  // the stride where a value has none; at the end, the number of elements
  const int64_t offset = value_of(value.offset, exprs);
  int64_t last = offset;
  for (int d = view.n - 1; d >= 0; --d) {
    const auto at = static_cast<size_t>(d);
    const int64_t n = value_of(value.dims[at], exprs);
    const int64_t stride = value.strides.empty() ? in_order : value_of(value.strides[at], exprs);
    int64_t steps = 0;
    if (n < 0 || n > std::numeric_limits<int32_t>::max() || stride < 0 ||
        __builtin_mul_overflow(in_order, n, &in_order) ||
        __builtin_mul_overflow(std::max<int64_t>(0, n - 1), stride, &steps) ||
        __builtin_add_overflow(last, steps, &last)) {
      return false;
    }
    view.sizes[d] = n;
    view.strides[d] = n == 1 ? 0 : stride;
  }
  if (in_order == 0) return true;
  if (offset < 0 || last >= size) return false;
  for (int d = 0; d < view.n; ++d) view.strides[d] *= bytes_of(view.element);
  view.data += offset * bytes_of(view.element);
  return true;
}

}  // namespace

// Makes the next run record what the tracer asks for.
void Delegate::begin_trace(EventTracer& tracer) {
  executor_->record_spans(true);
  if (tracer.event_tracer_debug_level() != EventTracerDebugLogLevel::kIntermediateOutputs) return;
  // Steps use the memory of earlier ones again, so values are copied as soon as they are there.
  captured_.assign(blob_.events.size(), {});
  for (const Event& event : blob_.events) {
    for (const NodeValue& value : event.values) {
      const View view = view_of(inside(blob_.program.steps[value.step].dst));
      const bool is_known = view.data != nullptr && view.element != Element::kNone;
      const int64_t bytes = is_known ? view.count() * bytes_of(view.element) : 0;
      captured_[value.step].resize(static_cast<size_t>(bytes));
    }
  }
  executor_->set_profiling(true);
  executor_->observe([this](size_t step) { capture(step); });
}

// Copies what a step has computed. The thread that has completed the step calls it.
void Delegate::capture(size_t step) {
  if (captured_[step].empty()) return;
  Tensor tensor = inside(blob_.program.steps[step].dst);
  const auto buffer = buffer_of(blob_.program.steps[step].dst);
  tensor.data = executor_->address(buffer) + (tensor.data - blocks_[buffer].data);
  const View from = view_of(tensor);
  View to = from;
  to.data = captured_[step].data();
  int64_t stride = bytes_of(to.element);
  for (int d = to.n - 1; d >= 0; --d) {
    to.strides[d] = stride;
    stride *= to.sizes[d];
  }
  copy(from, to);
}

// Tells the tracer about the run. Values come first: of the events with one debug handle the
// Inspector takes the first, and only the last step of a node has its value.
void Delegate::end_trace(EventTracer& tracer) {
  executor_->observe({});
  executor_->set_profiling(false);
  for (const Event& event : blob_.events) {
    if (captured_.empty()) break;
    for (const NodeValue& value : event.values) log_value(tracer, event.name.c_str(), value);
  }
  captured_.clear();
  log_times(tracer);
  executor_->record_spans(false);
}

void Delegate::log_value(EventTracer& tracer, const char* name, const NodeValue& value) {
  View from;
  from.data = captured_[value.step].data();
  from.element = element_of(inside(blob_.program.steps[value.step].dst).type);
  auto type = static_cast<ScalarType>(value.scalar_type);
  if (type == ScalarType::Half || type == ScalarType::BFloat16) {
    type = ScalarType::Float;  // ETDump has no 16-bit floats
  }
  View to;
  to.element = element_of(type);
  if (from.element == Element::kNone || to.element == Element::kNone) return;
  const auto size = static_cast<int64_t>(captured_[value.step].size()) / bytes_of(from.element);
  if (!view_of(value, exprs_, size, from)) return;
  to.n = from.n;
  executorch::aten::SizesType sizes[View::kMaxDims];
  executorch::aten::DimOrderType order[View::kMaxDims];
  executorch::aten::StridesType strides[View::kMaxDims];
  int64_t stride = 1;
  for (int d = to.n - 1; d >= 0; --d) {
    to.sizes[d] = from.sizes[d];
    to.strides[d] = stride * bytes_of(to.element);
    sizes[d] = static_cast<executorch::aten::SizesType>(to.sizes[d]);
    order[d] = static_cast<executorch::aten::DimOrderType>(d);
    strides[d] = static_cast<executorch::aten::StridesType>(stride);
    stride *= to.sizes[d];
  }
  std::vector<char> data(static_cast<size_t>(to.count() * bytes_of(to.element)) + 1);
  to.data = data.data();
  copy(from, to);
  executorch::aten::TensorImpl tensor(type, to.n, sizes, to.data, order, strides);
  executorch::runtime::event_tracer_log_output_delegate(&tracer, name, kUnsetDelegateDebugIntId,
                                                        executorch::aten::Tensor(&tensor));
}

void Delegate::log_times(EventTracer& tracer) const {
  const std::vector<int64_t>& spans = executor_->spans().values();
  const Program& program = executor_->program();
  const size_t threads = spans.size() / Spans::kFields / std::max<size_t>(1, program.steps.size());
  const Clock clock;
  for (size_t step = 0; step < program.steps.size(); ++step) {
    int64_t begin = 0;
    int64_t end = 0;
    for (size_t t = 0; t < threads; ++t) {
      const int64_t* span = spans.data() + (step * threads + t) * Spans::kFields;
      if (span[0] == 0) continue;
      begin = begin == 0 ? span[0] : std::min(begin, span[0]);
      end = std::max(end, span[1]);
    }
    if (begin == 0) continue;  // the step had nothing to do at these sizes
    const StepDecl& decl = program.steps[step];
    const std::string what = std::string(kOpInfo[static_cast<size_t>(decl.op)].name) + " " +
                             program.tensors[static_cast<size_t>(decl.dst)].name;
    const std::string& name = blob_.events[step].name;
    executorch::runtime::event_tracer_log_profiling_delegate(
        &tracer, name.empty() ? nullptr : name.c_str(),
        name.empty() ? static_cast<DelegateDebugIntId>(step) : kUnsetDelegateDebugIntId,
        clock.ticks(begin), clock.ticks(end), what.data(), what.size());
  }
}

}  // namespace weft::et
