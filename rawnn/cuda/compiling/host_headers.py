"""Headers of host libraries, which the device part of a file omits."""

from __future__ import annotations

from fnmatch import fnmatchcase

_NAMES = """
any barrier cctype cerrno cfenv charconv cinttypes clocale codecvt compare condition_variable
coroutine csetjmp csignal cstdarg ctime cuchar cwchar cwctype deque exception execution expected
filesystem format forward_list fstream future iomanip ios iosfwd iostream istream latch list locale
map mdspan memory_resource mutex new numbers ostream print queue random ranges regex
scoped_allocator semaphore set shared_mutex source_location sstream stack stdexcept stop_token
streambuf string string_view strstream syncstream system_error thread typeindex typeinfo
unordered_map unordered_set valarray vector version
conio.h ctype.h direct.h dirent.h dlfcn.h errno.h execinfo.h fcntl.h getopt.h intrin.h inttypes.h
io.h locale.h malloc.h memory.h poll.h process.h pthread.h sched.h semaphore.h setjmp.h signal.h
stdarg.h strings.h tchar.h time.h unistd.h wchar.h windows.h Windows.h sys/* netinet/* arpa/*
linux/* *mmintrin.h x86intrin.h omp.h mpi.h
cublas*.h cudnn*.h cufft*.h cusparse*.h cusolver*.h cutensor*.h curand.h nccl.h nvml.h npp*.h
nvjpeg*.h nvrtc.h nvJitLink.h cupti*.h nvToolsExt*.h nvtx3/* cuda_profiler_api.h cudaProfiler.h
cuda_gl_interop.h cudaGL.h cuda_egl*.h cudaEGL.h cuda_vdpau_interop.h cuda_d3d*.h nvscibuf.h
nvscisync.h nvmedia*.h cufile.h cub/device/* cub/util_allocator.cuh
GL/* GLFW/* GLES*/* EGL/* X11/* gl*.h helper_gl.h rendercheck_*.h
opencv2/* boost/* gtest/* png.h jpeglib.h
"""
"""Headers of C++; of the system; of CUDA's libraries; of graphics and test libraries."""
_PATTERNS = tuple(_NAMES.split())
_HELPERS = """
helper_cuda.h helper_functions.h helper_timer.h helper_string.h helper_image.h
helper_cusolver.h helper_cublas.h helper_multiprocess.h helper_nvJPEG.hxx helper_cuda_drvapi.h
helper_cuda_gl.h exception.h nvrtc_helper.h param.h paramgl.h
drvapi_error_string.h multithreading.h timer.h
"""
"""Helpers of NVIDIA's samples: read like any header of a project if found."""
_THRUST_ON_DEVICE = {"complex", "functional", "pair", "tuple", "swap", "extrema"}


def is_of_the_host(header: str) -> bool:
    """Whether device code has no use for a header, judged by its name: it belongs to C++, the
    system, graphics, or the interfaces of CUDA's libraries."""
    if header.startswith("thrust/"):
        inner = header.removeprefix("thrust/")
        return inner.removesuffix(".h") not in _THRUST_ON_DEVICE and not inner.startswith("detail/")
    return any(fnmatchcase(header, pattern) for pattern in _PATTERNS)


def is_helper(header: str) -> bool:
    """Whether the header is by its name one of the host helpers of NVIDIA's samples."""
    return any(fnmatchcase(header, pattern) for pattern in _HELPERS.split())


def replace_header(header: str) -> str:
    """The CUDA types that a host header provides, as text; "" for most."""
    if fnmatchcase(header, "cufft*.h"):
        return ("#include <cuComplex.h>\ntypedef float cufftReal;\n"
                "typedef double cufftDoubleReal;\ntypedef cuComplex cufftComplex;\n"
                "typedef cuDoubleComplex cufftDoubleComplex;\n")
    if any(fnmatchcase(header, pattern) for pattern in ("cublas*.h", "cusparse*.h", "cusolver*.h")):
        return "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n#include <cuComplex.h>\n"
    return ""
