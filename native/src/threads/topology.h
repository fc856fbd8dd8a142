// Which processors this process may use, how they share cores and memory, and where a thread runs.
#pragma once

#include <string>
#include <vector>

namespace weft {

using Cpus = std::vector<int>;

// Processors that this process may use.
Cpus usable_cpus();
int usable_processors();
// Physical cores among them (hyper-threads of one core count once).
int usable_cores();

// The usable processors of each NUMA node that has some; one node where the system says nothing.
std::vector<Cpus> numa_nodes();
// The processor that the calling thread runs on now; -1 where that is not known.
int current_cpu();

// Like --prio of llama.cpp: what threads may take from other processes.
enum class Priority { kNormal, kMedium, kHigh, kRealtime };

// Binds the calling thread to processors (none: leaves it) and raises its priority. Empty, or what
// was refused and why.
std::string place_thread(const Cpus& cpus, Priority priority);

// Places the calling thread until the end of the scope, then puts it back.
class PlacedHere {
 public:
  PlacedHere(const Cpus& cpus, Priority priority);
  ~PlacedHere();
  PlacedHere(const PlacedHere&) = delete;
  PlacedHere& operator=(const PlacedHere&) = delete;

 private:
  // as they were
  unsigned long cpus_[128] = {};
  int policy_ = 0;
  int nice_ = 0;
  bool placed_ = false;
  bool raised_ = false;
};

}  // namespace weft
