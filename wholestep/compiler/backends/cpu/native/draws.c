/* Random initial values of states, vectorized; same bits as compiler/ir/semantics/random.py (Philox, Box-Muller). */
#include "runtime.h"
#include "math.h"
#include "philox.h"

/* Uniform values in [0, 1) of elements 4*block .. 4*block + 4*count - 1, under a key that is mixed with the seed. */
WS_EXPORT void ws_uniforms(uint64_t key, uint64_t step, uint64_t block, long count, double *out) {
#pragma omp simd
  for (long i = 0; i < count; i++) {
    const uint64_t at = block + (uint64_t)i;
    const ws_words counter = {{(uint32_t)at, (uint32_t)(at >> 32), (uint32_t)step, (uint32_t)(step >> 32)}};
    const ws_words w = ws_philox4x32(counter, (uint32_t)key, (uint32_t)(key >> 32));
    for (int k = 0; k < 4; k++) out[4 * i + k] = (double)(int32_t)(w.x[k] >> 8) * 0x1p-24;
  }
}

#define CHUNK 1024
/* Bounds of the difference to NumPy's normal values: relative to the value, from the logarithm, and relative to the
   radius, from the cosine, whose argument NumPy rounds.  Both are at least five times the observed difference. */
#define RELATIVE 0x1p-44
#define ABSOLUTE 0x1p-48

/* The cosine of v turns, v in [0, 1): polynomials of fdlibm, after an exact subtraction of the nearest quarter turn. */
WS_INLINE double cosine_of_turns(double v) {
  const double quarters = (4.0 * v + WS_ROUND_f64) - WS_ROUND_f64;
  const double t = 0x1.921fb54442d18p2 * (v - 0.25 * quarters), z = t * t;
  double s = 1.58969099521155010221e-10, c = -1.13596475577881948265e-11;
  s = WS_MADD_f64(s, z, -2.50507602534068634195e-08), c = WS_MADD_f64(c, z, 2.08757232129817482790e-09);
  s = WS_MADD_f64(s, z, 2.75573137070700676789e-06), c = WS_MADD_f64(c, z, -2.75573143513906633035e-07);
  s = WS_MADD_f64(s, z, -1.98412698298579493134e-04), c = WS_MADD_f64(c, z, 2.48015872894767294178e-05);
  s = WS_MADD_f64(s, z, 8.33333333332248946124e-03), c = WS_MADD_f64(c, z, -1.38888888888741095749e-03);
  s = WS_MADD_f64(s, z, -1.66666666666666324348e-01), c = WS_MADD_f64(c, z, 4.16666666666666019037e-02);
  const double sine = WS_MADD_f64(t * z, s, t), cosine = WS_MADD_f64(z * z, c, 1.0 - 0.5 * z);
  const double size = quarters == 1.0 || quarters == 3.0 ? sine : cosine;
  return quarters == 1.0 || quarters == 2.0 ? -size : size;
}

/* The bounds, in floats, of NumPy's shift + scale * (lift + x), x normal of two uniform words. */
typedef struct { double lift, scale, shift; } formula;
WS_INLINE void draw_normal(formula f, uint32_t first, uint32_t second, float *low, float *high) {
  const double u = (double)(int32_t)(first >> 8) * 0x1p-24, v = (double)(int32_t)(second >> 8) * 0x1p-24;
  const double radius = __builtin_sqrt(-2.0 * ws_log_f64(1.0 - u)), x = radius * cosine_of_turns(v);
  const double off = __builtin_fabs(x) * RELATIVE + radius * ABSOLUTE;
  *low = (float)(f.shift + f.scale * (f.lift + (x - off)));
  *high = (float)(f.shift + f.scale * (f.lift + (x + off)));
}

/* Every second value; one function for both halves, since gcc takes 0.1 s for each. */
static __attribute__((noinline)) void draw_normals(formula f, const uint32_t *first, const uint32_t *second, long pairs,
                                                   float *restrict low, float *restrict high) {
#pragma omp simd simdlen(8)
  for (long i = 0; i < pairs; i++) draw_normal(f, first[i], second[i], &low[2 * i], &high[2 * i]);
}

/* Normal values of elements first .. first + count - 1, first even.  A value is a logarithm times a cosine, whose last
   bits differ between libraries: if they could change the rounded float, its position is stored, and NumPy computes
   it.  Returns the number of such values; the positions of the first `room` are stored. */
WS_EXPORT long ws_normals(uint64_t key, uint64_t first, long count, double lift, double scale, double shift, float *out,
                          int64_t *noted, long room) {
  const formula f = {lift, scale, shift};
  long doubtful = 0;
  for (long start = 0; start < count; start += CHUNK) {
    uint32_t words[4][CHUNK / 2];
    float low[CHUNK], high[CHUNK];
    const long width = count - start < CHUNK ? count - start : CHUNK, pairs = (width + 1) / 2;
#pragma omp simd
    for (long i = 0; i < pairs; i++) {
      const uint64_t at = (first + (uint64_t)start) / 2 + (uint64_t)i;
      const ws_words w = ws_philox4x32((ws_words){{(uint32_t)at, (uint32_t)(at >> 32), 0, 0}}, (uint32_t)key,
                                       (uint32_t)(key >> 32));
      words[0][i] = w.x[0], words[1][i] = w.x[1], words[2][i] = w.x[2], words[3][i] = w.x[3];
    }
    draw_normals(f, words[0], words[1], pairs, low, high);
    draw_normals(f, words[2], words[3], pairs, low + 1, high + 1);
    __builtin_memcpy(out + start, low, (size_t)width * sizeof(float));
    for (long i = 0; i < width; i++) { /* a zero has the sign that NumPy gives it */
      if (low[i] == high[i] && words[2 * (i % 2)][i / 2] >> 8 != 0) continue;
      if (doubtful < room) noted[doubtful] = start + i;
      doubtful++;
    }
  }
  return doubtful;
}
