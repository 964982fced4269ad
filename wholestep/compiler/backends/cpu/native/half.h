/* bfloat16 and float16 are stored as the bits of a uint16_t; arithmetic is in float.  Conversions are branch-free, so
   that loops over them are vectorized, and use integer arithmetic, so that every instruction set gives the same bits.
   Round to nearest, ties to even; NaN is preserved and becomes quiet.  A bfloat16 has the range of a float: subnormals
   count as zero, as everywhere inside a step (and in vcvtneps2bf16).  A float16 keeps its subnormals. */
#ifndef WS_HALF_H
#define WS_HALF_H
#include <stdint.h>

/* Shuffle indices that interleave the two halves of 32 elements. */
#define WS_INTERLEAVED 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#define WS_HALF static inline __attribute__((always_inline))

WS_HALF uint32_t ws_bits(float x) { uint32_t u; __builtin_memcpy(&u, &x, 4); return u; }
WS_HALF float ws_from_bits(uint32_t u) { float x; __builtin_memcpy(&x, &u, 4); return x; }

WS_HALF float ws_f32_bf16(uint16_t h) { return ws_from_bits((uint32_t)h << 16); }
WS_HALF uint16_t ws_bf16_f32(float x) {
  const uint32_t u = ws_bits(x), magnitude = u & 0x7fffffffu;
  const uint32_t rounded = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
  const uint32_t number = magnitude < 0x00800000u ? u >> 16 & 0x8000u : rounded;
  return (uint16_t)(magnitude > 0x7f800000u ? u >> 16 | 0x40u : number);
}

/* A float rounded to the nearest bfloat16, as a float. */
WS_HALF float ws_rounded_bf16(float x) {
  const uint32_t u = ws_bits(x), magnitude = u & 0x7fffffffu;
  const uint32_t rounded = magnitude < 0x00800000u ? u : u + 0x7fffu + (u >> 16 & 1u);
  const uint32_t kept = magnitude > 0x7f800000u ? u | 0x400000u : rounded;
  return ws_from_bits(kept & (magnitude < 0x00800000u ? 0x80000000u : 0xffff0000u));
}

WS_HALF float ws_f32_f16(uint16_t h) {
  const uint32_t magnitude = (uint32_t)(h & 0x7fffu) << 13, exponent = magnitude & 0x0f800000u;
  const uint32_t wide = magnitude + (exponent == 0x0f800000u ? 0x70000000u : 0x38000000u);
  const float small = ws_from_bits(magnitude + 0x38800000u) - 0x1p-14f;   /* exact: a multiple of 2^-24 */
  return ws_from_bits((uint32_t)(h & 0x8000u) << 16 | (exponent ? wide : ws_bits(small)));
}
WS_HALF uint16_t ws_f16_f32(float x) {
  const uint32_t sign = ws_bits(x) & 0x80000000u, u = ws_bits(x) ^ sign;
  const uint32_t small = ws_bits(ws_from_bits(u) + 0.5f) - 0x3f000000u;   /* the sum rounds to a multiple of 2^-24 */
  const uint32_t number = (u + 0xc8000fffu + (u >> 13 & 1u)) >> 13;
  const uint32_t large = u > 0x7f800000u ? 0x7e00u | (u >> 13 & 0x3ffu) : 0x7c00u;
  return (uint16_t)(sign >> 16 | (u >= 0x47800000u ? large : u < 0x38800000u ? small : number));
}

/* Round 16 floats at a time. */
WS_HALF void ws_round_f16(uint16_t *to, const float *from) {
  for (int l = 0; l < 16; l++) to[l] = ws_f16_f32(from[l]);
}
#ifdef __AVX512BF16__
#include "x86/half.h"
#else
WS_HALF void ws_round_bf16(uint16_t *to, const float *from) {
  for (int l = 0; l < 16; l++) to[l] = ws_bf16_f32(from[l]);
}
#endif
#endif
