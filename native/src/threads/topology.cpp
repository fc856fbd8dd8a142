#include "threads/topology.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#endif

namespace weft {

namespace {

// The numbers in a list as Linux writes it, such as "0-3,8,10-11".
Cpus parse_list(const std::string& text) {
  Cpus numbers;
  std::stringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    int first = 0;
    int last = 0;
    char dash = 0;
    std::stringstream range(part);
    if (!(range >> first)) continue;
    if (!(range >> dash >> last) || dash != '-') last = first;
    for (int n = first; n <= last && numbers.size() < 65536; ++n) numbers.push_back(n);
  }
  return numbers;
}

Cpus all_cpus() {
  Cpus all;
  const int n = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  for (int cpu = 0; cpu < n; ++cpu) all.push_back(cpu);
  return all;
}

bool read_line(const std::string& path, std::string& line) {
  std::ifstream file(path);
  return static_cast<bool>(std::getline(file, line));
}

#if defined(__linux__)

// cpu_set_t holds CPU_SETSIZE (1024) processors; larger sets are passed with their size. Linux
// supports at most 8192 processors.
constexpr int kMostCpus = 8192;
constexpr size_t kWords = kMostCpus / (8 * sizeof(unsigned long));

struct CpuBits {
  unsigned long words[kWords] = {};
  cpu_set_t* set() { return reinterpret_cast<cpu_set_t*>(words); }
};

// The nice value of each priority below kRealtime.
constexpr int kNice[] = {0, -10, -20};
constexpr int kRealtimePriority = 50;

int thread_id() { return static_cast<int>(syscall(SYS_gettid)); }

bool bind(const Cpus& cpus) {
  CpuBits bits;
  for (int cpu : cpus) {
    if (cpu >= 0 && cpu < kMostCpus) CPU_SET_S(cpu, sizeof bits.words, bits.set());
  }
  return sched_setaffinity(0, sizeof bits.words, bits.set()) == 0;
}

#endif

}  // namespace

#if defined(__linux__)

Cpus usable_cpus() {
  Cpus usable;
  CpuBits bits;
  if (sched_getaffinity(0, sizeof bits.words, bits.set()) == 0) {
    for (int cpu = 0; cpu < kMostCpus; ++cpu) {
      if (CPU_ISSET_S(cpu, sizeof bits.words, bits.set())) usable.push_back(cpu);
    }
  }
  return usable.empty() ? all_cpus() : usable;
}

int current_cpu() { return sched_getcpu(); }

std::string place_thread(const Cpus& cpus, Priority priority) {
  if (!cpus.empty() && !bind(cpus)) {
    return std::string("a thread could not be bound to its processors: ") + std::strerror(errno);
  }
  if (priority == Priority::kNormal) return "";
  bool raised = false;
  if (priority == Priority::kRealtime) {
    sched_param param = {};
    param.sched_priority = kRealtimePriority;
    raised = sched_setscheduler(0, SCHED_FIFO, &param) == 0;
  } else {
    const int nice = kNice[static_cast<int>(priority)];
    raised = setpriority(PRIO_PROCESS, static_cast<id_t>(thread_id()), nice) == 0;
  }
  if (raised) return "";
  return std::string("the system refused a higher priority: ") + std::strerror(errno) +
         "; run as root, give the process CAP_SYS_NICE, or use the normal priority";
}

PlacedHere::PlacedHere(const Cpus& cpus, Priority priority) {
  static_assert(sizeof cpus_ == sizeof(CpuBits));
  if (!cpus.empty()) {
    bound_ = sched_getaffinity(0, sizeof cpus_, reinterpret_cast<cpu_set_t*>(cpus_)) == 0;
  }
  if (priority != Priority::kNormal) {
    policy_ = sched_getscheduler(0);
    nice_ = getpriority(PRIO_PROCESS, static_cast<id_t>(thread_id()));
    raised_ = true;
  }
  // The result is dropped: the pool has the same warning from its workers.
  if (bound_ || raised_) place_thread(bound_ ? cpus : Cpus{}, priority);
}

PlacedHere::~PlacedHere() {
  if (bound_) sched_setaffinity(0, sizeof cpus_, reinterpret_cast<cpu_set_t*>(cpus_));
  if (raised_) {
    const sched_param param = {};
    sched_setscheduler(0, policy_, &param);
    setpriority(PRIO_PROCESS, static_cast<id_t>(thread_id()), nice_);
  }
}

#else

Cpus usable_cpus() { return all_cpus(); }

int current_cpu() { return -1; }

std::string place_thread(const Cpus& cpus, Priority priority) {
  if (cpus.empty() && priority == Priority::kNormal) return "";
  return "weft can bind threads and raise their priority on Linux only";
}

PlacedHere::PlacedHere(const Cpus&, Priority) {}
PlacedHere::~PlacedHere() = default;

#endif

int usable_processors() { return static_cast<int>(usable_cpus().size()); }

int usable_cores() {
  std::set<std::string> cores;
  const Cpus cpus = usable_cpus();
  for (int cpu : cpus) {
    // The processors of a core list the same siblings.
    std::string siblings;
    if (!read_line(
            "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list",
            siblings)) {
      return static_cast<int>(cpus.size());
    }
    cores.insert(siblings);
  }
  return static_cast<int>(cores.size());
}

std::vector<Cpus> numa_nodes() {
  const std::string root = "/sys/devices/system/node/";
  const Cpus usable = usable_cpus();
  std::vector<Cpus> nodes;
  std::string online;
  if (read_line(root + "online", online)) {
    for (int node : parse_list(online)) {
      std::string list;
      if (!read_line(root + "node" + std::to_string(node) + "/cpulist", list)) continue;
      Cpus cpus;
      for (int cpu : parse_list(list)) {
        if (std::binary_search(usable.begin(), usable.end(), cpu)) cpus.push_back(cpu);
      }
      if (!cpus.empty()) nodes.push_back(cpus);
    }
  }
  if (nodes.empty()) nodes.push_back(usable);
  return nodes;
}

}  // namespace weft
