// Runs each kernel of kernels.h once with ggml's processor backend, on one thread. Weights are
// where llama.cpp would have them: in its repacked buffer, for types and shapes that it repacks.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "kernels.h"

namespace {

struct Graph {
  ggml_context* context;
  ggml_backend_t backend;
  std::vector<ggml_backend_buffer_t> buffers;

  Graph() {
    context = ggml_init({ggml_tensor_overhead() * 64 + ggml_graph_overhead(), nullptr, true});
    backend = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(backend, 1);
  }
  ~Graph() {
    for (ggml_backend_buffer_t buffer : buffers) ggml_backend_buffer_free(buffer);
    ggml_backend_free(backend);
    ggml_free(context);
  }
  void place(ggml_tensor* t, ggml_backend_buffer_type_t where) {
    buffers.push_back(
        ggml_backend_buft_alloc_buffer(where, ggml_backend_buft_get_alloc_size(where, t)));
    ggml_backend_tensor_alloc(buffers.back(), t, ggml_backend_buffer_get_base(buffers.back()));
  }
  void place(ggml_tensor* t) { place(t, ggml_backend_get_default_buffer_type(backend)); }
};

void fill(ggml_tensor* t, uint32_t seed) {
  const int64_t rows = std::min(ggml_nrows(t), kOwnRows);
  std::vector<float> values(static_cast<size_t>(rows * t->ne[0]));
  for (float& v : values) v = number(seed);
  std::vector<char> bytes(ggml_nbytes(t));
  ggml_quantize_chunk(t->type, values.data(), bytes.data(), 0, rows, t->ne[0], nullptr);
  const auto own = static_cast<size_t>(rows) * t->nb[1];
  for (size_t at = own; at < bytes.size(); ++at) bytes[at] = bytes[at - own];
  ggml_backend_tensor_set(t, bytes.data(), 0, bytes.size());
}

ggml_type find_type(const char* name) {
  for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
    const auto type = static_cast<ggml_type>(i);
    const char* known = ggml_type_name(type);
    if (known != nullptr && std::strcmp(name, known) == 0) return type;
  }
  std::fprintf(stderr, "no type %s\n", name);
  std::exit(1);
}

// The first buffer type of the backend that takes these weights, as llama.cpp chooses it.
ggml_backend_buffer_type_t buffer_type_for(Graph& graph, ggml_type type) {
  const ggml_backend_dev_t device = ggml_backend_get_device(graph.backend);
  auto* extra =
      reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(ggml_backend_reg_get_proc_address(
          ggml_backend_dev_backend_reg(device), "ggml_backend_dev_get_extra_bufts"));
  for (auto* one = extra == nullptr ? nullptr : extra(device); one != nullptr && *one != nullptr;
       ++one) {
    Graph trial;
    ggml_tensor* w = ggml_new_tensor_2d(trial.context, type, kDepth, kRows);
    ggml_tensor* x = ggml_new_tensor_2d(trial.context, GGML_TYPE_F32, kDepth, 1);
    trial.place(w, *one);
    if (ggml_backend_dev_supports_op(device, ggml_mul_mat(trial.context, w, x))) return *one;
  }
  return ggml_backend_get_default_buffer_type(graph.backend);
}

void compute(Graph& graph, ggml_tensor* result, const char* name, int64_t columns, int64_t macs,
             const char* form) {
  ggml_cgraph* nodes = ggml_new_graph_custom(graph.context, 8, false);
  ggml_build_forward_expand(nodes, result);
  ggml_backend_graph_compute(graph.backend, nodes);  // the second time it has all of its memory
  announce(name, columns, macs, form);
  begin_count();
  ggml_backend_graph_compute(graph.backend, nodes);
  end_count();
}

void product(const Product& of) {
  Graph graph;
  const ggml_type type = find_type(of.type);
  ggml_tensor* w = ggml_new_tensor_2d(graph.context, type, kDepth, kRows);
  ggml_tensor* x = ggml_new_tensor_2d(graph.context, GGML_TYPE_F32, kDepth, of.columns);
  const ggml_backend_buffer_type_t where = buffer_type_for(graph, type);
  graph.place(w, where);
  graph.place(x);
  fill(w, 1);
  fill(x, 2);
  ggml_tensor* y = ggml_mul_mat(graph.context, w, x);
  graph.place(y);
  compute(graph, y, of.type, of.columns, kRows * kDepth * of.columns,
          ggml_backend_buft_is_host(where) ? "rows" : "repacked");
}

void attention(int64_t queries) {
  Graph graph;
  ggml_context* c = graph.context;
  ggml_tensor* q = ggml_new_tensor_3d(c, GGML_TYPE_F32, kHead, queries, kHeads);
  ggml_tensor* k = ggml_new_tensor_3d(c, GGML_TYPE_F16, kHead, kCells, kCacheHeads);
  ggml_tensor* v = ggml_new_tensor_3d(c, GGML_TYPE_F16, kHead, kCells, kCacheHeads);
  for (ggml_tensor* t : {q, k, v}) graph.place(t);
  fill(q, 1);
  fill(k, 2);
  fill(v, 3);
  ggml_tensor* y = ggml_flash_attn_ext(c, q, k, v, nullptr, 0.125f, 0.0f, 0.0f);
  graph.place(y);
  compute(graph, y, "attention", queries, 2 * kHead * kHeads * kCells * queries, "rows");
}

}  // namespace

int main() {
  ggml_cpu_init();
  for (const Product& of : kProducts) product(of);
  for (int64_t queries : kQueries) attention(queries);
  return 0;
}
