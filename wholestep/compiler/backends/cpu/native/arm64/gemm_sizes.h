/* Sizes of tiles and blocks for NEON: part of gemm.c.  Computed from the registers, and measured on no processor yet. */
enum {
  BYTES = 16,                                         /* bytes of a vector */
  ROWS = 12,                                          /* registers of a tile: 24 accumulators, 2 of B, 1 of A */
  K_BLOCK = 512,                                      /* two vectors of B take 16 KiB of L1 (float) */
  BLOCK_ROWS = 144,                                   /* a block of A has 144 rows x K_BLOCK, in L2 */
  PACKS_B = 1,
  PACKS_BLOCKS = 0,                                   /* a transposed A is packed tile by tile: [k][12] */
  PACK_A_STRIDE = 1024, PACK_A_STEP = sizeof(float)
};
#define ALWAYS_MASKED 0
#define EACH_ROWS(X, ...) \
  X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__) X(5, __VA_ARGS__) X(6, __VA_ARGS__) \
  X(7, __VA_ARGS__) X(8, __VA_ARGS__) X(9, __VA_ARGS__) X(10, __VA_ARGS__) X(11, __VA_ARGS__) X(12, __VA_ARGS__)
