/* Elementary functions for generated C.  Branch-free scalar code: gcc vectorizes it inside `omp simd` loops, and a
   vector gives the bits of the scalar, since every operation is an IEEE operation.  A multiply-add is fused only
   through WS_MADD, and only if the processor has it, so that bits are a function of the target, not of the compiler.
   Results below the smallest normal number may be flushed to zero: a step runs with FTZ and DAZ. */
#ifndef WS_MATH_H
#define WS_MATH_H
#include <stdint.h>
#include "philox.h"
#include "vectors.h"

#ifdef WS_FMA
#define WS_MADD_f32(x, y, z) __builtin_fmaf(x, y, z)
#define WS_MADD_f64(x, y, z) __builtin_fma(x, y, z)
#else
#define WS_MADD_f32(x, y, z) ((x) * (y) + (z))
#define WS_MADD_f64(x, y, z) ((x) * (y) + (z))
#endif
#define WS_INLINE static inline __attribute__((always_inline, unused))

WS_INLINE int32_t ws_bits_f32(float x) { int32_t i; __builtin_memcpy(&i, &x, 4); return i; }
WS_INLINE float ws_real_f32(int32_t i) { float x; __builtin_memcpy(&x, &i, 4); return x; }
WS_INLINE int64_t ws_bits_f64(double x) { int64_t i; __builtin_memcpy(&i, &x, 8); return i; }
WS_INLINE double ws_real_f64(int64_t i) { double x; __builtin_memcpy(&x, &i, 8); return x; }

/* ---- exact or correctly rounded ---- */
#define WS_SIMPLE(t, real, f)                                                                                     \
  WS_INLINE real ws_sqrt_##t(real x) { return __builtin_sqrt##f(x); }                                             \
  WS_INLINE real ws_abs_##t(real x) { return __builtin_fabs##f(x); }                                              \
  WS_INLINE real ws_floor_##t(real x) { return __builtin_floor##f(x); }                                           \
  WS_INLINE real ws_sign_##t(real x) { return x > 0 ? (real)1 : x < 0 ? (real)-1 : x == 0 ? (real)0 : x; }        \
  /* NaN wins, as in numpy.maximum */                                                                             \
  WS_INLINE real ws_max_##t(real x, real y) { return ((x >= y) | (x != x)) ? x : y; }                             \
  WS_INLINE real ws_min_##t(real x, real y) { return ((x <= y) | (x != x)) ? x : y; }                             \
  /* The result has the sign of the divisor, as in Python */                                                      \
  WS_INLINE real ws_mod_##t(real x, real y) {                                                                     \
    real r = __builtin_fmod##f(x, y);                                                                             \
    return r == 0 ? __builtin_copysign##f((real)0, y) : (r < 0) != (y < 0) ? r + y : r;                           \
  }                                                                                                               \
  /* The order in which the 16 lanes of every reduction are combined */                                           \
  WS_INLINE real ws_tree16_##t(const real lanes[16]) {                                                            \
    real s[8];                                                                                                    \
    for (int l = 0; l < 8; l++) s[l] = lanes[l] + lanes[l + 8];                                                   \
    for (int l = 0; l < 4; l++) s[l] = s[l] + s[l + 4];                                                           \
    return (s[0] + s[2]) + (s[1] + s[3]);                                                                         \
  }
WS_SIMPLE(f32, float, f)
WS_SIMPLE(f64, double, )

WS_INLINE int64_t ws_tree16_i64(const int64_t lanes[16]) {
  uint64_t sum = 0;                                   /* integer sums are exact in any order, and wrap */
  for (int l = 0; l < 16; l++) sum += (uint64_t)lanes[l];
  return (int64_t)sum;
}

/* ---- integers ---- The remainder has the divisor's sign; by 0 it is 0, as in NumPy.  A division by 0, or of the
   lowest number by -1, would trap: both are divided by 1 instead, which has the remainder 0. */
#define WS_MOD(t, type)                                                                                           \
  WS_INLINE type ws_mod_##t(type x, type y) {                                                                     \
    type d = ((y == 0) | (y == (type)-1 && (type)-1 < 0)) ? 1 : y, r = x % d;                                     \
    return r != 0 && (r < 0) != (d < 0) ? r + d : r;                                                              \
  }
WS_MOD(i32, int32_t)
WS_MOD(i64, int64_t)
WS_MOD(u8, uint8_t)

/* Floor division; by 0 it is 0, and the lowest number by -1 wraps to itself, as in NumPy.  A shift by at least the
   number of bits, or by a negative number, gives 0, and to the right of a signed type copies of the sign. */
#define WS_INTEGERS(t, type, word, bits)                                                                          \
  WS_INLINE type ws_floor_divide_##t(type x, type y) {                                                            \
    const int minus = y == (type)-1 && (type)-1 < 0;                                                              \
    const type d = ((y == 0) | minus) ? 1 : y, q = x / d, r = x % d;                                              \
    const type down = r != 0 && (r < 0) != (d < 0) ? q - 1 : q;                                                   \
    return y == 0 ? 0 : minus ? (type)((word)0 - (word)x) : down;                                                 \
  }                                                                                                               \
  WS_INLINE type ws_left_shift_##t(type x, type y) {                                                              \
    return (word)y < bits ? (type)((word)x << ((word)y & (bits - 1))) : 0;                                        \
  }                                                                                                               \
  WS_INLINE type ws_right_shift_##t(type x, type y) {                                                             \
    return (type)(x >> ((word)y < bits ? (word)y : bits - 1)) * ((word)y < bits || (type)-1 < 0);                 \
  }
WS_INTEGERS(i32, int32_t, uint32_t, 32)
WS_INTEGERS(i64, int64_t, uint64_t, 64)
WS_INTEGERS(u8, uint8_t, uint32_t, 8)

/* Truncation to an integer, saturated to the type's range; NaN becomes 0. */
#define WS_TO_INTEGER(t, real, f)                                                                                 \
  WS_INLINE int32_t ws_i32_##t(real x) {                                                                          \
    return x != x ? 0 : x <= (real)-0x1p31 ? INT32_MIN : x >= (real)0x1p31 ? INT32_MAX : (int32_t)x;              \
  }                                                                                                               \
  WS_INLINE int64_t ws_i64_##t(real x) {                                                                          \
    return x != x ? 0 : x <= (real)-0x1p63 ? INT64_MIN : x >= (real)0x1p63 ? INT64_MAX : (int64_t)x;              \
  }                                                                                                               \
  WS_INLINE uint8_t ws_u8_##t(real x) { return x > 0 ? x >= 255 ? 255 : (uint8_t)x : 0; }
WS_TO_INTEGER(f32, float, f)
WS_TO_INTEGER(f64, double, )

#include "math_f64.h"
#include "math_f32.h"

/* ---- random ---- */
WS_INLINE float ws_uniform_f32(uint64_t seed, uint64_t step, uint64_t key, uint64_t element) {
  return (float)(int32_t)(ws_philox_u32(seed, step, key, element) >> 8) * 0x1p-24f;
}
WS_INLINE double ws_uniform_f64(uint64_t seed, uint64_t step, uint64_t key, uint64_t element) {
  return (double)(int32_t)(ws_philox_u32(seed, step, key, element) >> 8) * 0x1p-24;
}
/* The same for element 4*block + word. */
WS_INLINE float ws_uniform_of_block_f32(uint64_t seed, uint64_t step, uint64_t key, uint64_t block, int word) {
  return (float)(int32_t)(ws_philox_block(seed, step, key, block).x[word] >> 8) * 0x1p-24f;
}
WS_INLINE double ws_uniform_of_block_f64(uint64_t seed, uint64_t step, uint64_t key, uint64_t block, int word) {
  return (double)(int32_t)(ws_philox_block(seed, step, key, block).x[word] >> 8) * 0x1p-24;
}
#endif
