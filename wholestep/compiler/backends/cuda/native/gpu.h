/* What a GPU has and C++ has not: the emulation of the tests brings its own. */
static __device__ __forceinline__ float ws_float_of_f16(unsigned short x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
static __device__ __forceinline__ unsigned short ws_f16_of_float(float x) {
  unsigned short y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}

/* A launch may begin while those that it waits for still end: from here on they have. */
static __device__ __forceinline__ void ws_wait_for_others() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* BYTES to shared memory, which arrive when they are waited for; zeros where nothing is `inside`. */
template <int BYTES> static __device__ __forceinline__ void ws_copy(void *to, const void *from, bool inside) {
  const unsigned at = (unsigned)__cvta_generic_to_shared(to);
  const int size = inside ? BYTES : 0;
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(size) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(at), "l"(from), "n"(BYTES), "r"(size) : "memory");
}
static __device__ __forceinline__ void ws_copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* Until at most LEFT of the groups that were committed are still under way. */
template <int LEFT> static __device__ __forceinline__ void ws_copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
static __device__ __forceinline__ unsigned short ws_bf16_of_float(float x) {
  unsigned short y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
static __device__ __forceinline__ float ws_larger(float x, float y) {
  float z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
static __device__ __forceinline__ double ws_larger(double x, double y) { return (x >= y) | (x != x) ? x : y; }
/* To 11 bits: for what is rounded to a half type. */
static __device__ __forceinline__ float ws_tanh_half(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/* To 20 bits and more. */
static __device__ __forceinline__ float ws_exp_half(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
  return y;
}

/* A place where a piece of so many bytes begins: a GPU faults where it does not, and the emulation too. */
template <class P> static __device__ __forceinline__ P ws_begin(P at, int) { return at; }

/* All of the shared memory that a launch was given. */
static __device__ __forceinline__ char *ws_shared_memory() {
  extern __shared__ __align__(16) char ws_all_shared[];
  return ws_all_shared;
}
/* Blocks that are all there at once meet: each says that it has come, and waits until so many have. */
static __device__ __forceinline__ void ws_arrive(int *come) {
  __syncthreads();
  if (threadIdx.x == 0) asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(come) : "memory");
}
static __device__ __forceinline__ void ws_await(const int *come, int count) {
  if (threadIdx.x == 0) {
    int seen;
    do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(come) : "memory");
    while (seen < count);
  }
  __syncthreads();
}
