"""What any block-and-thread machine needs: grids, fusion, tiled GEMM, persistent kernels, rendered source."""
