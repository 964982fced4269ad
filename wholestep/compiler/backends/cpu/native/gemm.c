/* GEMM: C = A B in register tiles of a few rows x 2 vectors, with cache blocking (gemm_tile.h).  The contract and the layouts
   are those of ws_gemm in ws.h.
   Bits: every element is one chain over k = 0 .. K-1, so neither tiles, blocks, packing nor the vector width changes a
   bit. */
#include "runtime.h"

#if defined(__AVX2__) && defined(__FMA__)
#define INLINE static inline __attribute__((always_inline))

#ifdef __AVX512F__
enum {
  BYTES = 64,                                         /* bytes of a vector */
  ROWS = 12,                                          /* largest tile: 24 accumulators, 2 of B, 6 spare registers */
  K_BLOCK = 1024,                                     /* 128 KiB of B in L2: a tile reads 128 bytes in 24 cycles */
  BLOCK_ROWS = 48,                                    /* a block of A takes 192 KiB of L2 */
  PACKS_B = 0,                                        /* packing B took 3-10 % longer on Zen 4 with all strides */
  PACKS_BLOCKS = 1,                                   /* a transposed A is packed 48 rows at a time: [k][48] */
  PACK_A_STRIDE = 2048, PACK_A_STEP = 1024            /* bytes: such strides map to few sets of L1; 80 -> 98 GFLOP/s */
};
#define EACH_ROWS(X, ...) \
  X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__) X(5, __VA_ARGS__) X(6, __VA_ARGS__) \
  X(7, __VA_ARGS__) X(8, __VA_ARGS__) X(9, __VA_ARGS__) X(10, __VA_ARGS__) X(11, __VA_ARGS__) X(12, __VA_ARGS__)
#else
enum {
  BYTES = 32,
  ROWS = 6,                                           /* registers of a tile: 12 accumulators, 2 of B, 1 of A */
  K_BLOCK = 256,                                      /* a panel of B takes 16 KiB of L1 (float) */
  BLOCK_ROWS = 144,                                   /* a block of A has 144 rows x K_BLOCK, in L2 */
  PACKS_B = 1,
  PACKS_BLOCKS = 0,                                   /* a transposed A is packed tile by tile: [k][8] */
  PACK_A_STRIDE = 1024, PACK_A_STEP = sizeof(float)
};
#define EACH_ROWS(X, ...) \
  X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__) X(5, __VA_ARGS__) X(6, __VA_ARGS__)
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
  PACKED = PACKS_BLOCKS ? BLOCK_ROWS : 8,             /* rows in a packed part of A, which is [k][PACKED] */
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
#define BITS int
#define SUFFIX "ps"
#define BROADCAST "vbroadcastss"
#define TO_ALL "1to16"
#else                                                 /* see gemm_double.c */
#define REAL double
#define BITS long long
#define NAME(x) x##_f64
#define SUFFIX "pd"
#define BROADCAST "vbroadcastsd"
#define TO_ALL "1to8"
#endif
#ifdef WS_PAIRS                                       /* each element is a pair of bfloat16: see gemm_half.c */
#define NAME(x) x##_pairs
#define MULTIPLY_ADD "vdpbf16ps"
#define A_PANEL (PANEL / 2)                           /* steps of k per panel of A */
#else
#define A_PANEL PANEL
#ifndef WS_DOUBLE
#define NAME(x) x##_f32
#endif
#define MULTIPLY_ADD "vfmadd231" SUFFIX
#endif
#include "gemm_tile.h"

#else
#include "gemm_portable.h"
#endif
