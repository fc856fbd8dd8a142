// A delegated graph: its program, its memory, and the calls.
#pragma once

#include <executorch/runtime/backend/interface.h>

#include <memory>
#include <mutex>
#include <vector>

#include "blob.h"
#include "bridge.h"
#include "memory.h"
#include "runtime/executor.h"

namespace weft::et {

using executorch::runtime::BackendExecutionContext;
using executorch::runtime::BackendInitContext;
using executorch::runtime::EValue;
using executorch::runtime::EventTracer;
using executorch::runtime::FreeableBuffer;
using executorch::runtime::Span;

// The value of a size, with the values of the program's expressions.
inline int64_t value_of(const Size& size, const std::vector<int64_t>& exprs) {
  return size.expr < 0 ? size.value : exprs[static_cast<size_t>(size.expr)];
}

class Delegate {
 public:
  static Result<std::unique_ptr<Delegate>> create(BackendInitContext& context,
                                                  const FreeableBuffer& processed);

  // Runs the program; `args` are the inputs, then the outputs. One call runs at a time; a second
  // caller waits.
  Error execute(BackendExecutionContext& context, Span<EValue*> args);

  // The number of threads of a call, and the pool that they belong to.
  int threads() const { return executor_->threads(); }
  const ThreadPool* pool() const { return pool_.get(); }

 private:
  // The buffer of an argument.
  struct Place {
    size_t buffer = 0;
    bool owned = false;  // only this argument uses the buffer, so it may be the caller's memory
  };

  Error take_memory(const NamedDataMap* map);
  Result<Block> find_block(size_t buffer, const NamedDataMap* map);
  const TensorDecl* repacked_tensor(size_t buffer) const;
  Error wanted_layout(size_t buffer, Repack& repack, bool& repacks);
  Error start(int threads);

  Error resolve(Span<EValue*> args);
  Error bind_input(size_t i, const EValue& arg);
  Error bind_output(size_t i, EValue& arg);
  Error bind(const Place& place, const View& outside, const Value& value, bool is_input);
  Error copy_outputs(Span<EValue*> args);
  Tensor inside(const Value& value) const { return inside(value.tensor); }
  Tensor inside(int32_t tensor) const;
  size_t buffer_of(int32_t tensor) const {
    return static_cast<size_t>(blob_.program.tensors[static_cast<size_t>(tensor)].buffer);
  }
  bool is_taken(const View& view) const;
  void begin_trace(EventTracer& tracer);
  void capture(size_t step);
  void end_trace(EventTracer& tracer);
  void log_value(EventTracer& tracer, const char* name, const NodeValue& value);
  void log_times(EventTracer& tracer) const;

  Blob blob_;
  std::shared_ptr<ThreadPool> pool_;
  const Target* target_ = nullptr;
  std::vector<Block> blocks_;  // the own memory of each buffer, for calls that bring none
  std::vector<std::unique_ptr<Pages>> pages_;
  std::vector<std::shared_ptr<Constant>> constants_;
  std::vector<std::shared_ptr<State>> states_;
  std::unique_ptr<Executor> executor_;
  std::vector<Place> input_places_;
  std::vector<Place> output_places_;

  std::mutex mutex_;
  // The state of the current call.
  std::vector<int64_t> symbols_;  // values of the symbols
  std::vector<int64_t> exprs_;    // values of the expressions
  std::vector<Block> taken_;      // the caller's memory that is used in place
  std::vector<bool> copies_out_;  // for each output, whether it is copied to the caller's memory
  // All elements that a step has computed, in order, for event tracers; empty for most steps.
  std::vector<std::vector<char>> captured_;
};

}  // namespace weft::et
