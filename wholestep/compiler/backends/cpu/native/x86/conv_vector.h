/* Multiply-adds of one element type and vector width with AVX2 or AVX-512: part of conv_tile.h. */
#if BYTES == 64
#define REGISTER "v"
#define REGISTERS 24 /* for accumulators, of 32 */
#else
#define REGISTER "x" /* narrower vectors have 16 registers, since plans are compiled without avx512vl */
#define REGISTERS 12
#endif
#if REAL_BYTES == 4
#define SUFFIX "ps"
#define BROADCAST "vbroadcastss"
#define TO_ALL "1to16"
#else
#define SUFFIX "pd"
#define BROADCAST "vbroadcastsd"
#define TO_ALL "1to8"
#endif

/* sum += x * y, with y in a register (fma) or in memory (fma_at). */
WS_TILE void NAME(fma)(V *sum, V x, V y) {
  __asm__("vfmadd231" SUFFIX " %2,%1,%0" : "+" REGISTER(*sum) : REGISTER(x), REGISTER(y));
}
WS_TILE void NAME(fma_at)(V *sum, V x, const REAL *p) {
  __asm__("vfmadd231" SUFFIX " %2,%1,%0" : "+" REGISTER(*sum) : REGISTER(x), "m"(*(const LOOSE *)p));
}

WS_TILE V NAME(all)(const REAL *p) {
  V v; /* volatile: gcc would keep values that neighbouring pixels share in registers, and spill accumulators */
  __asm__ volatile(BROADCAST " %1,%0" : "=" REGISTER(v) : "m"(*p));
  return v;
}

/* sum[v] += *p * y[v]: multiply by one broadcast element. */
WS_TILE void NAME(spread)(V *sum, const REAL *p, const V *y, const int vectors) {
#if BYTES == 64
#pragma GCC unroll 4
  for (int v = 0; v < vectors; v++)
    __asm__("vfmadd231" SUFFIX " %2%{" TO_ALL "%},%1,%0" : "+v"(sum[v]) : "v"(y[v]), "m"(*p));
#else
  const V x = NAME(all)(p);
#pragma GCC unroll 4
  for (int v = 0; v < vectors; v++) NAME(fma)(&sum[v], x, y[v]);
#endif
}
#undef REGISTER
#undef SUFFIX
#undef BROADCAST
#undef TO_ALL
