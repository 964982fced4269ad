/* GEMM: C = A B in register tiles of a few rows x 2 vectors, with cache blocking (gemm_tile.h).  ws_gemm in ws.h
   defines the contract and the layouts.
   Bits: every element is one chain over k = 0 .. K-1, so neither tiles, blocks, packing nor the vector width changes a
   bit. */
#include "runtime.h"

#include "vectors.h"

#if defined(WS_AVX) || defined(WS_NEON)
#define INLINE static inline __attribute__((always_inline))
#ifdef WS_AVX
#include "x86/gemm_sizes.h"
#else
#include "arm64/gemm_sizes.h"
#endif

enum {
  LINE = 64,                                          /* bytes of a cache line */
  AHEAD_STEP = 32,                                    /* steps of k between two rounds of prefetches */
  PANEL = 16,                                         /* columns of a panel of B and C */
  TILES_IN_BLOCK = BLOCK_ROWS / ROWS,
  L1_WAY = 4096, L1_ROWS = 6,                         /* addresses with this distance share a set of 8 lines; B uses 2 */
  /* B is packed if its rows are far apart and many tiles read them; a transposed A if its tile spans too many lines to
     stay in L1 and many strips read it.  Measured on Zen 4, where L2 hides smaller cases. */
  PACK_B_STRIDE = 64, PACK_B_TILES = 12,
  PACK_A_K = 64, PACK_A_STRIPS = PACKS_BLOCKS ? 2 : 3,
  PACKED = PACKS_BLOCKS ? BLOCK_ROWS : (ROWS + 3) / 4 * 4,             /* rows in a packed part of A, which is [k][PACKED] */
  PACKED_PIECES = PACKS_BLOCKS ? 1 : TILES_IN_BLOCK
};

/* Blocks of k of one problem are equal except for the last, and start at panel boundaries of A. */
static long block_length(long k) {
  const long blocks = (k + K_BLOCK - 1) / K_BLOCK, length = (k + blocks - 1) / blocks;
  return (length + PANEL - 1) / PANEL * PANEL;
}

/* Row tiles of one problem differ by at most one row: 32 = 10+11+11, 16 = 8+8. */
static long tile_start(long tile, long tiles, long rows) { return tile * rows / tiles; }

/* Iterates over the memory to prefetch, one cache line at a time. */
typedef struct {
  const char *line, *end;                             /* within a piece */
  const char *piece; long pieces;                     /* next part and number of remaining parts of the entry before `next` */
  const ws_ahead *next; long left;
} fetcher;

/* Inlined between the steps of a tile: a call would spill its accumulators. */
INLINE void fetch(fetcher *f, long lines) {
  for (; lines > 0; lines--, f->line += LINE) {
    if (f->line >= f->end) {
      while (!f->pieces) {
        if (!f->left) return;
        f->left--, f->piece = f->next->from, f->pieces = f->next++->count;
      }
      f->line = f->piece, f->end = f->line + f->next[-1].bytes;
      f->piece += f->next[-1].step, f->pieces--;
    }
    __builtin_prefetch(f->line, 0, 2);                /* prefetch into L2, since B streams through L1 */
  }
}

static long lines_ahead(const ws_gemm *g) {
  long lines = 0;
  for (long i = 0; i < g->aheads; i++) lines += g->ahead[i].count * ((g->ahead[i].bytes + LINE - 1) / LINE);
  return lines;
}

#ifndef WS_DOUBLE
#define REAL float
#define REAL_BYTES 4
#define BITS int
#else                                                 /* see gemm_double.c */
#define REAL double
#define REAL_BYTES 8
#define BITS long long
#define NAME(x) x##_f64
#endif
#ifdef WS_PAIRS                                       /* each element is a pair of bfloat16: see gemm_half.c */
#define NAME(x) x##_pairs
#define A_PANEL (PANEL / 2)                           /* steps of k per panel of A */
#else
#define A_PANEL PANEL
#ifndef WS_DOUBLE
#define NAME(x) x##_f32
#endif
#endif
#include "gemm_tile.h"

#else
#include "gemm_portable.h"
#endif
