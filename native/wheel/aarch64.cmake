# A CMake toolchain for the engine and its libcurl: builds for 64-bit ARM on another processor, with Debian's cross
# compiler.
# STREAMER_AARCH64, in the environment, is the folder with root/ (aarch64_root.sh) and curl/ (build_curl.sh).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

set(AARCH64 $ENV{STREAMER_AARCH64})
set(AARCH64_LIBRARIES ${AARCH64}/root/usr/lib/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH ${AARCH64}/curl ${AARCH64}/root/usr /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE BOTH)  # pybind11 is in Python's site-packages

set(CMAKE_C_FLAGS_INIT "-isystem ${AARCH64}/root/usr/include/aarch64-linux-gnu")  # opensslconf.h
set(CMAKE_CXX_FLAGS_INIT ${CMAKE_C_FLAGS_INIT})
# The linker needs this folder for indirect dependencies.
set(CMAKE_EXE_LINKER_FLAGS_INIT -Wl,-rpath-link,${AARCH64_LIBRARIES})
set(CMAKE_SHARED_LINKER_FLAGS_INIT ${CMAKE_EXE_LINKER_FLAGS_INIT})
set(CMAKE_MODULE_LINKER_FLAGS_INIT ${CMAKE_EXE_LINKER_FLAGS_INIT})

# The emulator runs the native tests.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu
  -E LD_LIBRARY_PATH=${AARCH64}/curl/lib:${AARCH64_LIBRARIES})
