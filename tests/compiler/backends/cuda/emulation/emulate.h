/* CUDA C++ on a CPU.  Blocks run one after the other; the threads of a block are fibers that meet at barriers and
   shuffles.  The order in which they run is an argument: a result that depends on it shows a barrier that is missing,
   and a barrier that not all threads reach is an error.  Blocks that are all there at once run in turn, each as far as it
   comes without the others.  What no kernel changes is compiled once, in emulate.cpp, and linked to each program. */
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
struct ws_dim3 { unsigned x, y, z; };
#pragma GCC visibility push(hidden) /* each program has threads and barriers of its own */
extern ws_dim3 gridDim, blockDim, blockIdx, threadIdx;

static inline float __uint_as_float(unsigned u) { float f; std::memcpy(&f, &u, 4); return f; }
static inline unsigned __float_as_uint(float f) { unsigned u; std::memcpy(&u, &f, 4); return u; }
static inline double __longlong_as_double(long long u) { double f; std::memcpy(&f, &u, 8); return f; }
static inline float ws_float_of_f16(unsigned short x) { _Float16 h; std::memcpy(&h, &x, 2); return (float)h; }
static inline unsigned short ws_f16_of_float(float x) { _Float16 h = (_Float16)x; unsigned short u; std::memcpy(&u, &h, 2); return u; }
static inline unsigned short ws_bf16_of_float(float x) {
  const unsigned u = __float_as_uint(x);
  return x != x ? 0x7fff : (unsigned short)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}
static inline float ws_larger(float x, float y) { return (x >= y) | (x != x) ? x : y; }
static inline double ws_larger(double x, double y) { return (x >= y) | (x != x) ? x : y; }
static inline float ws_tanh_half(float x) { return std::tanh(x); }
static inline float ws_exp_half(float x) { return std::exp(x); }
static inline float ws_exp2_half(float x) { return std::exp2(x); }

/* -- threads of a block ------------------------------------------------------------------------------------------- */
void __syncwarp();
void __syncthreads();
long long ws_exchange(long long value, int other); /* of this lane, and of the one whose number differs in these bits */
unsigned __ballot_sync(unsigned, bool value);
template <class X> static X __shfl_xor_sync(unsigned, X value, int other) {
  long long word = 0;
  std::memcpy(&word, &value, sizeof(X));
  word = ws_exchange(word, other);
  std::memcpy(&value, &word, sizeof(X));
  return value;
}
static inline int __ffs(unsigned v) { return __builtin_ffs((int)v); }
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline void __threadfence() {}
static inline void ws_wait_for_others() {}
static inline int atomicAdd(int *p, int n) { const int old = *p; *p += n; return old; }
static inline double __dadd_rn(double x, double y) { return x + y; }
static inline double __dmul_rn(double x, double y) { return x * y; }

/* -- blocks that are all there at once ----------------------------------------------------------------------------- */
char *ws_shared_memory();
void ws_arrive(int *come);
void ws_await(const int *come, int count);

/* -- copies to shared memory: they arrive when they are waited for, as late as may be; until then nothing is there -- */
template <class P> static P ws_begin(P at, int bytes) {
  if ((uintptr_t)at % bytes) __builtin_trap();
  return at;
}
void ws_copy_bytes(void *to, const void *from, int bytes, bool inside);
void ws_copy_commit();
void ws_copy_wait_for(int left);
template <int BYTES> static void ws_copy(void *to, const void *from, bool inside) { ws_copy_bytes(to, from, BYTES, inside); }
template <int LEFT> static void ws_copy_wait() { ws_copy_wait_for(LEFT); }

/* -- tensor cores: lanes give each other their fragments ------------------------------------------------------------- */
static inline unsigned ws_pack_bf16(float x, float y) { return ws_bf16_of_float(x) | (unsigned)ws_bf16_of_float(y) << 16; }
static inline unsigned ws_pack_f16(float x, float y) { return ws_f16_of_float(x) | (unsigned)ws_f16_of_float(y) << 16; }
static inline unsigned ws_tf32_of_float(float x) { return (__float_as_uint(x) + 0x1000u) & 0xffffe000u; }
void ws_load_matrices(unsigned *to, const void *row, bool transposed);
template <bool TRANSPOSED> static void ws_matrices(unsigned (&to)[4], const void *row) { ws_load_matrices(to, row, TRANSPOSED); }
enum ws_fragments { WS_BF16, WS_F16, WS_TF32 };
void ws_multiply(float *sum, const unsigned *x, unsigned y0, unsigned y1, ws_fragments kind);
static inline void ws_mma_bf16(float (&sum)[4], const unsigned (&x)[4], unsigned y0, unsigned y1) { ws_multiply(sum, x, y0, y1, WS_BF16); }
static inline void ws_mma_f16(float (&sum)[4], const unsigned (&x)[4], unsigned y0, unsigned y1) { ws_multiply(sum, x, y0, y1, WS_F16); }
static inline void ws_mma_tf32(float (&sum)[4], const unsigned (&x)[4], unsigned y0, unsigned y1) { ws_multiply(sum, x, y0, y1, WS_TF32); }

/* -- launches ----------------------------------------------------------------------------------------------------- */
template <class... A, size_t... I> static void apply(void (*f)(A...), void **args, std::index_sequence<I...>) {
  f(*(std::remove_cv_t<A> *)args[I]...);
}
template <auto F> struct Call;
template <class... A, void (*F)(A...)> struct Call<F> {
  static void run(void **args) { apply(F, args, std::index_sequence_for<A...>()); }
};
/* geometry: blocks, chunks, threads, do they meet (2: blocks too), order of threads, order of blocks, bytes of shared
   memory that a block is given; the answer is 0, or what went wrong: `WRONG` of emulated.py */
int run_grid(void (*run)(void **), const int *geometry, void **args);
#pragma GCC visibility pop
#define WS_ENTRY(name) extern "C" int run_##name(const int *geometry, void **args) { return run_grid(Call<name>::run, geometry, args); }
