/* CUDA C++ on a CPU.  Blocks run one after the other; the threads of a block are fibers that meet at barriers and
   shuffles.  The order in which they run is an argument: a result that depends on it shows a barrier that is missing,
   and a barrier that not all threads reach is an error.  Blocks that are all there at once run in turn, each as far as it
   comes without the others. */
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
struct ws_dim3 { unsigned x, y, z; };
static ws_dim3 gridDim, blockDim, blockIdx, threadIdx;

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

/* -- fibers ------------------------------------------------------------------------------------------------------- */
struct Fiber { void *stack_pointer; bool done; };
static std::vector<Fiber> fibers;
static std::unique_ptr<char[]> stacks;
static std::vector<int> order;
static void *scheduler;
static int current, live;
static long moves; /* what has happened so far: threads that went on, blocks that have come somewhere */
static const int MOST_TOGETHER = 64; /* blocks that are there at once */
static void (*body)(void **);
static void **arguments;
static const size_t STACK = 1 << 16;

extern "C" void ws_switch(void **from, void *to);
#if defined(__x86_64__)
asm(".text\n.globl ws_switch\n.hidden ws_switch\nws_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n");
#else
#error "the emulation switches fibers on x86-64 alone"
#endif

static inline void yield() { ws_switch(&fibers[current].stack_pointer, scheduler); }
static void enter() {
  body(arguments);
  fibers[current].done = true, live--, moves++;
  yield();
}
static void begin(int i) {
  void **top = (void **)(((uintptr_t)stacks.get() + (i + 1) * STACK) & ~(uintptr_t)63) - 2;
  *top = (void *)enter; /* where `ret` goes */
  fibers[i] = {top - 6, false};
}

struct Meeting { int arrived, turn; };
static Meeting everyone[MOST_TOGETHER], warps[MOST_TOGETHER * 32];
static long long lanes[MOST_TOGETHER * 32][32];
static inline void meet(Meeting &m, int count) {
  const int turn = m.turn;
  if (++m.arrived == count) m.arrived = 0, m.turn++, moves++;
  else while (m.turn == turn) yield();
}
static inline void __syncwarp() { meet(warps[current / 32], 32); }
static inline void __syncthreads() { meet(everyone[current / blockDim.x], blockDim.x); }
template <class X> static X __shfl_xor_sync(unsigned, X value, int other) {
  const int w = current / 32, l = current % 32;
  std::memcpy(&lanes[w][l], &value, sizeof(X));
  meet(warps[w], 32);
  X found;
  std::memcpy(&found, &lanes[w][l ^ other], sizeof(X));
  meet(warps[w], 32);
  return found;
}
static unsigned __ballot_sync(unsigned, bool value) {
  const int w = current / 32;
  lanes[w][current % 32] = value;
  meet(warps[w], 32);
  unsigned found = 0;
  for (int l = 0; l < 32; l++) found |= (unsigned)(lanes[w][l] & 1) << l;
  meet(warps[w], 32);
  return found;
}
static inline int __ffs(unsigned v) { return __builtin_ffs((int)v); }
static inline void __threadfence() {}
static inline void ws_wait_for_others() {}
static inline int atomicAdd(int *p, int n) { const int old = *p; *p += n; return old; }
static inline double __dadd_rn(double x, double y) { return x + y; }
static inline double __dmul_rn(double x, double y) { return x * y; }

/* -- blocks that are all there at once ----------------------------------------------------------------------------- */
static const size_t SHARED_BYTES = 227 << 10;
static std::vector<char> shared_memory;
static inline char *ws_shared_memory() {
  return (char *)(((uintptr_t)shared_memory.data() + 15) & ~(uintptr_t)15) + current / blockDim.x * SHARED_BYTES;
}
static inline void ws_arrive(int *come) {
  __syncthreads();
  if (threadIdx.x == 0) ++*come, moves++;
}
static inline void ws_await(const int *come, int count) {
  if (threadIdx.x == 0) while (*come < count) yield();
  __syncthreads();
}

/* -- copies to shared memory: they arrive when they are waited for, as late as may be ------------------------------ */
struct Copy { void *to; const void *from; int bytes; bool inside; };
static std::vector<std::vector<std::vector<Copy>>> copies; /* of each thread, in groups; the last is not committed */
static std::vector<std::vector<Copy>> &own_copies() {
  if (copies.size() <= (size_t)current) copies.resize(current + 1);
  if (copies[current].empty()) copies[current].emplace_back();
  return copies[current];
}
template <class P> static P ws_begin(P at, int bytes) {
  if ((uintptr_t)at % bytes) __builtin_trap();
  return at;
}
template <int BYTES> static void ws_copy(void *to, const void *from, bool inside) {
  if ((uintptr_t)to % BYTES || (uintptr_t)from % BYTES) __builtin_trap();
  own_copies().back().push_back({to, from, BYTES, inside});
}
static void ws_copy_commit() { own_copies().emplace_back(); }
template <int LEFT> static void ws_copy_wait() {
  auto &groups = own_copies();
  while ((int)groups.size() - 1 > LEFT) {
    for (auto &c : groups.front())
      if (c.inside) std::memcpy(c.to, c.from, c.bytes); else std::memset(c.to, 0, c.bytes);
    groups.erase(groups.begin());
  }
}

/* -- launches ----------------------------------------------------------------------------------------------------- */
template <class... A, size_t... I> static void apply(void (*f)(A...), void **args, std::index_sequence<I...>) {
  f(*(std::remove_cv_t<A> *)args[I]...);
}
template <auto F> struct Call;
template <class... A, void (*F)(A...)> struct Call<F> {
  static void run(void **args) { apply(F, args, std::index_sequence_for<A...>()); }
};
/* Blocks that are all there at once: each runs until all of its threads wait for those of others. */
static int run_together(int blocks, int n, bool backwards) {
  if (blocks > MOST_TOGETHER) return 2;
  shared_memory.assign(blocks * SHARED_BYTES + 16, (char)0xAB);
  for (auto &m : everyone) m = {};
  for (auto &m : warps) m = {};
  for (int i = 0; i < blocks * n; i++) begin(i);
  live = blocks * n;
  while (live) {
    const long before = moves;
    for (int b = 0; b < blocks; b++) {
      const int own = backwards ? blocks - 1 - b : b;
      blockIdx = {(unsigned)own, 0, 0};
      for (long seen = moves - 1; seen != moves;) {
        seen = moves;
        for (int i : order)
          if (!fibers[own * n + i].done)
            current = own * n + i, threadIdx = {(unsigned)i, 0, 0}, ws_switch(&scheduler, fibers[current].stack_pointer);
      }
    }
    if (moves == before) return 1; /* they wait for ever */
  }
  return 0;
}

/* geometry: blocks, chunks, threads, do they meet (2: blocks too), order of threads, order of blocks */
static int run_grid(void (*run)(void **), const int *geometry, void **args) {
  const int blocks = geometry[0], chunks = geometry[1], n = geometry[2], meets = geometry[3], how = geometry[4];
  gridDim = {(unsigned)blocks, (unsigned)chunks, 1}, blockDim = {(unsigned)n, 1, 1};
  body = run, arguments = args;
  const size_t all = meets == 2 ? (size_t)blocks * n : n;
  if (fibers.size() < all) fibers.resize(all), stacks.reset(new char[all * STACK + 64]);
  order.resize(n);
  for (int i = 0; i < n; i++) order[i] = how == 0 ? i : how == 1 ? n - 1 - i : (int)((i * 7919l + 13) % n);
  if (meets == 2) return run_together(blocks, n, geometry[5]);
  for (long b = 0; b < (long)blocks * chunks; b++) {
    const long at = geometry[5] ? (long)blocks * chunks - 1 - b : b;
    blockIdx = {(unsigned)(at % blocks), (unsigned)(at / blocks), 0}, live = n;
    if (!meets) {
      for (int i : order) current = i, threadIdx = {(unsigned)i, 0, 0}, run(args);
      continue;
    }
    everyone[0] = {};
    for (int i = 0; i < 32; i++) warps[i] = {};
    for (int i = 0; i < n; i++) begin(i);
    for (long rounds = 0; live; rounds++) {
      const long before = moves;
      for (int i : order)
        if (!fibers[i].done) current = i, threadIdx = {(unsigned)i, 0, 0}, ws_switch(&scheduler, fibers[i].stack_pointer);
      if (live && moves == before && rounds) return 1; /* they wait for ever */
    }
  }
  return 0;
}
#define WS_ENTRY(name) extern "C" int run_##name(const int *geometry, void **args) { return run_grid(Call<name>::run, geometry, args); }
