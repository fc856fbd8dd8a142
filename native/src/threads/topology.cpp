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

// "0-3,8,10-11" -> the numbers.
Cpus parse_list(const std::string& text) {
  Cpus found;
  std::stringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    int first = 0;
    int last = 0;
    char dash = 0;
    std::stringstream range(part);
    if (!(range >> first)) continue;
    if (!(range >> dash >> last) || dash != '-') last = first;
    for (int cpu = first; cpu <= last && found.size() < 65536; ++cpu) found.push_back(cpu);
  }
  return found;
}

bool read_line(const std::string& path, std::string& line) {
  std::ifstream file(path);
  return static_cast<bool>(std::getline(file, line));
}

#if defined(__linux__)

// Sets of more processors than CPU_SETSIZE have to be asked for by size; 8192 is Linux's limit.
constexpr int kMostCpus = 8192;
constexpr size_t kWords = kMostCpus / (8 * sizeof(unsigned long));

struct CpuBits {
  unsigned long words[kWords] = {};
  cpu_set_t* set() { return reinterpret_cast<cpu_set_t*>(words); }
};

// Nice values of the priorities below realtime.
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
  Cpus found;
  CpuBits bits;
  if (sched_getaffinity(0, sizeof bits.words, bits.set()) == 0) {
    for (int cpu = 0; cpu < kMostCpus; ++cpu) {
      if (CPU_ISSET_S(cpu, sizeof bits.words, bits.set())) found.push_back(cpu);
    }
  }
  if (found.empty()) {
    const int n = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    for (int cpu = 0; cpu < n; ++cpu) found.push_back(cpu);
  }
  return found;
}

int current_cpu() { return sched_getcpu(); }

std::string place_thread(const Cpus& cpus, Priority priority) {
  if (!cpus.empty() && !bind(cpus)) {
    return std::string("a thread could not be bound to its processors: ") + std::strerror(errno);
  }
  if (priority == Priority::kNormal) return "";
  bool fine = true;
  if (priority == Priority::kRealtime) {
    sched_param param = {};
    param.sched_priority = kRealtimePriority;
    fine = sched_setscheduler(0, SCHED_FIFO, &param) == 0;
  } else {
    const int nice = kNice[static_cast<int>(priority)];
    fine = setpriority(PRIO_PROCESS, static_cast<id_t>(thread_id()), nice) == 0;
  }
  if (fine) return "";
  return std::string("the system refused a higher priority: ") + std::strerror(errno) +
         "; run as root, give the process CAP_SYS_NICE, or use the normal priority";
}

PlacedHere::PlacedHere(const Cpus& cpus, Priority priority) {
  static_assert(sizeof cpus_ == sizeof(CpuBits));
  if (!cpus.empty()) {
    placed_ = sched_getaffinity(0, sizeof cpus_, reinterpret_cast<cpu_set_t*>(cpus_)) == 0;
  }
  if (priority != Priority::kNormal) {
    policy_ = sched_getscheduler(0);
    nice_ = getpriority(PRIO_PROCESS, static_cast<id_t>(thread_id()));
    raised_ = true;
  }
  // what is refused here was refused to the workers, too, who have said so
  if (placed_ || raised_) place_thread(placed_ ? cpus : Cpus{}, priority);
}

PlacedHere::~PlacedHere() {
  if (placed_) sched_setaffinity(0, sizeof cpus_, reinterpret_cast<cpu_set_t*>(cpus_));
  if (raised_) {
    const sched_param param = {};
    sched_setscheduler(0, policy_, &param);
    setpriority(PRIO_PROCESS, static_cast<id_t>(thread_id()), nice_);
  }
}

#else

Cpus usable_cpus() {
  Cpus found;
  const int n = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  for (int cpu = 0; cpu < n; ++cpu) found.push_back(cpu);
  return found;
}

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
    // processors of one core list the same siblings
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
  std::vector<Cpus> found;
  std::string online;
  if (read_line(root + "online", online)) {
    for (int node : parse_list(online)) {
      std::string list;
      if (!read_line(root + "node" + std::to_string(node) + "/cpulist", list)) continue;
      Cpus own;
      for (int cpu : parse_list(list)) {
        if (std::binary_search(usable.begin(), usable.end(), cpu)) own.push_back(cpu);
      }
      if (!own.empty()) found.push_back(own);
    }
  }
  if (found.empty()) found.push_back(usable);
  return found;
}

}  // namespace weft
