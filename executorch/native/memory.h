// The memory of delegates: pages of their own, constants of the file, states between calls. What
// several methods of a file use is there once.
#pragma once

#include <executorch/runtime/backend/interface.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "threads/pool.h"
#include "weft/program.h"

namespace weft::et {

// Zeroed pages; those that nobody touches take no memory, but of big blocks that will be `filled`:
// these are asked for in huge pages, which are read without waiting for addresses to be looked up.
class Pages {
 public:
  Pages() = default;
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  // False: the system has none.
  [[nodiscard]] bool allocate(size_t size, bool filled = false);
  char* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void* mapped_ = nullptr;
  size_t mapped_size_ = 0;
  char* data_ = nullptr;  // in what is mapped
  size_t size_ = 0;
};

// The shape of a matrix that is stored in one layout and wanted in another.
struct Repack {
  DType type = DType::kF32;
  Layout from = Layout::kRows;
  Layout to = Layout::kRows;
  int64_t row_elements = 0;
  int64_t rows = 0;
};

// Bytes of the file, used where they are, or repacked once.
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

// The bytes under `key`, `size` of them at least. Who asks for what another delegate of the same
// loaded file has gets the same memory.
Result<std::shared_ptr<Constant>> find_constant(const NamedDataMap* map, const std::string& key,
                                                size_t size, const Repack* repack,
                                                ThreadPool& pool);

// A state of `size` bytes that starts as the bytes under `key`, or as zeros. `shared`: one for all
// methods of the loaded file that call it so.
Result<std::shared_ptr<State>> find_state(const NamedDataMap* map, const std::string& name,
                                          const std::string& key, size_t size, bool shared);

// The threads of this process, at least so many (0: a thread for each core). Delegates share them;
// when all delegates are gone, they are.
std::shared_ptr<ThreadPool> shared_pool(int threads);

}  // namespace weft::et
