"""Rows and weights: Python's own integers and NumPy in float64 make the same ones."""

import numpy as np
import torch

from oracle.rows import MODULUS, Linear, Universe, bits, same_numbers
from oracle.scenario import Options, Scenario
from tests.peers.batches import CPU, SEED, batches, drawn, request


def integer(place: int, position: int, column: int, seed: int) -> int:
    """One hidden state of request number `place`, in integers without bounds."""
    mixed = (column * 2654435761 + seed * 40503 + 12345) % 2**32
    mixed = (mixed ^ (mixed >> 15)) * 2246822519 % 2**32
    factor = 1 + mixed % 250
    high = 1 + (mixed >> 11) % 250
    total = position * factor + position // 251 * high + place * (factor * (100 + column) % 251) + (mixed >> 19)
    return total % 251 - 125


def test_rows_are_those_of_unbounded_integers() -> None:
    assert MODULUS == 251
    for batch in drawn(300):
        if batch.options.content == "float" or batch.packed.numel() > 3000:
            continue
        for place, (one, rows) in enumerate(zip(batch.requests, batch.rows, strict=True)):
            for position, row in enumerate(rows.tolist()):
                if position not in (one.nan_at, one.inf_at, one.zero_at):
                    assert row == [integer(place, position, at, batch.options.seed) for at in range(len(row))]


def test_large_seeds_columns_and_positions_overflow_nothing() -> None:
    for seed in (0, 255, 2**31):
        rows = Universe(Scenario((request(70_000),), (), Options(hidden_size=3, seed=seed)), CPU).rows
        for position in (0, 250, 251, 65_535, 65_536, 69_999):
            assert rows[position].tolist() == [integer(0, position, at, seed) for at in range(3)]


def test_realistic_rows_are_numpys_from_the_same_integers() -> None:
    seen = 0
    for batch in drawn(300):
        if batch.options.content == "exact" or batch.packed.numel() > 3000 or not batch.finite:
            continue
        noise = np.random.default_rng(batch.options.seed).standard_normal(251)
        for place, (one, rows) in enumerate(zip(batch.requests, batch.rows, strict=True)):
            whole = [
                [integer(place, at, column, batch.options.seed) for column in range(rows.shape[1])]
                for at in range(len(rows))
            ]
            due = torch.tensor([[value / 100 + float(noise[value + 125]) + 0.25 for value in row] for row in whole])
            if one.zero_at is None:
                assert torch.allclose(rows.double(), due.double(), rtol=2 * torch.finfo(rows.dtype).eps, atol=1e-6)
                seen += rows.numel()
    assert seen > 100


def test_weights_are_three_signed_powers_of_two_a_row() -> None:
    for seed, width in ((0, 1), (1, 2), (5, 3), (7, 16), (12, 33)):
        due = [[0.0] * width for _ in range(5)]
        for out, row in enumerate(due):
            for term, value in enumerate((0.03125, 0.03125, -0.03125)):
                row[(out * 7 + term * (5 + seed % 11) + seed) % width] += value
        assert Linear(5, seed).matrix(width).tolist() == due


def test_a_row_is_found_wherever_numpy_finds_it() -> None:
    for batch in drawn(200):
        if batch.packed.numel() > 3000:
            continue
        universe = Universe(Scenario(tuple(batch.requests), (), batch.options), CPU)
        table = batch.packed.double().numpy()
        owners = [(one.name, at) for one in batch.requests for at in range(one.prompt_len)]
        for row, plain in zip(batch.packed, table, strict=True):
            equal = (table == plain) | (np.isnan(table) & np.isnan(plain))
            assert universe.sources(row) == [owners[at] for at in np.flatnonzero(equal.all(axis=1))]


def test_the_same_numbers_are_numpys_same_bytes_or_both_nan() -> None:
    generator = np.random.default_rng(SEED)
    for batch in batches(200):
        left = batch.packed
        right = left[torch.from_numpy(generator.permutation(len(left)))] if generator.random() < 0.7 else left.clone()
        equal = np.array_equal(left.double().numpy(), right.double().numpy(), equal_nan=True)
        assert same_numbers(left, right) == equal
        assert equal or bits(left).numpy().tobytes() != bits(right).numpy().tobytes()


def test_layers_are_numpys_products_rounded_once() -> None:
    # On integers each product and sum is exact, so there is one right answer to the last bit.
    for batch in drawn(300):
        if batch.options.content == "float" or not batch.finite:
            continue
        layer = Linear(7, batch.options.seed)
        exact = batch.packed.double().numpy() @ layer.matrix(batch.packed.shape[1]).double().numpy().T
        assert same_numbers(layer(batch.packed), (torch.from_numpy(exact) + 0.0).to(batch.dtype))
