"""Draft -> Plan for a GPU, in order: kernels, their order, a grid for each, launches, arena offsets, scratch memory.

Invariant: how our kernels split a sum (split-K, chunks of rows) depends on its own length and on static extents only,
never on the batch capacity or on the number of multiprocessors, so the bits do not depend on either.  The exception is
medium GEMMs, whose tile, and so the order of the sums, depends on the capacity (`grids/gemm_medium.py`).
"""

from __future__ import annotations

from dataclasses import replace

from wholestep.compiler.backends.gpu.aligned_extents import align_extents
from wholestep.compiler.backends.gpu.arena import hoist_off_critical_path, place_scratch
from wholestep.compiler.backends.gpu.chunked_loss import chunk_loss_head
from wholestep.compiler.backends.gpu.fusion import launches
from wholestep.compiler.backends.gpu.grids.choose import choose_grids, library_notes
from wholestep.compiler.backends.gpu.leading_dimension import pad_leading_dimensions
from wholestep.compiler.backends.gpu.operand_copies import copy_unaligned_operands
from wholestep.compiler.backends.gpu.persistent import eligibility, scan
from wholestep.compiler.backends.gpu.scatter_accumulate import accumulate_scatters_in_place
from wholestep.compiler.plan.lower.draft import make_draft
from wholestep.compiler.plan.model.kernel import Draft, Plan
from wholestep.compiler.plan.model.request import PlanRequest


def schedule(draft: Draft, frugal: bool = False, halvings: int = 0) -> Plan:
    """The plan of a draft.

    Args:
        frugal: is memory so scarce that saving launches must not cost much of it?
        halvings: how often the chunks of the loss are halved to save memory.
    """
    draft = accumulate_scatters_in_place(draft)  # gradient rows of a tied embedding are added to a product's result
    draft = chunk_loss_head(draft, halvings)  # logits exist for one slice of the rows at a time
    draft = copy_unaligned_operands(draft)  # operands whose rows cannot be padded are copied if that is worth it
    draft = pad_leading_dimensions(draft)  # rows of GEMM operands are aligned to 16 bytes
    draft = align_extents(draft)  # so are the extents of a library's products
    draft = hoist_off_critical_path(draft)  # an order of kernels that keeps buffers alive for a short time
    draft = choose_grids(draft)  # every kernel has a form, a grid and a split of its sums
    plan = launches.choose_launches(draft, frugal)  # kernels share launches; buffers and workspaces have offsets
    plan = place_scratch(plan)  # partial sums and arrival counters have offsets after the arena's buffers
    notes = (library_notes, eligibility.notes_of, launches.notes_of, scan.notes_of)
    return replace(plan, notes=(*plan.notes, *(note for notes_of in notes for note in notes_of(plan))))


def make_plan(request: PlanRequest) -> Plan:
    """The plan of one entry point."""
    return schedule(make_draft(request), request.frugal, request.halvings)
