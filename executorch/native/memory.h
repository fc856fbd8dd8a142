// The memory of delegates: their own pages, the constants of the file, and states that last between
// calls. Methods of a file share the constants and states that several of them use.
#pragma once

#include <executorch/runtime/backend/interface.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "threads/pool.h"
#include "weft/program.h"

namespace weft::et {

// Zeroed pages. Pages that nobody touches take no memory.
class Pages {
 public:
  Pages() = default;
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  // Allocates `size` bytes; false when the system has none. A large block that will be `filled`
  // gets huge pages, which are read faster because fewer addresses are translated.
  [[nodiscard]] bool allocate(size_t size, bool filled = false);
  char* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void* mapped_ = nullptr;
  size_t mapped_size_ = 0;
  char* data_ = nullptr;  // within the mapping, at the start of a huge page where there are any
  size_t size_ = 0;
};

// A stack of matrices that is stored in one layout and wanted in another.
struct Repack {
  DType type = DType::kF32;
  Layout from = Layout::kRows;
  Layout to = Layout::kRows;
  int64_t row_elements = 0;
  int64_t rows = 0;  // rows of all matrices
};

// Bytes of the file, used in place, or copied to own pages and repacked.
struct Constant {
  std::optional<executorch::runtime::FreeableBuffer> source;
  Pages own;
  const char* data = nullptr;
  size_t size = 0;
};

struct State {
  Pages pages;
};

using executorch::runtime::Error;
using executorch::runtime::NamedDataMap;
using executorch::runtime::Result;

// The constant under `key` in the file, at least `size` bytes. Delegates of the same loaded file
// that ask for the same key and layout get the same memory.
Result<std::shared_ptr<Constant>> find_constant(const NamedDataMap* map, const std::string& key,
                                                size_t size, const Repack* repack,
                                                ThreadPool& pool);

// A state of `size` bytes, which starts as the bytes under `key`, or as zeros when `key` is empty.
// With `shared`, all methods of the loaded file share the state of this name.
Result<std::shared_ptr<State>> find_state(const NamedDataMap* map, const std::string& name,
                                          const std::string& key, size_t size, bool shared);

// The thread pool of all delegates in this process, of at least `threads` threads and one thread
// per core. It ends with the last delegate.
std::shared_ptr<ThreadPool> shared_pool(int threads);

}  // namespace weft::et
