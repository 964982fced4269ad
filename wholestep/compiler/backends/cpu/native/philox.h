/* Philox4x32-10 (Salmon et al. 2011), a counter-based generator: the random word of an element is a function of (seed, step,
   key, element), so bits do not depend on threads, order or vector width. */
#ifndef WS_PHILOX_H
#define WS_PHILOX_H
#include <stdint.h>
#define WS_PHILOX static inline __attribute__((always_inline, unused))

typedef struct { uint32_t x[4]; } ws_words;

WS_PHILOX ws_words ws_philox4x32(ws_words counter, uint32_t key0, uint32_t key1) {
  uint32_t x0 = counter.x[0], x1 = counter.x[1], x2 = counter.x[2], x3 = counter.x[3];
#pragma GCC unroll 10
  for (int round = 0; round < 10; round++) {
    uint64_t p0 = (uint64_t)0xD2511F53u * x0, p1 = (uint64_t)0xCD9E8D57u * x2;
    uint32_t y0 = (uint32_t)(p1 >> 32) ^ x1 ^ key0, y2 = (uint32_t)(p0 >> 32) ^ x3 ^ key1;
    x1 = (uint32_t)p1, x3 = (uint32_t)p0, x0 = y0, x2 = y2;
    key0 += 0x9E3779B9u, key1 += 0xBB67AE85u;
  }
  return (ws_words){{x0, x1, x2, x3}};
}

/* The key of a node, mixed with the seed: splitmix64's finaliser spreads seeds 0, 1, 2, ... over all bits. */
WS_PHILOX uint64_t ws_philox_key(uint64_t seed, uint64_t key) {
  uint64_t x = seed + 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return key ^ x ^ (x >> 31);
}

/* The random words of elements 4*block .. 4*block+3. */
WS_PHILOX ws_words ws_philox_block(uint64_t seed, uint64_t step, uint64_t key, uint64_t block) {
  const uint64_t k = ws_philox_key(seed, key);
  const ws_words counter = {{(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)step, (uint32_t)(step >> 32)}};
  return ws_philox4x32(counter, (uint32_t)k, (uint32_t)(k >> 32));
}

WS_PHILOX uint32_t ws_philox_u32(uint64_t seed, uint64_t step, uint64_t key, uint64_t element) {
  const ws_words w = ws_philox_block(seed, step, key, element / 4);
  const uint32_t low = element & 1 ? w.x[1] : w.x[0], high = element & 1 ? w.x[3] : w.x[2];
  return element & 2 ? high : low;
}
#endif
