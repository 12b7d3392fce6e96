// Puts what CCCL has of the C++ standard library into std.
#pragma once
namespace cuda {
namespace std {}
}
namespace std {
using namespace cuda::std;
}
