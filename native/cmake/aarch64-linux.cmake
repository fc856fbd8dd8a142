# Cross-compiles for ARM with 64 bits on Linux, by Debian's g++-aarch64-linux-gnu:
#   cmake -S . -B build/arm -DCMAKE_TOOLCHAIN_FILE=native/cmake/aarch64-linux.cmake -DWEFT_PYTHON=OFF
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
