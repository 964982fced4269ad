/* C = A B in tiles of at most 6 rows x 2 vectors, the accumulators in registers.  See ws_gemm in ws.h for the contract:
   every element is one chain over k = 0 .. K-1, so neither tiles nor blocks can change a bit. */
#include "runtime.h"

#if defined(__AVX2__) && defined(__FMA__)
#define INLINE static inline __attribute__((always_inline))

enum {
  PANEL = 16,                                         /* columns of a panel of B and C */
  ROWS = 6,                                           /* of the largest tile: 12 accumulators, 2 of B, 1 of A */
  K_BLOCK = 256,                                      /* B's panel: 16 KiB of float, in L1 */
  TILES_IN_BLOCK = 24,                                /* A's block: 144 rows x K_BLOCK, in L2 */
  /* B is copied when its rows are far apart and many tiles read them; a transposed A when its tile spans too many lines
     to stay in L1 and many strips read it.  Measured on Zen 4, where L2 hides smaller cases. */
  PACK_B_STRIDE = 64, PACK_B_TILES = 12,
  PACK_A_STRIDE = 256, PACK_A_K = 64, PACK_A_STRIPS = 3
};

/* Row tiles of one problem differ by at most one row: 32 = 6+5+5+6+5+5, 16 = 5+5+6. */
static long tile_start(long tile, long tiles, long rows) { return tile * rows / tiles; }

#define WIDTH 8
#define REAL float
#define BITS int
#define NAME(x) x##_f32
#define SUFFIX "ps"
#define BROADCAST "vbroadcastss"
#include "gemm_tile.h"
#undef WIDTH
#undef REAL
#undef BITS
#undef NAME
#undef SUFFIX
#undef BROADCAST

#define WIDTH 4
#define REAL double
#define BITS long long
#define NAME(x) x##_f64
#define SUFFIX "pd"
#define BROADCAST "vbroadcastsd"
#include "gemm_tile.h"

#else
#include "gemm_portable.h"
#endif
