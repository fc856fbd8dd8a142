// Reports the steps of a run as profiling events. An event has the number of its step, which
// `preprocess` has mapped to the debug handles of the exported program.
#include <executorch/runtime/core/event_tracer_hooks_delegate.h>
#include <executorch/runtime/platform/clock.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "delegate.h"

namespace weft::et {

namespace {

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

}  // namespace

void Delegate::report(BackendExecutionContext& context) const {
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
    executorch::runtime::event_tracer_log_profiling_delegate(
        context.event_tracer(), nullptr, static_cast<executorch::runtime::DebugHandle>(step),
        clock.ticks(begin), clock.ticks(end), what.data(), what.size());
  }
}

}  // namespace weft::et
