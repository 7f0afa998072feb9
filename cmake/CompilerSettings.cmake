# C++20, warnings as errors, hardening, ccache where it is installed.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
# Assertions stay on in every build type but MinSizeRel: a service that trains for weeks wants them.
set(CMAKE_CXX_FLAGS_RELEASE "-O2")

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Precompiled headers and generated files need the sloppiness named here to be cached.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}/.. ${CCACHE_PROGRAM})
endif()

# Link it to each target of ours (not to generated code).
add_library(mp_compiler_settings INTERFACE)
target_compile_options(mp_compiler_settings INTERFACE
  -Wall -Wextra -Wpedantic -Werror -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wimplicit-fallthrough
  -fno-omit-frame-pointer)
# GCC 13 follows fmt 9's bigint into a copy that can't happen, out of system headers as well.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
  target_compile_options(mp_compiler_settings INTERFACE -Wno-array-bounds -Wno-stringop-overflow)
endif()
target_include_directories(mp_compiler_settings INTERFACE "${CMAKE_SOURCE_DIR}")
target_compile_definitions(mp_compiler_settings INTERFACE MP_VERSION="${PROJECT_VERSION}")
find_package(Threads REQUIRED)
target_link_libraries(mp_compiler_settings INTERFACE Threads::Threads)

# mp_add_library(NAME SOURCES ... DEPS ...): a static library with our settings.
function(mp_add_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC mp_compiler_settings ${ARG_DEPS})
endfunction()

# mp_add_executable(NAME SOURCES ... DEPS ...)
function(mp_add_executable name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE mp_compiler_settings ${ARG_DEPS})
endfunction()
