/* Part of math.h: double.  The same methods as math_f32.h, with polynomials of higher degree; sin, cos, erf and pow are those
   of the C library. */
#define WS_ROUND_f64 0x1.8p52
#define WS_LN2_HI_f64 0x1.62e42feep-1
#define WS_LN2_LO_f64 0x1.a39ef35793c76p-33

WS_INLINE double ws_expm1_core_f64(double r) {
  double p = 0x1.1f9e302e6a549p-29;
  p = WS_MADD_f64(p, r, 0x1.af6d4b957c6a4p-26);
  p = WS_MADD_f64(p, r, 0x1.27e4bf018d733p-22);
  p = WS_MADD_f64(p, r, 0x1.71ddef4bb1779p-19);
  p = WS_MADD_f64(p, r, 0x1.a01a01b46f167p-16);
  p = WS_MADD_f64(p, r, 0x1.a01a01b3d7c69p-13);
  p = WS_MADD_f64(p, r, 0x1.6c16c16c13524p-10);
  p = WS_MADD_f64(p, r, 0x1.111111110eb69p-7);
  p = WS_MADD_f64(p, r, 0x1.555555555555ep-5);
  p = WS_MADD_f64(p, r, 0x1.555555555555cp-3);
  p = WS_MADD_f64(p, r, 0.5);
  return WS_MADD_f64(r * r, p, r);
}

/* y * 2^n, n in the low bits of t; for a large n one factor 2 is applied last, since a double cannot hold 2^1024. */
WS_INLINE double ws_scale_f64(double y, double t, int64_t large) {
  const uint64_t n = (uint64_t)ws_bits_f64(t) - (uint64_t)large + 1023;
  return y * ws_real_f64((int64_t)(n << 52)) * (large ? 2.0 : 1.0);
}

#define WS_EXP_MIN_f64 -708.3964185322641             /* exp of this argument is the smallest normal number */

WS_INLINE double ws_exp_f64(double x) {
  const double c = x < WS_EXP_MIN_f64 ? WS_EXP_MIN_f64 : x > 710.0 ? 710.0 : x;
  const double t = WS_MADD_f64(c, 0x1.71547652b82fep0, WS_ROUND_f64), n = t - WS_ROUND_f64;
  double r = WS_MADD_f64(n, -WS_LN2_HI_f64, c);
  r = WS_MADD_f64(n, -WS_LN2_LO_f64, r);
  return x < WS_EXP_MIN_f64 ? 0.0 : ws_scale_f64(1.0 + ws_expm1_core_f64(r), t, c > 0);
}

WS_INLINE double ws_exp2_f64(double x) {
  const double c = x < -1022.0 ? -1022.0 : x > 1025.0 ? 1025.0 : x;
  const double t = c + WS_ROUND_f64, f = c - (t - WS_ROUND_f64);
  const double y = 1.0 + ws_expm1_core_f64(f * 0x1.62e42fefa39efp-1);
  return x < -1022.0 ? 0.0 : x > 1025.0 ? __builtin_inf() : ws_scale_f64(y, t, c > 0);
}

WS_INLINE double ws_expm1_f64(double x) {
  const double c = x < -40.0 ? -40.0 : x > 709.9 ? 709.9 : x;
  const double t = WS_MADD_f64(c, 0x1.71547652b82fep0, WS_ROUND_f64), n = t - WS_ROUND_f64;
  double r = WS_MADD_f64(n, -WS_LN2_HI_f64, c);
  r = WS_MADD_f64(n, -WS_LN2_LO_f64, r);
  const double half = ws_real_f64((int64_t)(((uint64_t)ws_bits_f64(t) + 1022) << 52)); /* 2^(n-1) */
  const double y = 2.0 * WS_MADD_f64(half, ws_expm1_core_f64(r), half - 0.5);
  return x == 0 ? x : y;
}

/* x = 2^e * (1 + f), f in [sqrt(1/2) - 1, sqrt(2) - 1), for finite x > 0.  AVX2 cannot convert 64-bit integers, so the
   exponent is converted through the bits of 2^52 + exponent. */
typedef struct { double e, f; } ws_split_f64;
WS_INLINE ws_split_f64 ws_split_of_f64(double x) {
  const int64_t subnormal = x < 0x1p-1022;
  const uint64_t i = (uint64_t)ws_bits_f64(subnormal ? x * 0x1p52 : x) + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
  const double e = ws_real_f64((int64_t)((i >> 52) | 0x4330000000000000u)) - (0x1p52 + 1023.0);
  const double m = ws_real_f64((int64_t)((i & 0xfffffffffffffu) + 0x3fe6a09e667f3bcdu));
  return (ws_split_f64){e - (subnormal ? 52.0 : 0.0), m - 1.0};
}

/* log(1 + f) = f - (f^2/2 - q), with q from atanh(f / (2 + f)) */
WS_INLINE double ws_log_core_f64(double f) {
  const double s = f / (2.0 + f), z = s * s;
  double p = 0x1.2f10e94d286f1p-3;
  p = WS_MADD_f64(p, z, 0x1.39a0a53eaa621p-3);
  p = WS_MADD_f64(p, z, 0x1.7466490a3c73ap-3);
  p = WS_MADD_f64(p, z, 0x1.c71c51db2e3c8p-3);
  p = WS_MADD_f64(p, z, 0x1.2492494225c5p-2);
  p = WS_MADD_f64(p, z, 0x1.999999997fa52p-2);
  p = WS_MADD_f64(p, z, 0x1.5555555555593p-1);
  return s * WS_MADD_f64(p, z, 0.5 * (f * f));
}

WS_INLINE double ws_log_ends_f64(double x, double y) {
  y = x == __builtin_inf() ? x : y;
  y = x == 0 ? -__builtin_inf() : y;
  return x >= 0 ? y : __builtin_nan("");
}

WS_INLINE double ws_log_sum_f64(double e, double f, double rest) {
  const double q = ws_log_core_f64(f) + WS_MADD_f64(e, WS_LN2_LO_f64, rest);
  return WS_MADD_f64(e, WS_LN2_HI_f64, f - (0.5 * (f * f) - q));
}

WS_INLINE double ws_log_f64(double x) {
  const ws_split_f64 s = ws_split_of_f64(x);
  return ws_log_ends_f64(x, ws_log_sum_f64(s.e, s.f, 0.0));
}

WS_INLINE double ws_log2_f64(double x) {
  const ws_split_f64 s = ws_split_of_f64(x);
  const double z = 0.5 * (s.f * s.f);
  const double high = ws_real_f64(ws_bits_f64(s.f - z) & (int64_t)0xffffffff00000000u); /* its product is exact */
  const double low = ws_log_core_f64(s.f) + ((s.f - high) - z);
  const double rest = WS_MADD_f64(low + high, 0x1.705fc2eefa2p-33, low * 0x1.71547652p0);
  const double product = high * 0x1.71547652p0, sum = s.e + product;
  return ws_log_ends_f64(x, (((s.e - sum) + product) + rest) + sum);
}

WS_INLINE double ws_log1p_f64(double x) {
  const double u = 1.0 + x;
  const ws_split_f64 s = ws_split_of_f64(u);
  const double lost = (x < 1.0 ? x - (u - 1.0) : 1.0 - (u - x)) / u;
  const double y = ws_log_sum_f64(s.e, s.e == 0 ? x : s.f, s.e == 0 ? 0.0 : lost);
  return x == 0 ? x : ws_log_ends_f64(u, y);
}

WS_INLINE double ws_tanh_f64(double x) {
  const double a = __builtin_fabs(x), e = ws_expm1_f64(2.0 * (a > 25.0 ? 25.0 : a));
  return __builtin_copysign(e / (e + 2.0), x);
}

WS_INLINE double ws_sigmoid_f64(double x) {
  const double e = ws_exp_f64(-__builtin_fabs(x));
  return (x < 0 ? e : 1.0) / (1.0 + e);
}

WS_INLINE double ws_sin_f64(double x) { return __builtin_sin(x); }
WS_INLINE double ws_cos_f64(double x) { return __builtin_cos(x); }
/* atan by the argument reduction of math_f32.h; the rational function is from Cephes. */
WS_INLINE double ws_atan_f64(double x) {
  const double a = __builtin_fabs(x);
  const int64_t large = a > 2.41421356237309504880, middle = a > 0.66;
  const double t = large ? -1.0 / a : middle ? (a - 1.0) / (a + 1.0) : a;
  const double base = large ? 0x1.921fb54442d18p0 : middle ? 0x1.921fb54442d18p-1 : 0.0;
  const double rest = large ? 0x1.1a62633145c07p-54 : middle ? 0x1.1a62633145c07p-55 : 0.0;
  const double z = t * t;
  double p = -8.750608600031904122785e-1;
  p = WS_MADD_f64(p, z, -1.615753718733365076637e1);
  p = WS_MADD_f64(p, z, -7.500855792314704667340e1);
  p = WS_MADD_f64(p, z, -1.228866684490136173410e2);
  p = WS_MADD_f64(p, z, -6.485021904942025371773e1);
  double q = z + 2.485846490142306297962e1;
  q = WS_MADD_f64(q, z, 1.650270098316988542046e2);
  q = WS_MADD_f64(q, z, 4.328810604912902668951e2);
  q = WS_MADD_f64(q, z, 4.853903996359136964868e2);
  q = WS_MADD_f64(q, z, 1.945506571482613964425e2);
  const double y = base + (WS_MADD_f64(z * p / q, t, t) + rest);
  return x != x ? x : __builtin_copysign(y, x);
}

WS_INLINE double ws_erf_f64(double x) { return __builtin_erf(x); }
WS_INLINE double ws_pow_f64(double x, double y) { return __builtin_pow(x, y); }
