// One delegated graph: its program over memory, and the call.
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
using executorch::runtime::FreeableBuffer;
using executorch::runtime::Span;

class Delegate {
 public:
  static Result<std::unique_ptr<Delegate>> create(BackendInitContext& context,
                                                  const FreeableBuffer& processed);

  // Inputs, then outputs. One call at a time; a second caller waits.
  Error execute(BackendExecutionContext& context, Span<EValue*> args);

  // Of a call, and whose they are.
  int threads() const { return executor_->threads(); }
  const ThreadPool* pool() const { return pool_.get(); }

 private:
  // An argument's place in the program.
  struct Place {
    size_t buffer = 0;
    bool owned = false;  // the buffer is the argument's own and can be the caller's memory
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
  Tensor inside(const Value& value) const;
  bool is_taken(const View& view) const;
  void report(BackendExecutionContext& context) const;

  Blob blob_;  // its program is the executor's
  std::shared_ptr<ThreadPool> pool_;
  const Target* target_ = nullptr;
  std::vector<Block> blocks_;  // of each buffer: its memory when no caller's is used
  std::vector<std::unique_ptr<Pages>> pages_;
  std::vector<std::shared_ptr<Constant>> constants_;
  std::vector<std::shared_ptr<State>> states_;
  std::unique_ptr<Executor> executor_;
  std::vector<Place> input_places_;
  std::vector<Place> output_places_;

  std::mutex mutex_;
  // of the current call
  std::vector<int64_t> symbols_;
  std::vector<int64_t> exprs_;
  std::vector<Block> taken_;      // memory of callers that is used in place
  std::vector<bool> copies_out_;  // of each output
};

}  // namespace weft::et
