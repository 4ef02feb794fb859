"""Hypothesis strategies that several suites share. Needs hypothesis, which comes with the ``dev`` extra."""

from __future__ import annotations

from hypothesis import strategies as st

from tfs_lite.core.servable import ServableId
from tfs_lite.managers.harness import HarnessState, ServableStateSnapshot

snapshots: st.SearchStrategy[list[ServableStateSnapshot]] = st.lists(
    st.builds(
        ServableStateSnapshot,
        st.builds(ServableId, st.just("m"), st.integers(0, 9)),
        st.sampled_from(HarnessState),
        st.booleans(),
    ),
    unique_by=lambda found: found.id,
)
"""What a version policy may be shown: up to ten versions of one model, each in any state, wanted or not."""
