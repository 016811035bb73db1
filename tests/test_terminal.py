"""Where a run stands: live on a terminal, a line now and then elsewhere."""

import pytest
import torch

from fuzz.campaign import Budget, Campaign, Event, Progressed, Started
from fuzz.terminal import Terminal, standing
from impl.loading import load
from oracle.scenario import Request, Scenario, Step


def test_the_line_says_what_is_left_and_what_has_not_come_up() -> None:
    event = Progressed(100, 340, 1, 10.0, "", ("async", "late copies"))
    assert standing(event, Budget(30.0, None)) == (
        " 10.0 s, 20 s left  100 scenarios  10/s  340 compared  1 finding  not yet: async, late copies"
    )
    # Whichever limit comes first; none at all is none.
    assert "s, 5 s left" in standing(event, Budget(30.0, 150))
    assert "left" not in standing(event, Budget())


def test_without_a_terminal_there_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(as_json=False)
    terminal.on_event(Started("fuzz", ["mine"], 1, "cpu", Budget(120.0, None)))
    for elapsed_s in range(1, 120):
        terminal.on_event(Progressed(elapsed_s, elapsed_s, 0, float(elapsed_s)))
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split(" s,")[0].strip() for line in lines] == ["30.0", "60.0", "90.0"]


def test_a_campaign_tells_what_has_not_come_up_yet() -> None:
    told: list[Event] = []
    campaign = Campaign([load("sliced")], torch.device("cpu"), None, told.append)
    campaign.owed = {"ALL", "LAST"}
    campaign.tell(at_once=True)
    campaign.judge(Scenario((Request("a", "token_embed", (1,)),), (Step((("a", 1),)),)))
    campaign.tell(at_once=True)
    assert [event.missing for event in told if isinstance(event, Progressed)] == [["ALL", "LAST"], ["LAST"]]
