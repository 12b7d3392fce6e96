// advance_while: advance (cursor.cu) that also makes a graph's conditional while node repeat its body
// as long as *cursor < end.
//
// Used by `graphs=while`. Launch: one thread, the last node of the loop's body.
// Limit: the launch. Compile relocatable and link with libcudadevrt.a, which defines the call that
// NVRTC's built-in declarations leave out; the declaration is cuda_device_runtime_api.h's.

extern "C" __device__ void cudaGraphSetConditional(unsigned long long handle, unsigned int value);

extern "C" __global__ void advance_while(int* cursor, int steps, int end,
                                         unsigned long long handle) {
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    const int next = *cursor + steps;
    *cursor = next;
    cudaGraphSetConditional(handle, next < end ? 1u : 0u);
  }
}
