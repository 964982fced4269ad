/* Vector loads, stores and multiply-adds of one element type with AVX2 or AVX-512: part of gemm_tile.h.

   Inline assembly pins each accumulator to one register: given plain expressions, gcc 12 copies and spills them, which
   costs 11-14 % of a GPT step.  Invariant: a masked access touches only the columns that exist. */
typedef REAL NAME(vec) __attribute__((vector_size(BYTES)));
typedef REAL NAME(loose) __attribute__((vector_size(BYTES), aligned(sizeof(REAL)), may_alias));
#define V NAME(vec)
#define LOOSE NAME(loose)
#define MASK NAME(mask)
#if REAL_BYTES == 4
#define SUFFIX "ps"
#define BROADCAST "vbroadcastss"
#define TO_ALL "1to16"
#else
#define SUFFIX "pd"
#define BROADCAST "vbroadcastsd"
#define TO_ALL "1to8"
#endif
#ifdef WS_PAIRS
#define MULTIPLY_ADD "vdpbf16ps"
#else
#define MULTIPLY_ADD "vfmadd231" SUFFIX
#endif

#ifdef __AVX512F__
typedef unsigned short NAME(mask);
static MASK NAME(first)(long columns) { return (MASK)(columns < WIDTH ? (1u << columns) - 1 : 0xffffu); }
#define LOAD_MASKED "vmovu" SUFFIX " %1,%0%{%2%}%{z%}"
#define STORE_MASKED "vmovu" SUFFIX " %2,%0%{%1%}"
#define MASK_REGISTER "Yk"

/* sum += *p * y.  On Zen 4 a separate broadcast takes a third of a cycle from the multipliers; an embedded one none. */
INLINE void NAME(multiply)(V *sum, const REAL *p, const V *y, const int vectors) {
#pragma GCC unroll 2
  for (int v = 0; v < vectors; v++)
    __asm__(MULTIPLY_ADD " %2%{" TO_ALL "%},%1,%0" : "+v"(sum[v]) : "v"(y[v]), "m"(*p));
}
#else
typedef BITS NAME(mask) __attribute__((vector_size(BYTES)));
static MASK NAME(first)(long columns) {
  MASK mask = {0};
  for (int l = 0; l < WIDTH; l++) mask[l] = l < columns ? -1 : 0;
  return mask;
}
#define LOAD_MASKED "vmaskmov" SUFFIX " %1,%2,%0"
#define STORE_MASKED "vmaskmov" SUFFIX " %2,%1,%0"
#define MASK_REGISTER "x"

INLINE void NAME(multiply)(V *sum, const REAL *p, const V *y, const int vectors) {
  V x;
  __asm__(BROADCAST " %1,%0" : "=x"(x) : "m"(*p));
#pragma GCC unroll 2
  for (int v = 0; v < vectors; v++) __asm__("vfmadd231" SUFFIX " %2,%1,%0" : "+x"(sum[v]) : "x"(y[v]), "x"(x));
}
#endif

INLINE V NAME(load)(const REAL *p, MASK valid, const int masked) {
  if (!masked) return *(const LOOSE *)p;
  V v;
  __asm__(LOAD_MASKED : "=v"(v) : "m"(*(const LOOSE *)p), MASK_REGISTER(valid));
  return v;
}
INLINE void NAME(store)(REAL *p, V v, MASK valid, const int masked) {
  if (!masked) *(LOOSE *)p = v;
  else __asm__ volatile(STORE_MASKED : "+m"(*(LOOSE *)p) : MASK_REGISTER(valid), "v"(v));
}
#undef LOAD_MASKED
#undef STORE_MASKED
#undef MASK_REGISTER
