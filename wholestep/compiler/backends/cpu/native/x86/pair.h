/* Pairs of bfloat16 with AVX512-BF16: part of pair.h. */
typedef float ws_v16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t ws_h16 __attribute__((vector_size(32), aligned(2), may_alias));
typedef uint16_t ws_h32 __attribute__((vector_size(64)));

static inline void ws_pair_plain_bf16(uint16_t *to, const float *from) {
#pragma GCC unroll 8
  for (int k = 0; k < 16; k += 2) {
    ws_h32 rows;
    __asm__("vcvtne2ps2bf16 %2,%1,%0" : "=v"(rows) : "v"(*(const ws_v16 *)(from + 16 * k + 16)), "vm"(*(const ws_v16 *)(from + 16 * k)));
    rows = WS_SHUFFLE(ws_h32, rows, rows, WS_INTERLEAVED);
    __builtin_memcpy(to + 16 * k, &rows, 64);
  }
}

static inline void ws_pair_transposed_bf16(uint16_t *to, const float *from) {
  uint32_t two[16][8] __attribute__((aligned(64)));
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++)
    __asm__("vcvtneps2bf16 %1,%0" : "=v"(*(ws_h16 *)two[i]) : "vm"(*(const ws_v16 *)(from + 16 * i)));
  ws_turn_8x8((float *)(void *)to, (const float *)(const void *)two[0], 8);
  ws_turn_8x8((float *)(void *)to + 8, (const float *)(const void *)two[8], 8);
}
