"""Cost model of the GPU scheduler: thresholds, tiles and block counts, measured on an H200 (132 multiprocessors).

Another GPU is a target with another `GpuCosts`.  A number in parentheses is the page of docs/decisions that has the
measurement, rejected.md is docs/rejected.md; a field with neither was chosen for the reason in its comment, and its
effect alone was not measured.  Fields marked *bits* determine the order in which sums are added, and so the bits of a
result; the others only choose among equal results.  Sizes that a native header assumes, such as the threads of a warp,
are constants of the module that calls it.
"""

from __future__ import annotations

from wholestep.records import dataclass


@dataclass(frozen=True)
class GridCosts:
    """Sizes of grids, in blocks."""

    most_blocks: int = 4096  # grid of a grid-stride loop: 31 blocks per multiprocessor, more than can be resident
    most_vector_blocks: int = 1 << 20  # largest grid of a vectorised kernel: no kernel needs a second pass (029)


@dataclass(frozen=True)
class ReductionCosts:
    """Thresholds of reductions over rows and columns."""

    narrow_row: int = 32  # elements of the longest row that one thread reduces, if a sample has many rows; *bits*
    sharing_rows: int = 256  # rows per sample from which on several short rows share a warp; *bits*
    warp_row: int = 1024  # elements of the longest row that a single warp reduces: 32 per thread (029); *bits*
    long_row_threads: int = 1024  # threads per block for rows longer than four times `warp_row`; *bits*
    # Rows that one thread adds up in a column reduction that is split: between these bounds, so many that a sample has
    # `sample_blocks` blocks.  With 16 rows, 64 images of 56 x 56 pixels are read at 2.0 to 2.4 TB/s (066); *bits*
    part_rows: int = 16
    most_part_rows: int = 64
    sample_blocks: int = 16
    short_column: int = 32  # rows of a column sum that a single thread adds up
    packed_columns: int = 1 << 20  # elements of a column sum from which on each thread reduces 8 adjacent columns (029)
    most_packed_sums: int = 5  # sums of one kernel whose partial results fit a block's shared memory
    pixel_rows: int = (
        16  # rows per sample (pixels of an image) from which on a warp covers several rows at a time (026)
    )
    register_words: int = 32  # registers (of a thread's 255) for one value of its row
    unrolled_vectors: int = 8  # vectors per thread up to which the row loop is unrolled
    prefetched_row: int = 32 << 10  # bytes of the shortest row that is prefetched into shared memory (029)
    prefetch_reserve: int = 4 << 10  # bytes of shared memory left for reductions and the driver
    # Types whose rows are prefetched.  float32 has half as much arithmetic per byte, and a second resident block hides
    # more latency: 8192 x 16384 scores take 356 us without and 394 us with prefetch; in half types 254 and 176 us.
    prefetched_types: tuple[str, ...] = ("bfloat16", "float16")
    loads_in_flight: int = 128  # bytes of loads per thread before it adds the first; 256 are no faster (rejected.md)
    # Resident blocks per multiprocessor that registers are limited for, in row kernels of `resident_threads` that keep
    # at most `resident_words` registers of a row: occupancy hides more memory latency than additional registers.
    resident_blocks: int = 4
    resident_threads: int = 256
    resident_words: int = 60


@dataclass(frozen=True)
class GemmCosts:
    """Thresholds of matrix products.  A tile is (rows, columns, thread groups that split k)."""

    full_gpu_blocks: int = 128  # blocks that fill a GPU: with fewer tiles a product splits k; *bits*
    tiny_blocks: int = 1056  # blocks up to which the smallest tile is used: eight per multiprocessor
    tiny_tile: tuple[int, int, int] = (16, 16, 8)
    small_tile: tuple[int, int, int] = (32, 32, 8)
    narrow_tile: tuple[int, int, int] = (32, 8, 8)
    # Tiles of products with a static k of at most `whole_depth`, whose chunks one block adds up (027).
    whole_tiles: tuple[tuple[int, int, int], ...] = ((16, 8, 8), (8, 8, 8), (8, 4, 8))
    whole_depth: int = 1024
    # Medium float32 products: cuBLASLt and the pass after it took 11 us for 1024 x 512 x 128, a GPT of 4 x 128 went
    # from 702 to 478 us (023).  Starting at 30 or 16 MFLOP made no difference (rejected.md).
    medium_flops: int = 40_000_000  # smaller products are fused horizontally instead; *bits*
    medium_tiles: tuple[tuple[int, int], ...] = (
        (64, 64),
        (32, 32),
    )  # rows and columns per block, largest first; *bits*
    medium_blocks: int = 96  # blocks from which on the larger tile fills a GPU; *bits*
    fewest_medium_blocks: int = 40  # with fewer tiles split-K is used instead; *bits*
    # Weight updates that share a launch use medium tiles from fewer FLOPs on if all of them together have so many
    # tiles, two per multiprocessor: 445 -> 421 us for a GPT of 4 x 128 (032); *bits*
    update_flops: int = 12_000_000
    update_tiles: int = 264
    # FLOPs of a product in a loop over time from which on a library computes it: persistent scans do less per step.
    loop_flops: int = 150_000_000
    library_calls: int = 64  # calls of a library per product, one per outer batch index
    library_workspace: int = 32 << 20  # bytes that a library may use for split-K: what cuBLASLt recommends on Hopper
    untiled_result: int = 128 << 20  # bytes of a result that has enough tiles without split-K, and needs no workspace
    row_alignment: int = 128  # bytes of alignment of long padded rows: one cache line (042)
    long_row: int = 1024  # elements from which on rows are padded to cache lines; shorter ones would grow too much
    # Multiplications per element of an unaligned input or state from which on it is copied: in tf32, unaligned
    # operands cost about 7 ps per 1024 of them, and a copy 2 ps per element.
    copied_uses: int = 512
    padded_columns: int = 1  # elements of the shortest row that is padded, to the 8 that a library loads at once


@dataclass(frozen=True)
class ScatterCosts:
    """Thresholds of scatters, such as the gradient of an embedding."""

    shared_bytes: int = 40 << 10  # bytes of shared memory per block for rows: below the 48 KB that need no opt-in
    sorted_work: int = 1 << 24  # table rows times indices from which on the indices are sorted first (029)
    sorted_indices: int = 1 << 11  # from this many on, indices are sorted, so that frequent rows take no longer (065)
    scanned_work: int = 1 << 22  # from this (target elements times indices) on, indices are sorted if rows are too wide
    most_ranked: int = 1 << 13  # indices that one launch sorts by comparing every pair; more are sorted by digits (065)
    slice_rows: int = 64  # fewest indices per slice of a scatter into few rows (065); *bits*
    most_slices: int = 128  # slices of such a scatter: with several tiles of columns they fill a GPU (065); *bits*
    pieces_per_thread: int = 4  # 16-byte pieces of a row per thread after sorting


@dataclass(frozen=True)
class ConvolutionCosts:
    """Direct convolutions with few channels (026), and the estimate that chooses their tile."""

    shared_bytes: int = 44 << 10  # bytes per block: the limit without opt-in (48 KB) minus a kernel's other data
    shared_per_multiprocessor: int = 200 << 10  # bytes that resident blocks share
    threads_per_multiprocessor: int = 2048
    round_cycles: int = 1500  # latency of one round of resident blocks, in cycles
    batch_slices: int = 128  # slices of the batch whose weight gradients separate blocks add up; *bits*
    pooled_batch_slices: int = 64  # the same for a weight gradient through a pool; *bits*
    most_weights: int = 40_000  # weights: a convolution with more is an implicit GEMM
    pixels: tuple[tuple[int, int], ...] = ((2, 2), (1, 2), (1, 1))  # rows and columns of pixels per thread
    outputs: tuple[int, ...] = (8, 6, 4, 3, 2, 1)  # output channels per thread
    trial_images: int = 128  # batch size for which tiles are tried: whether one fits does not depend on it


@dataclass(frozen=True)
class GroupedCosts:
    """Grouped and depthwise convolutions: tiles of `native/grouped.h` (063)."""

    shared_bytes: int = 44 << 10  # bytes per block for weights or sums: 48 KB minus other data; *bits*
    lane_products: int = 8  # multiply-adds per pixel and tap of several adjacent groups in one thread; *bits*
    lane_channels: int = 4  # input channels, and output channels, of a thread's tile of a large group; *bits*
    most_lanes: int = 8  # lanes of a block: a cache line; with more, a block covers fewer rows that share their inputs
    gradient_values: int = 1600  # sums of a block of a weight gradient, which limit its lanes; *bits*
    register_weights: int = 56  # registers for the weights of a window's row (in its gradient: for their sums); *bits*
    register_sums: int = 64  # registers for the sums of a strip (its output gradients, of a weight gradient); *bits*
    gradient_registers: int = 96  # registers for weights and sums together of a weight gradient; *bits*
    strided_inputs: int = 3  # input pixels per pixel of a strip whose loads a stride keeps in flight; *bits*
    most_taps: int = 16  # columns of the window that are unrolled: more take longer to compile than to run; *bits*
    most_pixels: int = 8  # pixels of a strip; *bits* of a weight gradient
    load_instructions: int = 5  # issue slots of a vector load with its address and its bounds
    strip_instructions: int = 12  # issue slots per strip and row of the window
    threads: int = 256  # threads per block
    # The same for weight gradients (*bits*) and for kernels that need more than `many_registers`: three are resident.
    fewer_threads: int = 128
    many_registers: int = 80  # registers for sums and weights up to which two blocks of `threads` are resident
    most_steps: int = 4  # groups of rows that a block computes, one after the other, with the same weights
    blocks_per_multiprocessor: int = 8  # blocks from which on a block computes several groups of rows
    # Blocks of a weight gradient: one wave of an H200, three per multiprocessor.  Each slice of the rows ends with sums
    # in scratch memory that others add: 2112 blocks instead of 528 take up to 1.5 times as long; *bits*.
    gradient_blocks: int = 396
    least_strips: int = 4  # strips per thread of a weight gradient: fewer cost less than adding sums; *bits*


@dataclass(frozen=True)
class AttentionCosts:
    """Our flash attention kernel (025)."""

    tile: int = 32  # rows per block; *bits*
    narrow_tile: int = 16  # rows per block for wide heads and float64, which need more shared memory; *bits*
    wide_head: int = 256  # bytes per row: wider heads use the narrow tile
    rows_per_group: tuple[tuple[int, int], ...] = ((512, 4), (200, 2))  # (fewest blocks, rows per group of threads)
    # With tensor cores (064).  The limits of columns keep accumulators within a thread's 255 registers.
    mma_warps: int = 4  # warps per block; fewer for at most 32 rows
    mma_keys: int = 64  # keys per tile in the forward pass; *bits*
    mma_others: int = 32  # rows per tile backward, and forward for rows longer than `mma_wide_row`, where it is *bits*
    mma_wide_row: int = 256  # bytes
    mma_wide_columns: int = 128  # columns of the widest head whose tiles have more than 16 rows; *bits*
    mma_forward_row: int = 64  # bytes of the longest row for which a warp has 32 queries
    mma_backward_row: int = 128  # the same backward, where a warp accumulates two results
    mma_resident: int = 4  # resident blocks per multiprocessor, which limits the registers of the forward pass
    mma_short_columns: int = 128  # columns of keys and values together up to which one block computes all gradients
    mma_columns: int = 256  # columns of keys and values together that one block accumulates


@dataclass(frozen=True)
class FusionCosts:
    """Kernels that share a launch (027): a boundary between launches takes 0.8 us, a kernel's first loads 0.6 us."""

    launch_blocks: int = 2112  # blocks of one launch: sixteen per multiprocessor
    medium_blocks: int = 264  # blocks of a medium GEMM that may share a launch: two per multiprocessor
    arena_bytes: int = 16 << 20  # bytes of arena that later scheduling may cost
    arena_share: float = 0.1  # share of the arena that later scheduling may cost
    resident_blocks: int = 2  # blocks per multiprocessor that registers are limited for: three spill (rejected.md)
    most_flops: int = 50_000_000  # FLOPs of a kernel that shares a launch: larger ones gain nothing and need registers
    most_bytes: int = 8 << 20  # memory traffic of a kernel that shares a launch
    rows: int = 264  # rows of a chain, and so blocks: two per multiprocessor
    row_weights: int = 64 << 10  # bytes of a product's second operand, which every block of a chain reads (rejected.md)
    row_elements: int = 16 << 10  # elements per row of a nest in a chain
    row_depth: int = 1024  # largest k of a product in a chain
    row_chunks: int = 8  # most chunks of k of a product in a chain


@dataclass(frozen=True)
class PersistentCosts:
    """Persistent kernels: training steps of small MLPs (032) and scans (048)."""

    state_values: int = 4  # state values per resident weight, the weight included: a thread's registers
    other_input_bytes: int = 64  # bytes per row of the inputs other than the first, which one thread copies
    step_record_bytes: int = 8 << 10  # bytes of shared memory for step records
    explained_launches: int = 8  # launches of a step up to which the report explains how epochs run
    scan_rows: tuple[int, ...] = (8, 16, 32, 64)  # possible numbers of batch rows per block of a scan
    scan_units: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)  # possible numbers of hidden units per block of a scan
    scan_work: int = 1 << 19  # multiplications per block and step; with more, tiled launches are faster
    scan_accumulators: int = 64  # accumulators per thread, in registers
    scan_load: int = 16  # cost of loading a value from another block, in multiplications


@dataclass(frozen=True)
class MemoryCosts:
    """Bytes that a plan may spend to take less time."""

    large_arena: int = 256 << 20  # bytes: in larger plans kernels run as early as possible, otherwise as late (029)
    scarce_growth: float = 0.01  # relative arena growth that fewer launches may cost if memory is scarce
    # Launches of updates instead of one, if that shrinks the arena to the share `update_gain`: GPT-2 with 1 x 1024
    # tokens takes 2.35 GB instead of 2.48, for 0.3 % of a step (029).
    update_groups: int = 6
    update_gain: float = 0.95
    scratch: int = 64 << 20  # up to this many bytes, each launch has scratch memory of its own instead of sharing it
    chunked_loss: int = 1 << 30  # bytes of the smallest buffer that a chunked loss divides (029)


@dataclass(frozen=True)
class LibraryCosts:
    """When a vendor's library for convolutions and attention is faster than our kernels."""

    attention_flops: int = 16_000_000  # FLOPs of an attention call from which on the library is faster (025)
    tf32_channels: int = 32  # channels and outputs of a tf32 convolution: with fewer, our kernels are as fast (026)
    # A convolution with a multiple of this many outputs is worth padding its channels (026): for 64 images of 224 x 224
    # and 16 outputs our direct kernels take 211 us, and 516 us for the weight gradient (063).
    padded_outputs: int = 16
    # Multiply-adds per image from which on outputs, and more than a pack of channels, are padded too: a weight gradient
    # of two or 21 outputs uses few of the GPU's threads, twenty times its price by the estimate of 066; not measured.
    padded_products: int = 1 << 20
    convolution_workspace: int = 32 << 20  # bytes that a convolution of the library may use
    table_images: int = 32  # images per call from which on the table of measured algorithms is used (026)


@dataclass(frozen=True)
class EfficiencyCosts:
    """The machine of the estimates that find slow schedules (066).  None of them is part of a plan."""

    load_latency: float = 700.0  # nanoseconds of a load from memory; a thread waits for one load per round
    sector_byte: float = 0.00019  # nanoseconds per byte of the sectors that warps move: the price of a byte
    line: float = 0.6  # nanoseconds of a cache line that a load of a warp touches: a cycle of a multiprocessor
    nearest_bytes: int = 64 << 10  # bytes of a table that stays in a multiprocessor's own cache
    resident_threads: int = 1536  # threads of a multiprocessor at the registers that memory-bound kernels need
    busy_threads: int = 512  # threads of a multiprocessor that keep its arithmetic units busy
    slow: float = 5.0  # estimated or measured time / price from which on a kernel is called slow
    least_ns: float = 20_000.0  # nanoseconds above its price from which on a kernel matters to a step


@dataclass(frozen=True)
class RunCosts:
    """Run-time parameters of programs: epochs, graphs and the staging of inputs.  None of them is part of a plan."""

    resident_share: float = 0.5  # share of the free memory that a resident data set may use (023)
    stream_chunk: int = 128 << 20  # approximate bytes of rows per copy of a data set that is streamed
    graph_launches: int = 512  # approximate launches per graph of several steps
    graph_steps: int = 32  # steps per graph of an epoch (023)
    persistent_steps: int = 128  # steps per persistent kernel (032)
    queued_graphs: int = 3  # graphs of an epoch in flight
    # Launches of a step up to which inputs are fetched by its graph and the graph has branches (049).  For a longer
    # step, copies cost relatively little, a graph per slot a lot, and branches more than the latency they hide.
    branched_launches: int = 64
    staging_slots: int = 16  # launches in flight, if inputs are copied and not large
    fetching_slots: int = 4  # the same if a kernel fetches, with a graph per slot; two are no faster (rejected.md)
    staging_bytes: int = 64 << 20  # bytes of pinned memory for inputs
    fetched_bytes: int = 1 << 20  # bytes of inputs up to which a kernel fetches them, whatever part is used (023)
    output_kernels: int = 4  # small outputs that kernels copy to the host, one launch each


@dataclass(frozen=True)
class GpuCosts:
    """All costs and thresholds of one target."""

    grids: GridCosts = GridCosts()
    reductions: ReductionCosts = ReductionCosts()
    gemm: GemmCosts = GemmCosts()
    scatter: ScatterCosts = ScatterCosts()
    convolution: ConvolutionCosts = ConvolutionCosts()
    grouped: GroupedCosts = GroupedCosts()
    attention: AttentionCosts = AttentionCosts()
    fusion: FusionCosts = FusionCosts()
    persistent: PersistentCosts = PersistentCosts()
    memory: MemoryCosts = MemoryCosts()
    library: LibraryCosts = LibraryCosts()
    efficiency: EfficiencyCosts = EfficiencyCosts()
    run: RunCosts = RunCosts()
