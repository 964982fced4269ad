/* Functions of the scalar prologue in double: pow, sin and cos to an ulp, without the C library, whose bits differ
   between systems.  They use no fused multiply-add, so their bits are the same on every target. */
#ifndef WS_MATH_PROLOGUE_H
#define WS_MATH_PROLOGUE_H
#include "math.h"

/* A number as an unevaluated sum: |low| is at most half an ulp of high. */
typedef struct { double high, low; } ws_pair_f64;

WS_INLINE ws_pair_f64 ws_sum_f64(double x, double y) {  /* |x| >= |y| */
  const double s = x + y;
  return (ws_pair_f64){s, y - (s - x)};
}

/* The upper 26 bits of the significand: products of two such numbers are exact. */
WS_INLINE double ws_upper_f64(double x) { return ws_real_f64(ws_bits_f64(x) & (int64_t)0xfffffffff8000000u); }

WS_INLINE ws_pair_f64 ws_two_product_f64(double x, double y) {
  const double p = x * y, xh = ws_upper_f64(x), yh = ws_upper_f64(y), xl = x - xh, yl = y - yh;
  return (ws_pair_f64){p, ((xh * yh - p) + (xh * yl + xl * yh)) + xl * yl};
}

WS_INLINE double ws_prologue_floor(double x) {
  if (!(__builtin_fabs(x) < 0x1p52)) return x;
  const double t = (double)(int64_t)x;
  return __builtin_copysign(t > x ? t - 1.0 : t, x);
}

/* The remainder of x / y, exact: multiples of y are subtracted from the largest one on.  It has the sign of y. */
WS_INLINE double ws_prologue_mod(double x, double y) {
  double a = __builtin_fabs(x), b = __builtin_fabs(y), s = b;
  if (!(a < __builtin_inf()) || !(b > 0)) return __builtin_nan("");
  while (s <= 0.5 * a) s *= 2.0;
  for (; a >= b; s *= 0.5) a -= s <= a ? s : 0.0;
  const double r = x < 0 ? -a : a;
  return r == 0 ? __builtin_copysign(0.0, y) : (r < 0) != (y < 0) ? r + y : r;
}

/* log(x) for finite x > 0, from 2 atanh(s) = 2s + s z (2/3 + 2/5 z + ...) with s = f / (2 + f), z = s^2; error 2^-65. */
WS_INLINE ws_pair_f64 ws_log_pair_f64(double x) {
  const ws_split_f64 of = ws_split_of_f64(x);
  const ws_pair_f64 t = ws_sum_f64(2.0, of.f);
  const double s = of.f / t.high;
  const ws_pair_f64 back = ws_two_product_f64(s, t.high);
  const double rest = (((of.f - back.high) - back.low) - s * t.low) / t.high;
  ws_pair_f64 z = ws_two_product_f64(s, s);
  z.low += 2.0 * s * rest;
  double q = 0.0;
  for (int k = 25; k >= 5; k -= 2) q = q * z.high + 2.0 / k;
  const ws_pair_f64 c = ws_sum_f64(0x1.5555555555555p-1, 0x1.5555555555555p-55 + q * z.high);
  ws_pair_f64 cube = ws_two_product_f64(s, z.high), term = ws_two_product_f64(cube.high, c.high);
  term.low += cube.high * c.low + (cube.low + s * z.low + rest * z.high) * c.high;
  const ws_pair_f64 part = ws_sum_f64(2.0 * s, term.high), whole = ws_sum_f64(of.e * WS_LN2_HI_f64, part.high);
  const double low = whole.low + (part.low + (term.low + 2.0 * rest) + of.e * WS_LN2_LO_f64);
  const ws_pair_f64 alone = ws_sum_f64(part.high, part.low + (term.low + 2.0 * rest));
  return of.e == 0 ? alone : ws_sum_f64(whole.high, low);
}

/* exp(x + low): as ws_exp_f64, without fused multiply-adds. */
WS_INLINE double ws_exp_of_pair_f64(double x, double low) {
  const double c = x < WS_EXP_MIN_f64 ? WS_EXP_MIN_f64 : x > 710.0 ? 710.0 : x;
  const double t = c * 0x1.71547652b82fep0 + WS_ROUND_f64, n = t - WS_ROUND_f64;
  const double a = c - n * WS_LN2_HI_f64, b = n * WS_LN2_LO_f64, r = a - b, rest = ((a - r) - b) + low;
  double p = 1.0;
  for (int k = 14; k >= 3; k--) p = p * r / k + 1.0;
  const double square = 0.5 * (r * r) * p, core = (square + rest * (1.0 + r + square)) + r;
  return x < WS_EXP_MIN_f64 ? 0.0 : ws_scale_f64(1.0 + core, t, c > 0);
}

WS_INLINE double ws_prologue_pow(double x, double y) {
  const double a = __builtin_fabs(x), whole = ws_prologue_floor(y), half = 0.5 * y;
  const double bounded = a > 0 && a < __builtin_inf() ? a : 1.0;
  const ws_pair_f64 l = ws_log_pair_f64(bounded);
  const double steep = y > 0x1p80 ? 0x1p80 : y < -0x1p80 ? -0x1p80 : y; /* no infinities in the products */
  const ws_pair_f64 p = ws_two_product_f64(l.high, steep);
  const double rest = __builtin_fabs(p.high) < 1000.0 ? p.low + l.low * steep : 0.0;
  double r = ws_exp_of_pair_f64(p.high, rest);
  if (a == 0) r = y > 0 ? 0.0 : __builtin_inf();
  if (a == __builtin_inf()) r = y > 0 ? __builtin_inf() : 0.0;
  if (x != x || y != y) r = __builtin_nan("");
  if (x < 0 && a < __builtin_inf() && whole != y) r = __builtin_nan("");
  if (whole == y && ws_prologue_floor(half) != half) r = __builtin_copysign(r, x);
  return y == 0 || x == 1.0 || (x == -1.0 && (y == __builtin_inf() || y == -__builtin_inf())) ? 1.0 : r;
}

/* sin of x (quarter 0) or cos (1): pi/2 in three parts, exact for |x| below 2^20, then Taylor's series. */
WS_INLINE double ws_prologue_sine(double x, int64_t quarter) {
  const double t = x * 0x1.45f306dc9c883p-1 + WS_ROUND_f64, n = t - WS_ROUND_f64;
  const double a = x - n * 0x1.921fb544p0, b = n * 0x1.0b4611a6p-34, c = a - b;
  const double r = c + (((a - c) - b) - n * 0x1.3198a2e037073p-69), z = r * r;
  double s = 1.0, k = 1.0;
  for (int i = 18; i >= 4; i -= 2) s = 1.0 - s * z / (i * (i + 1)), k = 1.0 - k * z / ((i + 1) * (i + 2));
  s = r - r * z * s / 6.0;
  k = 1.0 - (0.5 * z - z * z * k / 24.0);
  const int64_t turn = ws_bits_f64(t) + quarter;
  const double y = turn & 1 ? k : s;
  return turn & 2 ? -y : y;
}
WS_INLINE double ws_prologue_sin(double x) { return x == 0 ? x : ws_prologue_sine(x, 0); }
WS_INLINE double ws_prologue_cos(double x) { return ws_prologue_sine(x, 1); }
#endif
