/* Reductions of generated kernels in a fixed order: 16 logical lanes, element i in lane i % 16, lanes combined pairwise
   (8, 4, 2, 1).
   Invariant: the order depends on the length alone, not on the vector width or the number of threads. */
#ifndef WS_REDUCE_H
#define WS_REDUCE_H
#include "math.h"
#include "ws.h"

WS_INLINE long ws_clamp(long i, long last) { return i < 0 ? 0 : i > last ? last : i; }

/* `word` is the type in which sums are computed: unsigned for integers, which wrap, since signed overflow is undefined. */
#define WS_REDUCTIONS(name, type, word, bits, maximum)                                                            \
  typedef word ws_half_##name __attribute__((vector_size(8 * sizeof(type)), aligned(sizeof(type)), may_alias));   \
  typedef bits ws_order_##name __attribute__((vector_size(8 * sizeof(type))));                                    \
  WS_INLINE type ws_lanes_sum_##name(const type *x) {                                                             \
    ws_half_##name s = *(const ws_half_##name *)x + *(const ws_half_##name *)(x + 8);                             \
    s = s + WS_SHUFFLE(ws_order_##name, s, s, 4, 5, 6, 7, 4, 5, 6, 7);                                            \
    s = s + WS_SHUFFLE(ws_order_##name, s, s, 2, 3, 2, 3, 2, 3, 2, 3);                                            \
    return (type)(word)(s[0] + s[1]);                                                                             \
  }                                                                                                               \
  WS_INLINE type ws_lanes_max_##name(const type *x) {                                                             \
    type s[16];                                                                                                   \
    for (int l = 0; l < 16; l++) s[l] = x[l];                                                                     \
    for (int half = 8; half; half /= 2)                                                                           \
      for (int l = 0; l < half; l++) { type m = s[l], y = s[l + half]; s[l] = maximum; }                          \
    return s[0];                                                                                                  \
  }                                                                                                               \
  /* Does y come before x in the order of a maximum?  NaN is the largest of all, as in numpy.argmax. */           \
  WS_INLINE int ws_exceeds_##name(type y, type x) { return (y > x) | ((y != y) & (x == x)); }                     \
  /* The first position of the largest value: lanes hold their own first ones, -1 where they are empty. */        \
  WS_INLINE int32_t ws_lanes_argmax_##name(const type *x, const int32_t *at) {                                    \
    type m = x[0];                                                                                                \
    int32_t best = at[0];                                                                                         \
    for (int l = 1; l < 16; l++) {                                                                                \
      int equal = !(ws_exceeds_##name(x[l], m) | ws_exceeds_##name(m, x[l]));                                     \
      int better = at[l] >= 0 && (best < 0 || ws_exceeds_##name(x[l], m) || (equal && at[l] < best));             \
      m = better ? x[l] : m;                                                                                      \
      best = better ? at[l] : best;                                                                               \
    }                                                                                                             \
    return best < 0 ? 0 : best;                                                                                   \
  }                                                                                                               \
  /* Reduce x[lane][column] to x[0][column], in the same order.  `few_` is the inlined form, for unrolled loops that   \
     keep x in registers; other loops call a function, since gcc takes longer for an inlined copy than for the loop. */ \
  WS_INLINE void ws_few_columns_sum_##name(type x[16][16]) {                                                      \
    for (int half = 8; half; half /= 2)                                                                           \
      for (int k = 0; k < half; k++)                                                                              \
        for (int l = 0; l < 16; l++) x[k][l] = (type)(word)((word)x[k][l] + (word)x[k + half][l]);                \
  }                                                                                                               \
  WS_INLINE void ws_few_columns_max_##name(type x[16][16]) {                                                      \
    for (int k = 1; k < 16; k++)                                                                                  \
      for (int l = 0; l < 16; l++) { type m = x[0][l], y = x[k][l]; x[0][l] = maximum; }                          \
  }
#define WS_COLUMNS(here, name, type)                                                                              \
  here void ws_columns_sum_##name(type x[16][16]) { ws_few_columns_sum_##name(x); }                               \
  here void ws_columns_max_##name(type x[16][16]) { ws_few_columns_max_##name(x); }
WS_REDUCTIONS(f32, float, float, int32_t, ws_max_f32(m, y))
WS_REDUCTIONS(f64, double, double, int64_t, ws_max_f64(m, y))
WS_REDUCTIONS(i32, int32_t, uint32_t, int32_t, (m > y ? m : y))
WS_REDUCTIONS(i64, int64_t, uint64_t, int64_t, (m > y ? m : y))
WS_REDUCTIONS(u8, uint8_t, uint8_t, int8_t, (m > y ? m : y))
WS_SHARED void ws_columns_sum_f32(float x[16][16]); /* shared, since most plans use it: gcc takes as long for it as for a kernel */
WS_SHARED void ws_columns_max_f32(float x[16][16]);
WS_COLUMNS(WS_APART, f64, double)
WS_COLUMNS(WS_APART, i32, int32_t)
WS_COLUMNS(WS_APART, i64, int64_t)
WS_COLUMNS(WS_APART, u8, uint8_t)
#endif
