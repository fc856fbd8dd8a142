/* A libcuda.so.1 without a GPU, for tests of the code that calls NVIDIA's driver.

   It keeps to what the driver's documentation says and refuses what that does not allow: handles of
   another context, host memory that is not pinned, ranges outside of an allocation, launches beyond
   the limits. Streams run late: work waits in them until the host waits, and then the heads of all
   streams run in an order that chance decides, as far as events allow. So order that nobody asked
   for shows as a wrong result. Kernels are those of the shim (`cuda:shim`). */

#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

enum Result {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_IMAGE = 200,
  INVALID_CONTEXT = 201,
  INVALID_HANDLE = 400,
  NOT_FOUND = 500,
  NOT_READY = 600,
  ILLEGAL_ADDRESS = 700,
  PEER_ACCESS_UNSUPPORTED = 217,
  PEER_ACCESS_ALREADY_ENABLED = 704,
};

typedef uint64_t address_t;
constexpr size_t MIB = 1 << 20;

struct Stream;

struct Context {
  int device = 0;
  int retained = 0;
  int broken = 0; /* the error that all later calls give */
  size_t used = 0;
  std::map<address_t, size_t> blocks; /* their bytes */
  std::set<Stream*> streams;
  std::set<Context*> peers;
};

struct Event {
  Context* context;
  bool timed;
  uint64_t recorded = 0, reached = 0;
  double at = 0;
};

struct Op {
  std::string what;
  std::function<void()> work;
  Event* event = nullptr; /* recorded here, or awaited */
  uint64_t number = 0;
  bool waits = false;
};

struct Stream {
  Context* context;
  int lane;
  std::deque<Op> ops;
};

struct Module {
  Context* context;
  void* library;
  bool checks;
};

struct Function {
  Module* module;
  std::string name;
  void (*entry)(void**);
  const unsigned* sizes; /* of the parameters; 0 ends them */
  unsigned shared = 48 << 10;
};

struct Params {
  Function* func;
  unsigned grid[3], block[3], shared;
  void** params;
  void** extra;
  void* kernel;
  Context* context;
};

struct Launch {
  Function* function;
  unsigned grid[3], block[3], shared;
  std::vector<std::vector<unsigned char>> params;
};

struct Graph;
struct Node {
  Graph* graph;
  size_t number;
};
struct Graph {
  std::vector<std::shared_ptr<Launch>> launches;
  std::vector<std::unique_ptr<Node>> nodes;
};
struct Executable {
  Context* context;
  Graph* graph;
  std::vector<std::shared_ptr<Launch>> launches;
};

std::recursive_mutex lock;
std::map<std::string, long> settings = {{"devices", 2},    {"version", 13000}, {"peers", 1},
                                        {"memory", 1024},  {"capability", 80}, {"late", 0},
                                        {"integrated", 0}, {"pageable", 0},    {"empty", 0}};
std::vector<std::unique_ptr<Context>> contexts;
std::map<address_t, size_t> pinned;
std::set<void*> alive; /* handles of events, modules, functions, graphs and nodes */
bool started;
thread_local Context* current;
std::mt19937 chance(1);
std::string trace, complaint, broken_kernel;
bool idle; /* calls are checked and nothing runs, to time what calls them */
long n_calls;

#define CALL               \
  std::lock_guard g(lock); \
  n_calls++;               \
  if (!started) return NOT_INITIALIZED;
#define IN_CONTEXT                      \
  CALL;                                 \
  if (!current) return INVALID_CONTEXT; \
  if (current->broken) return current->broken;

/* Refuses a call, and remembers why. */
int refuse(int error, const char* format, ...) {
  char text[400];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  if (complaint.empty()) complaint = text;
  return error;
}

bool is_in(Context* context, address_t at, size_t n) {
  auto after = context->blocks.upper_bound(at);
  if (after == context->blocks.begin()) return false;
  --after;
  return at + n <= after->first + after->second;
}

bool is_pinned(const void* at, size_t n) {
  auto after = pinned.upper_bound((address_t)at);
  if (after == pinned.begin()) return false;
  --after;
  return (address_t)at + n <= after->first + after->second;
}

double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* ---- running what waits in streams ---- */

bool is_ready(const Stream* stream) {
  if (stream->ops.empty()) return false;
  const Op& op = stream->ops.front();
  return !op.waits || op.event->reached >= op.number;
}

void step(Stream* stream) {
  Op op = std::move(stream->ops.front());
  stream->ops.pop_front();
  if (op.work && !stream->context->broken) op.work();
  if (op.event && !op.waits) {
    op.event->reached = std::max(op.event->reached, op.number);
    op.event->at = now();
  }
  char where[32];
  snprintf(where, sizeof where, "%d.%d ", stream->context->device, stream->lane);
  if (!op.what.empty()) trace += where + op.what + "\n";
}

/* Lets one stream go on; false where none can. */
bool advance() {
  std::vector<Stream*> ready;
  for (auto& context : contexts)
    for (Stream* stream : context->streams)
      if (is_ready(stream)) ready.push_back(stream);
  if (ready.empty()) return false;
  step(ready[chance() % ready.size()]);
  return true;
}

int run_until(const std::function<bool()>& over) {
  while (!over())
    if (!advance()) return refuse(INVALID_VALUE, "streams wait for each other");
  return current && current->broken ? current->broken : SUCCESS;
}

int add(Stream* stream, Op op) {
  if (idle) {
    if (op.event && !op.waits) op.event->reached = op.number;
    return SUCCESS;
  }
  stream->ops.push_back(std::move(op));
  if (!settings["late"])
    for (int n = (int)(chance() % 3); n > 0 && advance(); n--) continue;
  return SUCCESS;
}

int finish(Context* context) {
  return run_until([context] {
    for (Stream* stream : context->streams)
      if (!stream->ops.empty()) return false;
    return true;
  });
}

int check(Stream* stream) {
  if (!current->streams.count(stream))
    return refuse(INVALID_HANDLE, "a stream of another context, or none");
  return SUCCESS;
}

/* ---- kernels ---- */

typedef const char* (*launch_t)(const char*, void (*)(void**), const unsigned*, const unsigned*,
                                size_t, void**, int, const uint64_t*, int, unsigned char*,
                                unsigned char*);

int copied(const Params& from, std::shared_ptr<Launch>& to) {
  if (!alive.count(from.func) || from.func->module->context != current)
    return refuse(INVALID_HANDLE, "a kernel of another context, or none");
  if (from.kernel || from.extra) return refuse(INVALID_VALUE, "a kernel node with extra or kern");
  unsigned threads = 1;
  for (int i = 0; i < 3; i++) {
    threads *= from.block[i];
    if (!from.grid[i] || !from.block[i] || (i && from.grid[i] > 65535))
      return refuse(INVALID_VALUE, "%s: a grid or block of 0, or too many",
                    from.func->name.c_str());
  }
  if (threads > 1024 || from.shared > from.func->shared)
    return refuse(INVALID_VALUE, "%s: %u threads, %u bytes of shared memory",
                  from.func->name.c_str(), threads, from.shared);
  to = std::make_shared<Launch>();
  to->function = from.func;
  memcpy(to->grid, from.grid, sizeof to->grid);
  memcpy(to->block, from.block, sizeof to->block);
  to->shared = from.shared;
  for (const unsigned* n = from.func->sizes; *n; n++) {
    const auto* at = (const unsigned char*)from.params[n - from.func->sizes];
    to->params.emplace_back(at, at + *n);
  }
  return SUCCESS;
}

void run(Context* context, const Launch& launch) {
  const Function& function = *launch.function;
  if (function.name == broken_kernel) {
    context->broken = ILLEGAL_ADDRESS;
    return;
  }
  std::vector<void*> args;
  for (auto& param : launch.params) args.push_back((void*)param.data());
  std::vector<uint64_t> known;
  for (auto& [at, n] : context->blocks) known.insert(known.end(), {at, n, 1});
  void* ends[2];
  ((void (*)(void**))dlsym(function.module->library, "weft_shim_shared"))(ends);
  const auto start = (launch_t)dlsym(RTLD_DEFAULT, "weft_shim_launch");
  const char* error =
      start(function.name.c_str(), function.entry, launch.grid, launch.block, launch.shared,
            args.data(), function.module->checks, known.data(), (int)known.size() / 3,
            (unsigned char*)ends[0], (unsigned char*)ends[1]);
  if (*error) {
    refuse(0, "%s", error);
    context->broken = ILLEGAL_ADDRESS;
  }
}

int cuInit(unsigned flags) {
  std::lock_guard g(lock);
  if (flags) return INVALID_VALUE;
  if (!settings["devices"]) return NO_DEVICE;
  for (int i = (int)contexts.size(); i < settings["devices"]; i++) {
    contexts.push_back(std::make_unique<Context>());
    contexts.back()->device = i;
  }
  started = true;
  return SUCCESS;
}

int cuDriverGetVersion(int* version) {
  *version = (int)settings["version"];
  return SUCCESS;
}

bool is_device(int device) { return device >= 0 && device < (int)contexts.size(); }

int cuDeviceGetCount(int* count) {
  CALL;
  *count = (int)contexts.size();
  return SUCCESS;
}

int cuDeviceGet(int* device, int number) {
  CALL;
  *device = number;
  return is_device(number) ? SUCCESS : INVALID_DEVICE;
}

int cuDeviceGetName(char* name, int n, int device) {
  CALL;
  if (!is_device(device)) return INVALID_DEVICE;
  snprintf(name, (size_t)n, "Fake %d", device);
  return SUCCESS;
}

int cuDeviceTotalMem(size_t* bytes, int device) {
  CALL;
  *bytes = (size_t)settings["memory"] * MIB;
  return is_device(device) ? SUCCESS : INVALID_DEVICE;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  CALL;
  if (!is_device(device)) return INVALID_DEVICE;
  const int capability = (int)settings["capability"];
  const std::map<int, int> values = {
      {16, 4}, /* multiprocessors */
      {18, (int)settings["integrated"]},
      {36, 2'000'000}, /* kHz of memory */
      {37, 256},       /* bits of its bus */
      {75, capability / 10},
      {76, capability % 10},
      {88, (int)settings["pageable"]},
      {97, 99 << 10}, /* shared memory of a block */
  };
  const auto found = values.find(attribute);
  if (found == values.end()) return refuse(INVALID_VALUE, "attribute %d", attribute);
  *value = found->second;
  return SUCCESS;
}

int cuDevicePrimaryCtxRetain(Context** context, int device) {
  CALL;
  if (!is_device(device)) return INVALID_DEVICE;
  *context = contexts[(size_t)device].get();
  (*context)->retained++;
  return SUCCESS;
}

int cuDevicePrimaryCtxRelease(int device) {
  CALL;
  if (!is_device(device) || !contexts[(size_t)device]->retained) return INVALID_CONTEXT;
  contexts[(size_t)device]->retained--;
  return SUCCESS;
}

int cuCtxSetCurrent(Context* context) {
  CALL;
  if (context && !context->retained) return INVALID_CONTEXT;
  current = context;
  return SUCCESS;
}

/* ---- memory ---- */

constexpr size_t SHARE = 100 * MIB; /* of the context */

size_t free_bytes(Context* context) {
  return (size_t)settings["memory"] * MIB - SHARE - context->used;
}

int cuMemGetInfo(size_t* left, size_t* total) {
  IN_CONTEXT;
  *left = free_bytes(current);
  *total = (size_t)settings["memory"] * MIB;
  return SUCCESS;
}

int cuMemAlloc(address_t* at, size_t n) {
  IN_CONTEXT;
  if (!n) return INVALID_VALUE;
  if (n > free_bytes(current)) return OUT_OF_MEMORY;
  void* base = aligned_alloc(256, (n + 511) / 256 * 256);
  memset(base, 0xcd, n);
  *at = (address_t)base;
  current->blocks[*at] = n;
  current->used += n;
  return SUCCESS;
}

int cuMemFree(address_t at) {
  IN_CONTEXT;
  const auto found = current->blocks.find(at);
  if (found == current->blocks.end()) return refuse(INVALID_VALUE, "free of no block");
  const int error = finish(current);
  current->used -= found->second;
  current->blocks.erase(found);
  free((void*)at);
  return error;
}

int cuMemHostAlloc(void** at, size_t n, unsigned flags) {
  IN_CONTEXT;
  if (flags != 1) return refuse(INVALID_VALUE, "pinned memory of one device only");
  *at = aligned_alloc(4096, (n + 4095) / 4096 * 4096);
  pinned[(address_t)*at] = n;
  return SUCCESS;
}

std::string bytes(const char* what, size_t n) { return what + (" " + std::to_string(n)); }

int cuMemcpyHtoDAsync(address_t to, const void* from, size_t n, Stream* stream) {
  IN_CONTEXT;
  if (int error = check(stream)) return error;
  if (!is_in(current, to, n)) return refuse(INVALID_VALUE, "a copy to no memory of the device");
  if (!is_pinned(from, n)) return refuse(INVALID_VALUE, "a copy from memory that is not pinned");
  return add(stream, {bytes("to", n), [=] { memcpy((void*)to, from, n); }});
}

int cuMemcpyDtoHAsync(void* to, address_t from, size_t n, Stream* stream) {
  IN_CONTEXT;
  if (int error = check(stream)) return error;
  if (!is_in(current, from, n)) return refuse(INVALID_VALUE, "a copy from no memory of the device");
  if (!is_pinned(to, n)) return refuse(INVALID_VALUE, "a copy to memory that is not pinned");
  return add(stream, {bytes("from", n), [=] { memcpy(to, (void*)from, n); }});
}

int cuMemcpyDtoDAsync(address_t to, address_t from, size_t n, Stream* stream) {
  IN_CONTEXT;
  if (int error = check(stream)) return error;
  if (!is_in(current, from, n) || !is_in(current, to, n))
    return refuse(INVALID_VALUE, "a copy outside of the device's memory");
  return add(stream, {bytes("within", n), [=] { memmove((void*)to, (void*)from, n); }});
}

int cuMemcpyPeerAsync(address_t to, Context* here, address_t from, Context* there, size_t n,
                      Stream* stream) {
  IN_CONTEXT;
  if (int error = check(stream)) return error;
  if (!is_in(here, to, n) || !is_in(there, from, n))
    return refuse(INVALID_VALUE, "a copy between devices outside of their memory");
  const char* how = here->peers.count(there) ? "peer" : "staged";
  return add(stream, {bytes(how, n), [=] { memcpy((void*)to, (void*)from, n); }});
}

int cuMemsetD32Async(address_t to, unsigned value, size_t n, Stream* stream) {
  IN_CONTEXT;
  if (int error = check(stream)) return error;
  if (to % 4 || !is_in(current, to, 4 * n)) return refuse(INVALID_VALUE, "a memset outside");
  return add(stream, {"clear", [=] {
                        for (size_t i = 0; i < n; i++) ((unsigned*)to)[i] = value;
                      }});
}

int cuDeviceCanAccessPeer(int* can, int device, int peer) {
  CALL;
  if (!is_device(device) || !is_device(peer) || device == peer) return INVALID_DEVICE;
  *can = (int)settings["peers"];
  return SUCCESS;
}

int cuCtxEnablePeerAccess(Context* peer, unsigned flags) {
  IN_CONTEXT;
  if (flags || !peer || peer == current) return INVALID_VALUE;
  if (!settings["peers"]) return PEER_ACCESS_UNSUPPORTED;
  return current->peers.insert(peer).second ? SUCCESS : PEER_ACCESS_ALREADY_ENABLED;
}

/* ---- streams and events ---- */

int cuStreamCreate(Stream** stream, unsigned flags) {
  IN_CONTEXT;
  if (flags != 1) return refuse(INVALID_VALUE, "a stream that waits for the default one");
  *stream = new Stream{current, (int)(current->streams.size() % 2), {}}; /* as weft makes two */
  current->streams.insert(*stream);
  return SUCCESS;
}

int cuStreamDestroy(Stream* stream) {
  IN_CONTEXT;
  if (int error = check(stream)) return error;
  run_until([=] { return stream->ops.empty(); });
  current->streams.erase(stream);
  delete stream;
  return SUCCESS;
}

int cuStreamSynchronize(Stream* stream) {
  IN_CONTEXT;
  if (int error = check(stream)) return error;
  return run_until([=] { return stream->ops.empty(); });
}

int cuStreamWaitEvent(Stream* stream, Event* event, unsigned flags) {
  IN_CONTEXT;
  if (int error = check(stream)) return error;
  if (!alive.count(event) || flags) return refuse(INVALID_HANDLE, "a wait for no event");
  return add(stream, {"", {}, event, event->recorded, true});
}

int cuEventCreate(Event** event, unsigned flags) {
  IN_CONTEXT;
  if (flags & ~2u) return INVALID_VALUE;
  *event = new Event{current, !(flags & 2)};
  alive.insert(*event);
  return SUCCESS;
}

int cuEventDestroy(Event* event) {
  CALL;
  if (!alive.erase(event)) return refuse(INVALID_HANDLE, "no event is destroyed");
  return SUCCESS; /* the object stays: streams may still reach it */
}

int cuEventRecord(Event* event, Stream* stream) {
  IN_CONTEXT;
  if (int error = check(stream)) return error;
  if (!alive.count(event) || event->context != current)
    return refuse(INVALID_HANDLE, "an event of another context is recorded");
  return add(stream, {"", {}, event, ++event->recorded});
}

int cuEventQuery(Event* event) {
  IN_CONTEXT;
  if (!alive.count(event)) return refuse(INVALID_HANDLE, "a query of no event");
  if (!settings["late"] || chance() % 16 == 0) advance();
  if (current->broken) return current->broken;
  return event->reached >= event->recorded ? SUCCESS : NOT_READY;
}

int cuEventSynchronize(Event* event) {
  IN_CONTEXT;
  if (!alive.count(event)) return refuse(INVALID_HANDLE, "a wait for no event");
  return run_until([=] { return event->reached >= event->recorded; });
}

int cuEventElapsedTime(float* ms, Event* first, Event* second) {
  IN_CONTEXT;
  if (!alive.count(first) || !alive.count(second) || !first->timed || !second->timed)
    return refuse(INVALID_HANDLE, "a time between events without times");
  if (first->reached < first->recorded || second->reached < second->recorded) return NOT_READY;
  *ms = (float)(second->at - first->at);
  return SUCCESS;
}

/* ---- modules, launches and graphs ---- */

/* An image is the text "checks|plain", the path of the shim's runtime, and that of the kernels. */
int cuModuleLoadData(Module** module, const void* image) {
  IN_CONTEXT;
  std::istringstream text((const char*)image);
  std::string checks, runtime, kernels;
  text >> checks >> runtime >> kernels;
  if (checks != "checks" && checks != "plain") return refuse(INVALID_IMAGE, "no image");
  dlopen(runtime.c_str(), RTLD_NOW | RTLD_GLOBAL);
  void* library = dlopen(kernels.c_str(), RTLD_NOW);
  if (!library) return refuse(INVALID_IMAGE, "%s", dlerror());
  *module = new Module{current, library, checks == "checks"};
  alive.insert(*module);
  current->used += MIB;
  return SUCCESS;
}

int cuModuleUnload(Module* module) {
  IN_CONTEXT;
  if (!alive.erase(module)) return refuse(INVALID_HANDLE, "no module is unloaded");
  current->used -= MIB;
  return SUCCESS;
}

int cuModuleGetFunction(Function** function, Module* module, const char* name) {
  IN_CONTEXT;
  if (!alive.count(module) || module->context != current)
    return refuse(INVALID_HANDLE, "a module of another context, or none");
  const std::string entry = std::string("weft_shim_entry_") + name;
  const std::string sizes = std::string("weft_shim_sizes_") + name;
  void* found = dlsym(module->library, entry.c_str());
  void* params = dlsym(module->library, sizes.c_str());
  if (!found || !params) return refuse(NOT_FOUND, "no kernel %s", name);
  *function =
      new Function{module, name, (void (*)(void**))found, ((const unsigned* (*)())params)()};
  alive.insert(*function);
  return SUCCESS;
}

int cuFuncSetAttribute(Function* function, int attribute, int value) {
  IN_CONTEXT;
  if (!alive.count(function) || attribute != 8) return refuse(INVALID_VALUE, "an attribute");
  if (value > 99 << 10) return refuse(INVALID_VALUE, "%d bytes of shared memory", value);
  function->shared = (unsigned)value;
  return SUCCESS;
}

int cuLaunchKernel(Function* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                   unsigned by, unsigned bz, unsigned shared, Stream* stream, void** params,
                   void** extra) {
  IN_CONTEXT;
  if (int error = check(stream)) return error;
  std::shared_ptr<Launch> launch;
  const Params given = {function, {gx, gy, gz}, {bx, by, bz}, shared,
                        params,   extra,        nullptr,      nullptr};
  if (int error = copied(given, launch)) return error;
  Context* context = current;
  return add(stream, {"kernel " + function->name, [=] { run(context, *launch); }});
}

int cuGraphCreate(Graph** graph, unsigned flags) {
  CALL;
  if (flags) return INVALID_VALUE;
  *graph = new Graph;
  alive.insert(*graph);
  return SUCCESS;
}

int cuGraphAddKernelNode(Node** node, Graph* graph, Node* const* before, size_t n,
                         const Params* params) {
  IN_CONTEXT;
  if (!alive.count(graph)) return refuse(INVALID_HANDLE, "no graph");
  /* this driver knows chains only */
  if (n != !graph->nodes.empty() || (n && before[0] != graph->nodes.back().get()))
    return refuse(INVALID_VALUE, "a node that is not behind the one before");
  std::shared_ptr<Launch> launch;
  if (int error = copied(*params, launch)) return error;
  graph->nodes.push_back(std::make_unique<Node>(Node{graph, graph->nodes.size()}));
  graph->launches.push_back(launch);
  *node = graph->nodes.back().get();
  return SUCCESS;
}

int cuGraphInstantiate(Executable** executable, Graph* graph, unsigned long long flags) {
  IN_CONTEXT;
  if (!alive.count(graph) || flags) return refuse(INVALID_HANDLE, "no graph");
  *executable = new Executable{current, graph, graph->launches};
  alive.insert(*executable);
  return SUCCESS;
}

int cuGraphExecKernelNodeSetParams(Executable* executable, Node* node, const Params* params) {
  IN_CONTEXT;
  if (!alive.count(executable) || node->graph != executable->graph)
    return refuse(INVALID_HANDLE, "a node of another graph");
  std::shared_ptr<Launch> launch;
  if (int error = copied(*params, launch)) return error;
  executable->launches[node->number] = launch;
  return SUCCESS;
}

int cuGraphLaunch(Executable* executable, Stream* stream) {
  IN_CONTEXT;
  if (int error = check(stream)) return error;
  if (!alive.count(executable) || executable->context != current)
    return refuse(INVALID_HANDLE, "no graph of this context");
  if (idle) return SUCCESS;
  Context* context = current;
  /* the launches as they are now: later changes are for later runs */
  const auto launches = executable->launches;
  return add(stream, {"graph " + std::to_string(launches.size()), [=] {
                        for (auto& launch : launches)
                          if (!context->broken) run(context, *launch);
                      }});
}

int cuGraphExecDestroy(Executable* executable) {
  CALL;
  return alive.erase(executable) ? SUCCESS : refuse(INVALID_HANDLE, "no graph is destroyed");
}

int cuGraphDestroy(Graph* graph) {
  CALL;
  return alive.erase(graph) ? SUCCESS : refuse(INVALID_HANDLE, "no graph is destroyed");
}

#define FUNCTION(name) {#name, (void*)name}
const std::map<std::string, void*> functions = {
    FUNCTION(cuInit),
    FUNCTION(cuDriverGetVersion),
    FUNCTION(cuDeviceGetCount),
    FUNCTION(cuDeviceGet),
    FUNCTION(cuDeviceGetName),
    FUNCTION(cuDeviceTotalMem),
    FUNCTION(cuDeviceGetAttribute),
    FUNCTION(cuDevicePrimaryCtxRetain),
    FUNCTION(cuDevicePrimaryCtxRelease),
    FUNCTION(cuCtxSetCurrent),
    FUNCTION(cuMemGetInfo),
    FUNCTION(cuMemAlloc),
    FUNCTION(cuMemFree),
    FUNCTION(cuMemHostAlloc),
    FUNCTION(cuMemcpyHtoDAsync),
    FUNCTION(cuMemcpyDtoHAsync),
    FUNCTION(cuMemcpyDtoDAsync),
    FUNCTION(cuMemcpyPeerAsync),
    FUNCTION(cuMemsetD32Async),
    FUNCTION(cuDeviceCanAccessPeer),
    FUNCTION(cuCtxEnablePeerAccess),
    FUNCTION(cuStreamCreate),
    FUNCTION(cuStreamDestroy),
    FUNCTION(cuStreamSynchronize),
    FUNCTION(cuStreamWaitEvent),
    FUNCTION(cuEventCreate),
    FUNCTION(cuEventDestroy),
    FUNCTION(cuEventRecord),
    FUNCTION(cuEventQuery),
    FUNCTION(cuEventSynchronize),
    FUNCTION(cuEventElapsedTime),
    FUNCTION(cuModuleLoadData),
    FUNCTION(cuModuleUnload),
    FUNCTION(cuModuleGetFunction),
    FUNCTION(cuFuncSetAttribute),
    FUNCTION(cuLaunchKernel),
    FUNCTION(cuGraphCreate),
    FUNCTION(cuGraphAddKernelNode),
    FUNCTION(cuGraphInstantiate),
    {"cuGraphInstantiateWithFlags", (void*)cuGraphInstantiate},
    FUNCTION(cuGraphExecKernelNodeSetParams),
    FUNCTION(cuGraphLaunch),
    FUNCTION(cuGraphExecDestroy),
    FUNCTION(cuGraphDestroy),
};

}  // namespace

extern "C" {

int cuGetProcAddress_v2(const char* name, void** function, int, uint64_t, int* status) {
  const auto found = functions.find(name);
  *function = found == functions.end() ? nullptr : found->second;
  if (status) *status = *function == nullptr;
  return *function ? SUCCESS : NOT_FOUND;
}

/* ---- what tests ask ---- */

void weft_fake_set(const char* name, long value) {
  std::lock_guard g(lock);
  settings[name] = value;
  if (!strcmp(name, "idle")) idle = value;
  if (!strcmp(name, "seed")) chance.seed((unsigned)value);
}

/* The kernel that breaks its context. */
void weft_fake_break(const char* kernel) { broken_kernel = kernel; }

/* The first refusal, or empty. */
const char* weft_fake_complaint() { return complaint.c_str(); }

void weft_fake_forget() { complaint.clear(); }

/* What ran since the last call: device.stream, what, bytes. */
const char* weft_fake_trace() {
  static std::string told;
  std::lock_guard g(lock);
  told.swap(trace);
  trace.clear();
  return told.c_str();
}

long weft_fake_calls() { return n_calls; }
}
