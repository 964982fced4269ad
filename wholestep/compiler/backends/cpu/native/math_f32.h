/* Part of math.h: float.  Each function reduces its argument to a short interval and evaluates a polynomial there, our own
   minimax fit; test_math.py measures the errors in ulp.
   Invariant: no branch depends on a value, so that a loop over a function is vectorized. */

/* n = round(x) for |x| < 2^22, by adding 1.5 * 2^23: the integer is then in the low bits of the sum. */
#define WS_ROUND_f32 0x1.8p23f
#define WS_LN2_HI_f32 0x1.62e4p-1f                    /* 15 bits: n * hi is exact */
#define WS_LN2_LO_f32 0x1.7f7d1cp-20f

/* expm1(r) for |r| <= ln2/2 */
WS_INLINE float ws_expm1_core_f32(float r) {
  float p = 0x1.6db4d4p-10f;
  p = WS_MADD_f32(p, r, 0x1.123be2p-7f);
  p = WS_MADD_f32(p, r, 0x1.55545ep-5f);
  p = WS_MADD_f32(p, r, 0x1.55548ep-3f);
  p = WS_MADD_f32(p, r, 0.5f);
  return WS_MADD_f32(r * r, p, r);
}

/* y * 2^n for n in [-252, 254], in two factors so that only the result can overflow or underflow. */
WS_INLINE float ws_scale_f32(float y, int32_t n) {
  const uint32_t half = (uint32_t)(n >> 1), rest = (uint32_t)n - half;
  return y * ws_real_f32((int32_t)((half + 127) << 23)) * ws_real_f32((int32_t)((rest + 127) << 23));
}

WS_INLINE float ws_exp_f32(float x) {
  x = x < -110.f ? -110.f : x > 90.f ? 90.f : x;
  const float t = WS_MADD_f32(x, 0x1.715476p0f, WS_ROUND_f32), n = t - WS_ROUND_f32;
  float r = WS_MADD_f32(n, -WS_LN2_HI_f32, x);
  r = WS_MADD_f32(n, -WS_LN2_LO_f32, r);
  return ws_scale_f32(1.f + ws_expm1_core_f32(r), ws_bits_f32(t) - ws_bits_f32(WS_ROUND_f32));
}

WS_INLINE float ws_exp2_f32(float x) {
  x = x < -160.f ? -160.f : x > 130.f ? 130.f : x;
  const float t = x + WS_ROUND_f32, f = x - (t - WS_ROUND_f32);
  float p = 0x1.00f1aep-16f;
  p = WS_MADD_f32(p, f, 0x1.445f1cp-13f);
  p = WS_MADD_f32(p, f, 0x1.5d8722p-10f);
  p = WS_MADD_f32(p, f, 0x1.3b29fp-7f);
  p = WS_MADD_f32(p, f, 0x1.c6b08ep-5f);
  p = WS_MADD_f32(p, f, 0x1.ebfbep-3f);
  p = WS_MADD_f32(p, f, 0x1.62e43p-1f);
  return ws_scale_f32(WS_MADD_f32(p, f, 1.f), ws_bits_f32(t) - ws_bits_f32(WS_ROUND_f32));
}

WS_INLINE float ws_expm1_f32(float x) {
  const float c = x < -20.f ? -20.f : x > 90.f ? 90.f : x;
  const float t = WS_MADD_f32(c, 0x1.715476p0f, WS_ROUND_f32), n = t - WS_ROUND_f32;
  float r = WS_MADD_f32(n, -WS_LN2_HI_f32, c);
  r = WS_MADD_f32(n, -WS_LN2_LO_f32, r);
  int32_t e = ws_bits_f32(t) - ws_bits_f32(WS_ROUND_f32) + 126;
  e = e > 254 ? 254 : e;
  const float half = ws_real_f32((int32_t)((uint32_t)e << 23)); /* 2^(n-1), since a float cannot hold 2^128 */
  const float y = 2.f * WS_MADD_f32(half, ws_expm1_core_f32(r), half - 0.5f);
  return x == 0 ? x : x > 89.f ? __builtin_inff() : y;
}

/* x = 2^e * (1 + f), f in [sqrt(1/2) - 1, sqrt(2) - 1), for finite x > 0 */
typedef struct { float e, f; } ws_split_f32;
WS_INLINE ws_split_f32 ws_split_of_f32(float x) {
  const int32_t subnormal = x < 0x1p-126f;
  const int32_t i = ws_bits_f32(subnormal ? x * 0x1p23f : x) - 0x3f3504f3;
  return (ws_split_f32){(float)((i >> 23) - (subnormal ? 23 : 0)), ws_real_f32((i & 0x7fffff) + 0x3f3504f3) - 1.f};
}

/* (log(1 + f) - f + f^2/2) / f^3 */
WS_INLINE float ws_log_core_f32(float f) {
  float p = -0x1.38b16cp-4f;
  p = WS_MADD_f32(p, f, 0x1.055a98p-3f);
  p = WS_MADD_f32(p, f, -0x1.0d85a4p-3f);
  p = WS_MADD_f32(p, f, 0x1.22da4p-3f);
  p = WS_MADD_f32(p, f, -0x1.54723ep-3f);
  p = WS_MADD_f32(p, f, 0x1.99a006p-3f);
  p = WS_MADD_f32(p, f, -0x1.000228p-2f);
  return WS_MADD_f32(p, f, 0x1.555554p-2f);
}

/* The values of every logarithm at the ends of its domain: -inf at 0, NaN below, x itself at inf and NaN. */
WS_INLINE float ws_log_ends_f32(float x, float y) {
  y = x == __builtin_inff() ? x : y;
  y = x == 0 ? -__builtin_inff() : y;
  return x >= 0 ? y : __builtin_nanf("");
}

WS_INLINE float ws_log_sum_f32(float e, float f, float rest) {
  const float z = f * f;
  float y = WS_MADD_f32(e, WS_LN2_LO_f32, rest);
  y = WS_MADD_f32(ws_log_core_f32(f) * f, z, y);
  y = WS_MADD_f32(-0.5f, z, y);
  return WS_MADD_f32(e, WS_LN2_HI_f32, f + y);
}

WS_INLINE float ws_log_f32(float x) {
  const ws_split_f32 s = ws_split_of_f32(x);
  return ws_log_ends_f32(x, ws_log_sum_f32(s.e, s.f, 0.f));
}

WS_INLINE float ws_log2_f32(float x) {
  const ws_split_f32 s = ws_split_of_f32(x);
  const float z = 0.5f * (s.f * s.f);
  const float high = ws_real_f32(ws_bits_f32(s.f - z) & (int32_t)0xfffff000u); /* few bits, for an exact product below */
  const float low = WS_MADD_f32(ws_log_core_f32(s.f) * s.f, s.f * s.f, (s.f - high) - z);
  const float rest = WS_MADD_f32(low + high, -0x1.7135a8p-13f, low * 0x1.716p0f);
  return ws_log_ends_f32(x, WS_MADD_f32(high, 0x1.716p0f, rest) + s.e);
}

WS_INLINE float ws_log1p_f32(float x) {
  const float u = 1.f + x;
  const ws_split_f32 s = ws_split_of_f32(u);
  const float lost = (x < 1.f ? x - (u - 1.f) : 1.f - (u - x)) / u;
  const float y = ws_log_sum_f32(s.e, s.e == 0 ? x : s.f, s.e == 0 ? 0.f : lost);
  return x == 0 ? x : ws_log_ends_f32(u, y);
}

WS_INLINE float ws_tanh_f32(float x) {
  const float a = __builtin_fabsf(x), c = 2.f * (a > 10.f ? 10.f : a); /* expm1(c) cannot overflow or underflow */
  const float t = WS_MADD_f32(c, 0x1.715476p0f, WS_ROUND_f32), n = t - WS_ROUND_f32;
  float r = WS_MADD_f32(n, -WS_LN2_HI_f32, c);
  r = WS_MADD_f32(n, -WS_LN2_LO_f32, r);
  const uint32_t power = (uint32_t)ws_bits_f32(t) - (uint32_t)ws_bits_f32(WS_ROUND_f32) + 126;
  const float half = ws_real_f32((int32_t)(power << 23));
  const float e = 2.f * WS_MADD_f32(half, ws_expm1_core_f32(r), half - 0.5f);
  return __builtin_copysignf(e / (e + 2.f), x);
}

WS_INLINE float ws_sigmoid_f32(float x) {
  const float e = ws_exp_f32(-__builtin_fabsf(x));
  return (x < 0 ? e : 1.f) / (1.f + e);
}

/* Reduced around 0, 1 and infinity: atan a = atan b + atan((a - b) / (1 + a b)); the polynomial is from Cephes. */
WS_INLINE float ws_atan_f32(float x) {
  const float a = __builtin_fabsf(x);
  const int large = a > 2.41421356f, middle = a > 0.41421356f;
  const float t = large ? -1.f / a : middle ? (a - 1.f) / (a + 1.f) : a;
  const float base = large ? 0x1.921fb6p0f : middle ? 0x1.921fb6p-1f : 0.f;
  const float rest = large ? -0x1.777a5cp-25f : middle ? -0x1.777a5cp-26f : 0.f; /* low bits of pi / 2, pi / 4 */
  const float z = t * t;
  float p = 8.05374449538e-2f;
  p = WS_MADD_f32(p, z, -1.38776856032e-1f);
  p = WS_MADD_f32(p, z, 1.99777106478e-1f);
  p = WS_MADD_f32(p, z, -3.33329491539e-1f);
  const float y = base + (WS_MADD_f32(p * z, t, t) + rest);
  return x != x ? x : __builtin_copysignf(y, x);
}

WS_INLINE float ws_erf_f32(float x) {
  const float a = __builtin_fabsf(x), z = x * x, b = a > 4.f ? 4.f : a;
  float p = 0x1.5e0a88p-14f;
  p = WS_MADD_f32(p, z, -0x1.aaa45cp-11f);
  p = WS_MADD_f32(p, z, 0x1.54d45ep-8f);
  p = WS_MADD_f32(p, z, -0x1.b80ffap-6f);
  p = WS_MADD_f32(p, z, 0x1.ce2e1cp-4f);
  p = WS_MADD_f32(p, z, -0x1.812744p-2f);
  p = WS_MADD_f32(p, z, 0x1.20dd76p0f);
  float q = 0x1.5122a2p-21f;                          /* -log(erfc(b)) */
  q = WS_MADD_f32(q, b, 0x1.ae8f88p-17f);
  q = WS_MADD_f32(q, b, -0x1.96b834p-12f);
  q = WS_MADD_f32(q, b, 0x1.07b87p-8f);
  q = WS_MADD_f32(q, b, -0x1.96e6a2p-6f);
  q = WS_MADD_f32(q, b, 0x1.ba1a7p-4f);
  q = WS_MADD_f32(q, b, 0x1.4467a8p-1f);
  q = WS_MADD_f32(q, b, 0x1.2120ep0f);
  q = WS_MADD_f32(q, b, -0x1.461026p-13f);
  return a < 0.92f ? x * p : __builtin_copysignf(1.f - ws_exp_f32(-q), x);
}

/* Sine of x + quarter * pi/2, computed in double.  NaN beyond the range in which n * pi/2 can be subtracted exactly. */
#ifdef WS_FMA
#define WS_SINE_MAX_f32 0x1p50f
#else
#define WS_SINE_MAX_f32 0x1.8p20f
#endif
WS_INLINE float ws_sine_f32(float x, int64_t quarter) {
  const double t = WS_MADD_f64((double)x, 0x1.45f306dc9c883p-1, 0x1.8p52), n = t - 0x1.8p52;
  double r = WS_MADD_f64(n, -0x1.921fb544p0, (double)x);
  r = WS_MADD_f64(n, -0x1.0b4611a626331p-34, r);
  const double z = r * r;
  double s = 0x1.6cd61284d540fp-19, c = -0x1.2429028575f1bp-22;
  s = WS_MADD_f64(s, z, -0x1.a00f9454422adp-13);
  s = WS_MADD_f64(s, z, 0x1.1111088b0ee16p-7);
  s = WS_MADD_f64(s, z, -0x1.5555554cab1a2p-3);
  s = WS_MADD_f64(s * z, r, r);
  c = WS_MADD_f64(c, z, 0x1.a011176626f98p-16);
  c = WS_MADD_f64(c, z, -0x1.6c16b88ba9433p-10);
  c = WS_MADD_f64(c, z, 0x1.5555554f42359p-5);
  c = WS_MADD_f64(c * z, z, WS_MADD_f64(z, -0.5, 1.0));
  const int64_t turn = ws_bits_f64(t) + quarter;      /* 0x1.8p52 is a multiple of 4 turns */
  const double y = turn & 1 ? c : s;
  const float signed_y = (float)(turn & 2 ? -y : y);
  return __builtin_fabsf(x) <= WS_SINE_MAX_f32 ? signed_y : __builtin_nanf("");
}
WS_INLINE float ws_sin_f32(float x) { return x == 0 ? x : ws_sine_f32(x, 0); }
WS_INLINE float ws_cos_f32(float x) { return ws_sine_f32(x, 1); }

WS_INLINE float ws_pow_f32(float x, float y) {
  const float a = __builtin_fabsf(x);
  float r = (float)ws_exp2_f64((double)y * ws_log2_f64((double)a));
  const float whole = __builtin_floorf(y), half = 0.5f * y;
  r = ((a == 1.f) & (y == y)) ? 1.f : r;              /* 0 * inf in the exponent */
  r = ((whole != y) & (x < 0) & (a < __builtin_inff())) ? __builtin_nanf("") : r;
  r = ((whole == y) & (__builtin_floorf(half) != half)) ? __builtin_copysignf(r, x) : r;
  return ((y == 0) | (x == 1.f)) ? 1.f : r;
}
