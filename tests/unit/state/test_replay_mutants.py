"""
The oracle finds what it is for: each mutant of `keyed_state` and `replay` is caught within some seeds.

A mutant is made from the source by replacing one piece of text, which must be there exactly once.
The name of a mutant says what goes wrong.
"""

import sys
import types
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.recovery_oracle import MODES, World

from statelog.state import cache, keyed_state, replay

SEEDS = 25
ORIGINALS = (cache, replay, keyed_state)


@dataclass(frozen=True)
class Mutant:
    """
    One slip.

    Args:
        name: What is wrong.
        text: What stands in the source.
        instead: What stands in the mutant.
        modes: Where it can show; all of them catch it.
    """

    name: str
    text: str
    instead: str
    modes: tuple[str, ...] = ("dict",)


MUTANTS = (
    Mutant(
        "an_overlay_is_folded_into_another_base",
        "if self.version(kg) == base_id]",
        "if self.version(kg) != ABSENT]",
    ),
    Mutant("a_half_done_replay_stays", "self.forget(missing)", "pass"),
    Mutant(
        "what_was_rolled_back_stays",
        "if not -1 <= self.version(kg) <= base_id]",
        "if self.version(kg) == ABSENT]",
    ),
    Mutant(
        "a_rollback_to_the_same_version_starts_anew_only_from_later_ones",
        "<= self.version(kg) <= base_id]",
        "<= self.version(kg) <= base_id + 1]",
    ),
    Mutant(
        "an_attempt_that_was_not_committed_is_folded",
        "elif attempt.state_handle_id in committed:",
        "else:",
    ),
    Mutant(
        "an_attempt_at_another_checkpoint_is_folded",
        "parts[1 if attempt.checkpoint_id < base_id else 2].append(attempt)",
        "parts[0].append(attempt)",
    ),
    Mutant(
        "an_earlier_attempt_that_was_not_committed_is_folded",
        "if staged.state_handle_id in logged:",
        "if staged.state_handle_id:",
    ),
    Mutant(
        "a_folded_overlay_reaches_no_version",
        "self.reached(ready, staged.checkpoint_id, staged.state_handle_id)\n",
        "pass\n",
    ),
    Mutant(
        "all_key_groups_of_a_batch_are_replayed",
        "[change for change in batches if change[0] in key_groups]",
        "list(batches)",
    ),
    Mutant(
        "a_log_handle_is_replayed_again",
        "old = {kg for kg in key_groups if version_of(kg) < log.checkpoint_id}",
        "old = {kg for kg in key_groups if version_of(kg) <= log.checkpoint_id}",
    ),
    Mutant(
        "a_snapshot_is_skipped", "            if key_group in tables:", "            if not tables:"
    ),
    Mutant(
        "runs_outlive_their_key_groups",
        "self._runs.forget(key_group)",
        "pass",
        ("columns", "files", "replay"),
    ),
    Mutant(
        "keys_in_columns_are_not_moved_before_a_fold",
        "self.prepare({key_group: keys_of(overlay)})",
        "pass",
        ("columns",),
    ),
    Mutant(
        "keys_in_columns_are_not_moved_before_a_replay",
        "self._state.prepare({kg: keys_of(overlay) for kg, overlay in overlays.items()})",
        "pass",
        ("columns",),
    ),
    Mutant(
        "a_fold_notes_no_last_applied",
        "self._runs.last_applied[key_group] = applied",
        "pass",
        ("files",),
    ),
    Mutant(
        "what_was_collected_is_lost",
        "if not self._reached and not self._pending:",
        "if True:",
        ("replay",),
    ),
    Mutant(
        "the_tail_of_a_replay_is_not_flushed",
        "            self._flush()\n            self._settle()",
        "            self._settle()",
        ("replay",),
    ),
)


def mutated(mutant: Mutant) -> tuple[types.ModuleType, types.ModuleType]:
    """Return `replay` and `keyed_state` with the mutant's text in one of them."""
    sources = [Path(one.__file__).read_text(encoding="utf-8") for one in ORIGINALS]
    places = sum(source.count(mutant.text) for source in sources)
    assert places == 1, f"{mutant.name}: the source has changed"
    modules = []
    before = {original.__name__: original for original in ORIGINALS}
    try:
        for original, source in zip(ORIGINALS, sources, strict=True):
            module = types.ModuleType(original.__name__)
            module.__file__ = original.__file__
            code = compile(source.replace(mutant.text, mutant.instead), original.__file__, "exec")
            # What follows imports this one; dataclasses look their module up by its name.
            sys.modules[original.__name__] = module
            exec(code, module.__dict__)
            modules.append(module)
    finally:
        sys.modules.update(before)
    _, new_replay, new_state = modules
    return new_replay, new_state


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught(mutant: Mutant, tmp_path: Path) -> None:
    new_replay, module = mutated(mutant)
    for mode in (mode for mode in MODES if mode.name in mutant.modes):
        size = -1 if mode.replays_columns else 1 << 60
        new_replay._COLUMNAR_REPLAY_BYTES = new_replay._COLUMNAR_RESTORE_BYTES = size
        assert caught(module, mode, tmp_path), f"not seen in {SEEDS} seeds of mode {mode.name}"


def caught(module, mode, tmp_path: Path) -> bool:
    for seed in range(SEEDS):
        folder = tmp_path / f"{mode.name}-{seed}"
        folder.mkdir(mode=0o700)
        try:
            World(seed, mode, folder, module).run()
        except Exception:
            return True
    return False


def test_the_source_as_it_is_is_not_caught(tmp_path: Path) -> None:
    _, module = mutated(Mutant("nothing", "class KeyedState(", "class KeyedState("))
    folder = tmp_path / "local"
    folder.mkdir(mode=0o700)
    World(0, MODES[0], folder, module).run()
