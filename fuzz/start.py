"""Which driver a scenario needs: the runner for poolers, the engine's for engines."""

import torch

from fuzz.engine import EngineRun
from fuzz.runner import Run
from fuzz.verdict import Judgement
from fuzz.world import World
from impl.config import Subject, SubjectError
from oracle.device.ops import NAME as SIMULATED
from oracle.scenario import Scenario


def runs_on(scenario: Scenario, device: torch.device) -> bool:
    """Whether the device can be had for the scenario: an engine makes its own tensors, not simulated ones."""
    return scenario.options.level != "engine" or device.type != SIMULATED


def start(world: World, subject: Subject) -> Run | EngineRun:
    """Begin the world's scenario on a subject.

    Raises:
        SubjectError: an engine can't be made, or not on this device.
    """
    if not runs_on(world.scenario, world.device):
        raise SubjectError(f"{subject.name} makes its own tensors as an engine; run it with --device cpu or cuda")
    return EngineRun(world, subject) if world.scenario.options.level == "engine" else Run(world, subject)


def run(scenario: Scenario, subject: Subject, device: torch.device) -> Judgement:
    """Run a scenario on a subject from start to end, or until it falls."""
    return start(World(scenario, device), subject).all_steps()
