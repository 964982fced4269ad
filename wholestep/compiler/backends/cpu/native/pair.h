/* A half-precision copy of a float state in pairs: the layout that products of half elements read, two rows of a panel
   interleaved.

   Input is a block of 16 x 16 floats whose rows are 16 apart; output is [8][16][2], of the block or of its transpose.
   Invariant: values are rounded as in half.h; AVX512-BF16 instructions give the same bits. */
#ifndef WS_PAIR_H
#define WS_PAIR_H
#include "half.h"
#include "turn.h"

#define WS_PAIR(name)                                                                                              \
  static inline uint32_t ws_two_##name(float x, float y) {                                                         \
    return ws_##name##_f32(x) | (uint32_t)ws_##name##_f32(y) << 16;                                                \
  }                                                                                                                \
  static inline void ws_pair_plain_##name(uint16_t *to, const float *from) {                                       \
    for (int k = 0; k < 16; k += 2)                                                                                \
      for (int l = 0; l < 16; l++) {                                                                               \
        const uint32_t two = ws_two_##name(from[16 * k + l], from[16 * k + 16 + l]);                               \
        __builtin_memcpy(to + 16 * k + 2 * l, &two, 4);                                                            \
      }                                                                                                            \
  }                                                                                                                \
  static inline void ws_pair_transposed_##name(uint16_t *to, const float *from) {                                  \
    uint32_t two[16][8];                                                                                           \
    for (int i = 0; i < 16; i++)                                                                                   \
      for (int l = 0; l < 8; l++) two[i][l] = ws_two_##name(from[16 * i + 2 * l], from[16 * i + 2 * l + 1]);       \
    ws_turn_8x8((float *)(void *)to, (const float *)(const void *)two[0], 8);                                      \
    ws_turn_8x8((float *)(void *)to + 8, (const float *)(const void *)two[8], 8);                                  \
  }
WS_PAIR(f16)

#ifdef __AVX512BF16__
#include "x86/pair.h"
#else
WS_PAIR(bf16)
#endif

/* A partial block of `rows` x `columns`: missing pairs of rows are not written, missing elements are zero. */
#define WS_PAIR_PART(way, name, count)                                                                             \
  static inline void ws_pair_some_##way##_##name(uint16_t *to, const float *from, long rows, long columns) {       \
    if (rows >= 16 && columns >= 16) {                                                                             \
      ws_pair_##way##_##name(to, from);                                                                            \
      return;                                                                                                      \
    }                                                                                                              \
    float whole[256] = {0};                                                                                        \
    uint16_t pairs[256];                                                                                           \
    for (long i = 0; i < rows && i < 16; i++)                                                                      \
      for (long j = 0; j < columns && j < 16; j++) whole[16 * i + j] = from[16 * i + j];                           \
    ws_pair_##way##_##name(pairs, whole);                                                                          \
    __builtin_memcpy(to, pairs, (size_t)((count < 16 ? count : 16) + 1) / 2 * 64);                                 \
  }
WS_PAIR_PART(plain, bf16, rows)
WS_PAIR_PART(transposed, bf16, columns)
WS_PAIR_PART(plain, f16, rows)
WS_PAIR_PART(transposed, f16, columns)
#endif
