/* Sums over ranks in the fixed order of group.h: a binary tree in which the sum of ranks lo .. hi-1 is the sum of the
   first (hi - lo + 1) / 2 of them plus the sum of the rest.
   Tensors are added in blocks of WS_SUM_BLOCK elements, so that the partial sums of all levels stay in
   the first-level cache.
   Invariant: the tree depends on the number of ranks alone, so every rank computes the same bits. */
#ifndef WS_GROUP_SUMS_H
#define WS_GROUP_SUMS_H
#include "group.h"

enum { WS_SUM_BLOCK = 512 };                          /* elements */

/* `to` may be any of `from`: an element is written after the elements of all ranks were read.  Not inlined, since gcc would
   expand several levels of the recursion, which costs half a second of compilation. */
#define WS_TREE_SUM(name, type)                                                                                          \
  static __attribute__((noinline)) void name##_pair(type *to, const type *a, const type *b, long count) {                \
    _Pragma("omp simd") for (long i = 0; i < count; i++) to[i] = (type)(a[i] + b[i]);                                    \
  }                                                                                                                      \
  static __attribute__((noinline)) const type *name##_block(type *to, const void *const *from, long first, long count,   \
                                                            int size) {                                                  \
    if (size == 1) return (const type *)from[0] + first;                                                                 \
    type left[WS_SUM_BLOCK], right[WS_SUM_BLOCK];                                                                        \
    const int half = (size + 1) / 2;                                                                                     \
    const type *a = name##_block(left, from, first, count, half);                                                        \
    const type *b = name##_block(right, from + half, first, count, size - half);                                         \
    name##_pair(to, a, b, count);                                                                                        \
    return to;                                                                                                           \
  }                                                                                                                      \
  static void name(type *to, const void *const *from, long count, int size) {                                            \
    if (size == 2) {                                                                                                     \
      name##_pair(to, (const type *)from[0], (const type *)from[1], count);                                              \
      return;                                                                                                            \
    }                                                                                                                    \
    for (long first = 0; first < count; first += WS_SUM_BLOCK) {                                                         \
      const long here = count - first < WS_SUM_BLOCK ? count - first : WS_SUM_BLOCK;                                     \
      const type *sum = name##_block(to + first, from, first, here, size);                                               \
      if (sum != to + first) __builtin_memmove(to + first, sum, (size_t)here * sizeof(type));                            \
    }                                                                                                                    \
  }

WS_TREE_SUM(ws_tree_sum_f32, float)
WS_TREE_SUM(ws_tree_sum_f64, double)
WS_TREE_SUM(ws_tree_sum_u32, uint32_t)                /* unsigned, so that integers wrap around */
WS_TREE_SUM(ws_tree_sum_u64, uint64_t)

/* Bytes per element of a collective of this dtype. */
static inline long ws_group_bytes(int dtype) { return dtype == WS_GROUP_F32 || dtype == WS_GROUP_I32 ? 4 : 8; }

/* to = the sum of `from`, which has one pointer per rank. */
static inline void ws_tree_sum(void *to, const void *const *from, long count, int size, int dtype) {
  switch (dtype) {
    case WS_GROUP_F32: ws_tree_sum_f32((float *)to, from, count, size); return;
    case WS_GROUP_F64: ws_tree_sum_f64((double *)to, from, count, size); return;
    case WS_GROUP_I32: ws_tree_sum_u32((uint32_t *)to, from, count, size); return;
    default: ws_tree_sum_u64((uint64_t *)to, from, count, size); return;
  }
}
#endif
