# LibTorch from the PyPI wheel, as two imported targets of our own: find_package(Torch) probes the GPU and fails on a
# machine with a CUDA toolkit and no GPU.
#   mp_torch       libtorch_cpu and libc10, with c10d and Gloo
#   mp_torch_cuda  in addition libtorch_cuda and libc10_cuda, for the CUDA shared library only
set(MP_TORCH_DIR "${MP_DEPS_DIR}/site/torch" CACHE PATH "The torch folder of a LibTorch 2.11.0 wheel")
if(NOT EXISTS "${MP_TORCH_DIR}/include/ATen/ATen.h")
  message(FATAL_ERROR "LibTorch 2.11.0 is not in ${MP_TORCH_DIR}: run ./deploy/dependencies, or pass -DMP_TORCH_DIR=<folder 'torch' of the wheel>")
endif()

add_library(mp_torch INTERFACE)
target_include_directories(mp_torch SYSTEM INTERFACE
  "${MP_TORCH_DIR}/include" "${MP_TORCH_DIR}/include/torch/csrc/api/include")
target_compile_definitions(mp_torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
target_link_directories(mp_torch INTERFACE "${MP_TORCH_DIR}/lib")
target_link_libraries(mp_torch INTERFACE torch_cpu c10)
# libtorch_cpu needs libcudart and libcupti at run time: from the wheels beside it, else from a toolkit.
target_link_options(mp_torch INTERFACE "-Wl,-rpath,${MP_TORCH_DIR}/lib" "-Wl,--allow-shlib-undefined"
  "-Wl,-rpath,${MP_DEPS_DIR}/site/nvidia/cu13/lib" "-Wl,-rpath,/usr/local/cuda/lib64")

add_library(mp_torch_cuda INTERFACE)
target_link_libraries(mp_torch_cuda INTERFACE mp_torch torch_cuda c10_cuda)
target_compile_definitions(mp_torch_cuda INTERFACE USE_C10D_NCCL)
