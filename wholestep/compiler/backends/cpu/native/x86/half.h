/* Rounding to bfloat16 with AVX512-BF16: part of half.h.  gcc 12 has no bfloat16 vectors, and rounding their bits takes 14
   cycles. */
WS_HALF void ws_round_bf16(uint16_t *to, const float *from) {
  typedef float floats __attribute__((vector_size(32), aligned(4), may_alias));
  typedef uint16_t halves __attribute__((vector_size(16), aligned(2), may_alias));
  for (int l = 0; l < 16; l += 8) {                   /* no wider than the stores before it, or it would wait for both */
    halves h;
    __asm__("vcvtneps2bf16y %1,%0" : "=x"(h) : "m"(*(const floats *)(from + l)));
    *(halves *)(to + l) = h;
  }
}
