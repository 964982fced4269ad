"""What any machine of blocks and threads needs: grids, fusion, tiled products, persistent kernels, source text."""
