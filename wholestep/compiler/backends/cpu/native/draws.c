/* Random numbers of first values: those of compiler/ir/random.py, to the bit. */
#include "philox.h"
#include "runtime.h"

/* Uniform numbers in [0, 1) of elements 4*block .. 4*block + 4*count - 1, under a key that is mixed with the seed. */
WS_EXPORT void ws_uniforms(uint64_t key, uint64_t step, uint64_t block, long count, double *out) {
#pragma omp simd
  for (long i = 0; i < count; i++) {
    const uint64_t at = block + (uint64_t)i;
    const ws_words counter = {{(uint32_t)at, (uint32_t)(at >> 32), (uint32_t)step, (uint32_t)(step >> 32)}};
    const ws_words w = ws_philox4x32(counter, (uint32_t)key, (uint32_t)(key >> 32));
    for (int k = 0; k < 4; k++) out[4 * i + k] = (double)(int32_t)(w.x[k] >> 8) * 0x1p-24;
  }
}
