// Which processors this process may use, how they share cores and memory, and where a thread runs.
#pragma once

#include <string>
#include <vector>

namespace weft {

using Cpus = std::vector<int>;

// The numbers, and the count, of the processors that this process may use.
Cpus usable_cpus();
int usable_processors();
// The number of physical cores among them; the hyper-threads of a core count once.
int usable_cores();

// The usable processors of each NUMA node that has any. Where the system does not describe its
// nodes, one node has all processors.
std::vector<Cpus> numa_nodes();
// The processor that the calling thread runs on now; -1 where the system does not say.
int current_cpu();

// How threads compete with threads of other processes; the same levels as llama.cpp's --prio.
enum class Priority { kNormal, kMedium, kHigh, kRealtime };

// Binds the calling thread to `cpus` (it stays where it is when there are none) and raises its
// priority. Returns an empty text, or a sentence that names what the system refused and why.
std::string place_thread(const Cpus& cpus, Priority priority);

// Places the calling thread as place_thread does until the end of the scope, then restores its
// processors and priority.
class PlacedHere {
 public:
  PlacedHere(const Cpus& cpus, Priority priority);
  ~PlacedHere();
  PlacedHere(const PlacedHere&) = delete;
  PlacedHere& operator=(const PlacedHere&) = delete;

#if defined(__linux__)
 private:
  // The state before: the set of processors, the scheduling policy and the nice value. The set
  // is written only where it is used: setting it to zeros would take as long as a small step.
  unsigned long cpus_[128];
  int policy_ = 0;
  int nice_ = 0;
  bool bound_ = false;   // the processors are to be restored
  bool raised_ = false;  // the priority is to be restored
#endif
};

}  // namespace weft
