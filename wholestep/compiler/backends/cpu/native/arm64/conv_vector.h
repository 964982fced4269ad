/* Multiply-adds of one element type with NEON: part of conv_tile.h.

   Statements of assembler keep each accumulator in its register, as with AVX2; the compiler schedules them. */
#define REGISTERS (REAL_BYTES == 4 ? 24 : 16) /* for accumulators, of 32: 16 doubles of weights take 8 */
#if REAL_BYTES == 4
#define LANES ".4s"
#else
#define LANES ".2d"
#endif

/* sum += x * y, with y in a register (fma) or in memory (fma_at). */
WS_TILE void NAME(fma)(V *sum, V x, V y) {
  __asm__("fmla %0" LANES ", %1" LANES ", %2" LANES : "+w"(*sum) : "w"(x), "w"(y));
}
WS_TILE void NAME(fma_at)(V *sum, V x, const REAL *p) { NAME(fma)(sum, x, *(const LOOSE *)p); }

WS_TILE V NAME(all)(const REAL *p) {
  V v;
  __asm__("ld1r {%0" LANES "}, %1" : "=w"(v) : "Q"(*p));
  return v;
}

/* sum[v] += *p * y[v]: multiply by one broadcast element. */
WS_TILE void NAME(spread)(V *sum, const REAL *p, const V *y, const int vectors) {
  const V x = NAME(all)(p);
#pragma GCC unroll 8
  for (int v = 0; v < vectors; v++) NAME(fma)(&sum[v], x, y[v]);
}
#undef LANES
