# Flags that every target of ours is built with.
add_compile_options(
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Werror
  # The numerics contract says where a multiply and an add are fused; the compiler must not decide it.
  -ffp-contract=off
  -fno-math-errno
  # Reproducible builds and ccache hits wherever the clone lies.
  -ffile-prefix-map=${CMAKE_SOURCE_DIR}/=)

set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g -DTRUNKLINE_DEBUG=1")

if(TRUNKLINE_SANITIZE)
  set(CMAKE_CXX_FLAGS_RELEASE "-O1 -g1")  # a third less to compile than at -O2, and the traces are truer
  add_compile_options(-fsanitize=${TRUNKLINE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${TRUNKLINE_SANITIZE})
endif()

if(TRUNKLINE_FUZZ)
  # Coverage of the libraries is what guides the fuzzer; the targets themselves add the engine.
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE_PROGRAM})
endif()

find_program(MOLD_PROGRAM mold)
if(MOLD_PROGRAM)
  add_link_options(-fuse-ld=mold)
endif()
