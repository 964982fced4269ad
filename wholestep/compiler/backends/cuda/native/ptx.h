/* Primitives that need PTX: conversions, cp.async, grid barriers, approximations.  The emulation in the tests replaces
   this file by a C++ implementation. */
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

/* Programmatic dependent launch: a kernel may start while its predecessors finish; this waits for their results. */
static __device__ __forceinline__ void ws_wait_for_others() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Asynchronous copy of BYTES to shared memory (cp.async), complete after ws_copy_wait; zeros if not `inside`. */
template <int BYTES> static __device__ __forceinline__ void ws_copy(void *to, const void *from, bool inside) {
  const unsigned at = (unsigned)__cvta_generic_to_shared(to);
  const int size = inside ? BYTES : 0;
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(size) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(at), "l"(from), "n"(BYTES), "r"(size) : "memory");
}
static __device__ __forceinline__ void ws_copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* Waits until at most LEFT of the committed groups are pending. */
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
/* Accurate to 11 bits: for results that are rounded to a half type. */
static __device__ __forceinline__ float ws_tanh_half(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/* Accurate to at least 20 bits. */
static __device__ __forceinline__ float ws_exp_half(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
  return y;
}
static __device__ __forceinline__ float ws_exp2_half(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/* -- tensor cores: fragments as in the PTX manual, "Matrix multiply-accumulate operation using mma instruction" ------ */
/* Two rounded values, the first in the lower half. */
static __device__ __forceinline__ unsigned ws_pack_bf16(float x, float y) {
  unsigned z;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(z) : "f"(y), "f"(x));
  return z;
}
static __device__ __forceinline__ unsigned ws_pack_f16(float x, float y) {
  unsigned z;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(z) : "f"(y), "f"(x));
  return z;
}
static __device__ __forceinline__ unsigned ws_tf32_of_float(float x) {
  unsigned y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return y;
}
/* Four 8 x 8 matrices of 2-byte elements from shared memory; lane l has the address of row l % 8 of matrix l / 8. */
template <bool TRANSPOSED> static __device__ __forceinline__ void ws_matrices(unsigned (&to)[4], const void *row) {
  const unsigned at = (unsigned)__cvta_generic_to_shared(row);
  if constexpr (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at));
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at));
}
/* sum (16 x 8) += x (16 x 16, or 16 x 8 of tf32) y */
#define WS_MMA(name, shape, type)                                                                                      \
  static __device__ __forceinline__ void name(float (&sum)[4], const unsigned (&x)[4], unsigned y0, unsigned y1) {     \
    asm("mma.sync.aligned." shape ".row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "    \
        "{%0, %1, %2, %3};"                                                                                            \
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                                                       \
        : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y0), "r"(y1));                                               \
  }
WS_MMA(ws_mma_bf16, "m16n8k16", "bf16")
WS_MMA(ws_mma_f16, "m16n8k16", "f16")
WS_MMA(ws_mma_tf32, "m16n8k8", "tf32")

/* An address aligned to the given bytes.  A GPU faults on a misaligned vector access; the emulation checks it here. */
template <class P> static __device__ __forceinline__ P ws_begin(P at, int) { return at; }

/* The dynamic shared memory of a launch. */
static __device__ __forceinline__ char *ws_shared_memory() {
  extern __shared__ __align__(16) char ws_all_shared[];
  return ws_all_shared;
}
/* Split barrier of co-resident blocks: arrive increments the counter (release), await spins until `count` have arrived
   (acquire). */
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
