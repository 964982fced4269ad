/* The interface between a generated plan and the runtime library: arguments of a call, the table of products and the barrier,
   and the range of an axis that a thread owns.

   Every plan includes it, so it has no heavy headers: gcc builtins only.  cpu/runtime/library.py declares the same structures
   with ctypes.  Invariant: `ws_own` is a function of (extent, granule, thread) alone: two kernels that are split along the
   same axis give a thread the same elements, and need no barrier between them. */
#ifndef WS_H
#define WS_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* for platform/linux.h: has to be defined before any system header */
#endif
#include <stddef.h>
#include <stdint.h>

/* Functions that gcc must not specialize for every shape. */
#define WS_APART static __attribute__((noinline, unused))
/* Functions defined in shared_*.c: compiled once per machine, and linked with every plan that includes their header. */
#define WS_SHARED __attribute__((visibility("hidden")))

/* Elements of x and y at literal positions; `order` is a vector of integers as wide as theirs.  clang has no
   __builtin_shuffle, and gcc has __builtin_shufflevector from 12 on. */
#ifdef __clang__
#define WS_SHUFFLE(order, x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
#define WS_SHUFFLE(order, x, y, ...) __builtin_shuffle(x, y, (order){__VA_ARGS__})
#endif

/* Memory to prefetch: `count` pieces of `bytes` bytes each, `step` bytes apart. */
typedef struct { const void *from; long count, bytes, step; } ws_ahead;

/* C = A B.  Strides are in elements.  Each element of C is one chain of fused multiply-adds over k = 0, 1, ..., K-1,
   whatever the tile, the blocking or the other extents: the order of a sum depends on its length alone. */
typedef struct {
  long m, n, k;
  const void *a; long a_m, a_k, a_kp;   /* A(i, k)      at a + i*a_m + (k/16)*a_kp + (k%16)*a_k */
  const void *b; long b_k, b_p;         /* B(k, 16p+l)  at b + p*b_p + k*b_k + l */
  void *c; long c_m, c_p;               /* C(i, 16p+l)  at c + p*c_p + i*c_m + l */
  long add;                             /* does the product accumulate into C? */
  const ws_ahead *ahead; long aheads;   /* memory to prefetch during the product; changes no value */
  long a_mp;                            /* half elements: if nonzero, A(i, k) at a + (i/16)*a_mp + (i%16)*a_m + ... */
} ws_gemm;

/* Packs the right operand of a half-precision product with pairs of rows interleaved: to(k, 16p+l) at to + p*to_p +
   (k/2)*32 + 2*l + k%2.  A missing last row and the missing columns of the last panel are zero.  Strides are in elements. */
typedef struct {
  long rows, columns;
  const void *from; long from_k, from_p;  /* as B of ws_gemm */
  void *to; long to_p;
} ws_pairs;

/* The function table of the runtime library that plans call.  Half-precision products write C in float; B is packed by
   ws_pairs, and b_k is the stride from one pair of rows to the next. */
typedef struct {
  void (*gemm_f32)(const ws_gemm *);
  void (*gemm_f64)(const ws_gemm *);    /* NULL until ws_add_double was called */
  void (*barrier)(void);                /* barrier of the threads of the current run */
  void (*gemm_bf16)(const ws_gemm *);   /* NULL until ws_add_half was called, as are the next two */
  void (*gemm_f16)(const ws_gemm *);
  void (*pair_rows)(const ws_pairs *);
} ws_api;

typedef struct ws_group ws_group;       /* ranks that compute a step together: group.h */

/* One call of an entry point. */
typedef struct {
  const ws_api *api;
  const long *dims;                     /* run-time values of the symbolic dimensions */
  void *const *buffers;                 /* state, inputs, outputs: one pointer each, in the plan's order */
  char *arena;
  char *work; long work_bytes;          /* thread `id` owns work + id*work_bytes */
  const double *scalars;                /* runtime scalars, set by the user */
  double *derived;                      /* results of the scalar prologue, computed once per step */
  uint64_t seed;                        /* seed of the random nodes */
  uint64_t step;                        /* index of the step, which random nodes also depend on */
  ws_group *group;                      /* process group of this rank; NULL: none */
} ws_call;

/* What a plan's object exports: `ws_prologue` (one thread, before each step) and `ws_entry` (every thread). */
typedef void (*ws_prologue_fn)(const ws_call *);
typedef void (*ws_entry_fn)(const ws_call *, int id, int threads);

/* The range of an axis a thread owns: whole granules, contiguous, one function of (extent, granule, thread). */
static inline void ws_own(long extent, long granule, int id, int threads, long *lo, long *hi) {
  long count = (extent + granule - 1) / granule;
  *lo = count * id / threads * granule;
  *hi = count * (id + 1) / threads * granule;
  if (*lo > extent) *lo = extent;
  if (*hi > extent) *hi = extent;
}
#endif
