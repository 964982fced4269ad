/* Initial values of states: the random numbers of `ir/semantics/random.py`, one thread per element.  Uniform numbers
   are exact.  A normal one (Box-Muller) is a radius, from a logarithm, times a cosine, whose last bits differ
   between libraries: if that could change the rounded float32, the element is recorded in `elements` and the host
   computes it. */
extern "C" __global__ void __launch_bounds__(256) ws_draw(
    float *to, long long count, ws_long_word seed, ws_long_word key, int normal, double lift, double scale,
    double shift, double relative, double absolute, int *noted, long long *elements, int room) {
  ws_step s;
  s.seed = seed, s.step = 0;
  for (long long e = (long long)blockIdx.x * 256 + threadIdx.x; e < count; e += (long long)gridDim.x * 256) {
    double x, error = 0;
    if (normal) {
      const double u = ws_uniform_f64(&s, key, 2 * e), v = ws_uniform_f64(&s, key, 2 * e + 1);
      const double radius = sqrt(-2.0 * log1p(-u));
      x = radius * cos(6.283185307179586 * v);
      error = scale * (fabs(x) * relative + radius * absolute);
    } else x = ws_uniform_f64(&s, key, e);
    const double y = __dadd_rn(shift, __dmul_rn(scale, __dadd_rn(lift, x)));
    to[e] = (float)y;
    if ((float)(y - error) != (float)(y + error)) {
      const int at = atomicAdd(noted, 1);
      if (at < room) elements[at] = e;
    }
  }
}
