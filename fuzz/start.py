"""Which driver a scenario needs: the runner for poolers, the engine's for engines."""

import torch

from fuzz.engine import EngineRun
from fuzz.runner import Run
from fuzz.verdict import Judgement
from fuzz.world import World
from impl.config import Subject
from oracle.scenario import Scenario


def start(world: World, subject: Subject) -> Run | EngineRun:
    """Begin the world's scenario on a subject."""
    return EngineRun(world, subject) if world.scenario.options.level == "engine" else Run(world, subject)


def run(scenario: Scenario, subject: Subject, device: torch.device) -> Judgement:
    """Run a scenario on a subject from start to end, or until it falls."""
    return start(World(scenario, device), subject).all_steps()
