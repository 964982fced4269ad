/* Vector loads, stores and multiply-adds of one element type with NEON: part of gemm_tile.h.

   Inline assembly keeps each accumulator in its register.  bfdot rounds its three sums to odd, whatever FPCR is.
   Invariant: an access touches only the columns that exist: NEON has no masks, so the last columns are read and written
   one by one, `MASK` of them. */
typedef REAL NAME(vec) __attribute__((vector_size(BYTES)));
typedef REAL NAME(loose) __attribute__((vector_size(BYTES), aligned(sizeof(REAL)), may_alias));
#define V NAME(vec)
#define LOOSE NAME(loose)
#define MASK long
#if REAL_BYTES == 4
#define LANES ".4s"
#else
#define LANES ".2d"
#endif

static MASK NAME(first)(long columns) { return columns < WIDTH ? columns : WIDTH; }

#ifdef WS_PAIRS
#define MULTIPLY_ADD "bfdot %0.4s, %1.8h, %2.8h"
#else
#define MULTIPLY_ADD "fmla %0" LANES ", %1" LANES ", %2" LANES
#endif

/* sum += *p * y */
INLINE void NAME(multiply)(V *sum, const REAL *p, const V *y, const int vectors) {
  V x;
  __asm__("ld1r {%0" LANES "}, %1" : "=w"(x) : "Q"(*p));
#pragma GCC unroll 2
  for (int v = 0; v < vectors; v++) __asm__(MULTIPLY_ADD : "+w"(sum[v]) : "w"(y[v]), "w"(x));
}

INLINE V NAME(load)(const REAL *p, MASK valid, const int masked) {
  if (!masked || valid == WIDTH) return *(const LOOSE *)p;
  V v = {p[0]};
  for (long l = 1; l < WIDTH - 1; l++) v[l] = l < valid ? p[l] : 0;
  return v;
}
INLINE void NAME(store)(REAL *p, V v, MASK valid, const int masked) {
  if (!masked || valid == WIDTH) *(LOOSE *)p = v;
  else
    for (long l = 0; l < valid; l++) p[l] = v[l];
}
#undef LANES
#undef MULTIPLY_ADD
