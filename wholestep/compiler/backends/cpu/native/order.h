/* The order of an epoch without a table: a pseudo-random permutation of 0 .. n-1 that is evaluated element by element.

   A Feistel network permutes the next power of two; its keys are derived from the seed and the epoch.  A result of n or more
   is permuted again until it is below n (cycle walking).
   Invariant: a bijection, the same as runtime/epoch_permutation.py computes in NumPy; a test compares them. */
#ifndef WS_ORDER_H
#define WS_ORDER_H
#include <stdint.h>

enum { WS_ORDER_ROUNDS = 6 };                         /* even, so that halves of unequal width end on their own sides */

typedef struct {
  uint64_t n;
  int left, right;                                    /* bits of the two halves */
  uint64_t keys[WS_ORDER_ROUNDS];
} ws_permutation;

static inline uint64_t ws_mix64(uint64_t x) {         /* the finaliser of splitmix64 */
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

static inline ws_permutation ws_permutation_of(uint64_t seed, uint64_t epoch, uint64_t n) {
  ws_permutation p = {.n = n};
  int bits = 2;                                       /* at least one bit per half */
  while (bits < 63 && ((uint64_t)1 << bits) < n) bits++;
  p.left = bits / 2, p.right = bits - bits / 2;
  const uint64_t start = ws_mix64(seed + 0x9e3779b97f4a7c15u) + epoch * 0xd1342543de82ef95u;
  for (int r = 0; r < WS_ORDER_ROUNDS; r++) p.keys[r] = ws_mix64(start + (uint64_t)(r + 1) * 0x9e3779b97f4a7c15u);
  return p;
}

static inline uint64_t ws_permute(const ws_permutation *p, uint64_t i) {
  do {
    int low = p->right, high = p->left;
    uint64_t x = i & (((uint64_t)1 << low) - 1), y = i >> low;
    for (int r = 0; r < WS_ORDER_ROUNDS; r++) {       /* (y, x) -> (x, y ^ F(x)); the halves swap their widths */
      uint64_t f = (x ^ p->keys[r]) * 0xff51afd7ed558ccdu;
      f = (f ^ (f >> 32)) * 0xc4ceb9fe1a85ec53u;
      uint64_t next = y ^ (f >> (64 - high));
      y = x, x = next;
      int width = low;
      low = high, high = width;
    }
    i = y << low | x;
  } while (i >= p->n);
  return i;
}
#endif
