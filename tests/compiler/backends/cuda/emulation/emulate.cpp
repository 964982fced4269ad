/* What emulate.h declares: it is compiled once, and linked to every program. */
#include "emulate.h"

#include <memory>
#include <vector>
ws_dim3 gridDim, blockDim, blockIdx, threadIdx;

/* -- fibers ------------------------------------------------------------------------------------------------------- */
struct Fiber { void *stack_pointer; bool done; };
static std::vector<Fiber> fibers;
static std::unique_ptr<char[]> stacks;
static std::vector<int> order;
static void *scheduler;
static int current, live;
static long moves; /* what has happened so far: threads that went on, blocks that have come somewhere */
static const int MOST_TOGETHER = 96; /* blocks that are there at once */
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
void __syncwarp() { meet(warps[current / 32], 32); }
void __syncthreads() { meet(everyone[current / blockDim.x], blockDim.x); }
long long ws_exchange(long long value, int other) {
  const int w = current / 32, l = current % 32;
  lanes[w][l] = value;
  meet(warps[w], 32);
  const long long found = lanes[w][l ^ other];
  meet(warps[w], 32);
  return found;
}
unsigned __ballot_sync(unsigned, bool value) {
  const int w = current / 32;
  lanes[w][current % 32] = value;
  meet(warps[w], 32);
  unsigned found = 0;
  for (int l = 0; l < 32; l++) found |= (unsigned)(lanes[w][l] & 1) << l;
  meet(warps[w], 32);
  return found;
}

/* -- shared memory that a launch is given -------------------------------------------------------------------------- */
static const char UNTOUCHED = (char)0xAB;
static const size_t FENCE = 64; /* bytes behind that of a block, which nobody may write */
static std::vector<char> shared_memory;
static size_t shared_bytes, shared_apart; /* of a block, and from one to the next */
static char *shared_start() { return (char *)(((uintptr_t)shared_memory.data() + 15) & ~(uintptr_t)15); }
static void give_shared(int blocks) {
  shared_apart = (shared_bytes + 15) / 16 * 16 + FENCE;
  shared_memory.assign(blocks * shared_apart + 16, UNTOUCHED);
}
static bool is_overrun(int blocks) {
  for (int b = 0; b < blocks; b++)
    for (size_t i = shared_bytes; i < shared_apart; i++)
      if (shared_start()[b * shared_apart + i] != UNTOUCHED) return true;
  return false;
}
char *ws_shared_memory() { return shared_start() + current / blockDim.x * shared_apart; }

/* -- blocks that are all there at once ----------------------------------------------------------------------------- */
void ws_arrive(int *come) {
  __syncthreads();
  if (threadIdx.x == 0) ++*come, moves++;
}
void ws_await(const int *come, int count) {
  if (threadIdx.x == 0) while (*come < count) yield();
  __syncthreads();
}

/* -- copies to shared memory --------------------------------------------------------------------------------------- */
struct Copy { void *to; const void *from; int bytes; bool inside; };
static std::vector<std::vector<std::vector<Copy>>> copies; /* of each thread, in groups; the last is not committed */
static std::vector<std::vector<Copy>> &own_copies() {
  if (copies.size() <= (size_t)current) copies.resize(current + 1);
  if (copies[current].empty()) copies[current].emplace_back();
  return copies[current];
}
void ws_copy_bytes(void *to, const void *from, int bytes, bool inside) {
  if ((uintptr_t)to % bytes || (uintptr_t)from % bytes) __builtin_trap();
  std::memset(to, UNTOUCHED, bytes); /* nobody may read there until it was waited for */
  own_copies().back().push_back({to, from, bytes, inside});
}
void ws_copy_commit() { own_copies().emplace_back(); }
void ws_copy_wait_for(int left) {
  auto &groups = own_copies();
  while ((int)groups.size() - 1 > left) {
    for (auto &c : groups.front())
      if (c.inside) std::memcpy(c.to, c.from, c.bytes); else std::memset(c.to, 0, c.bytes);
    groups.erase(groups.begin());
  }
}

/* -- tensor cores --------------------------------------------------------------------------------------------------- */
static const void *matrix_rows[MOST_TOGETHER * 32][32];
void ws_load_matrices(unsigned *to, const void *row, bool transposed) {
  const int w = current / 32, l = current % 32, group = l / 4, pair = l % 4 * 2;
  if ((uintptr_t)row % 16) __builtin_trap();
  matrix_rows[w][l] = row;
  meet(warps[w], 32);
  auto element = [&](int matrix, int i, int j) { return (unsigned)((const unsigned short *)matrix_rows[w][matrix * 8 + i])[j]; };
  for (int m = 0; m < 4; m++)
    to[m] = transposed ? element(m, pair, group) | element(m, pair + 1, group) << 16
                       : element(m, group, pair) | element(m, group, pair + 1) << 16;
  meet(warps[w], 32);
}
static struct { unsigned x[4], y[2]; } fragments[MOST_TOGETHER * 32][32];
static float of_half(unsigned word, int upper, bool bf16) {
  const unsigned half = upper ? word >> 16 : word & 0xffffu;
  return bf16 ? __uint_as_float(half << 16) : ws_float_of_f16((unsigned short)half);
}
void ws_multiply(float *sum, const unsigned *x, unsigned y0, unsigned y1, ws_fragments kind) {
  const int w = current / 32, l = current % 32, each = kind == WS_TF32 ? 1 : 2; /* elements of a register */
  auto *const lanes = fragments[w];
  std::memcpy(lanes[l].x, x, 16), lanes[l].y[0] = y0, lanes[l].y[1] = y1;
  meet(warps[w], 32);
  auto value = [&](unsigned word, int k) { return each == 1 ? __uint_as_float(word) : of_half(word, k % 2, kind == WS_BF16); };
  for (int c = 0; c < 4; c++) {
    const int row = l / 4 + c / 2 * 8, column = l % 4 * 2 + c % 2;
    for (int k = 0; k < 8 * each; k++) {
      const int upper = k / (4 * each), lane = k % (4 * each) / each;
      sum[c] += value(lanes[row % 8 * 4 + lane].x[row / 8 + 2 * upper], k) * value(lanes[column * 4 + lane].y[upper], k);
    }
  }
  meet(warps[w], 32);
}

/* -- launches ----------------------------------------------------------------------------------------------------- */
/* Blocks that are all there at once: each runs until all of its threads wait for those of others. */
static int run_together(int blocks, int n, bool backwards) {
  if (blocks > MOST_TOGETHER) return 2;
  give_shared(blocks), copies.clear();
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
  return is_overrun(blocks) ? 3 : 0;
}

int run_grid(void (*run)(void **), const int *geometry, void **args) {
  const int blocks = geometry[0], chunks = geometry[1], n = geometry[2], meets = geometry[3], how = geometry[4];
  gridDim = {(unsigned)blocks, (unsigned)chunks, 1}, blockDim = {(unsigned)n, 1, 1};
  body = run, arguments = args, shared_bytes = geometry[6];
  const size_t all = meets == 2 ? (size_t)blocks * n : n;
  if (fibers.size() < all) fibers.resize(all), stacks.reset(new char[all * STACK + 64]);
  order.resize(n);
  for (int i = 0; i < n; i++) order[i] = how == 0 ? i : how == 1 ? n - 1 - i : (int)((i * 7919l + 13) % n);
  if (meets == 2) return run_together(blocks, n, geometry[5]);
  for (long b = 0; b < (long)blocks * chunks; b++) {
    const long at = geometry[5] ? (long)blocks * chunks - 1 - b : b;
    blockIdx = {(unsigned)(at % blocks), (unsigned)(at / blocks), 0}, live = n;
    give_shared(1), copies.clear();
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
    if (is_overrun(1)) return 3;
  }
  return 0;
}
